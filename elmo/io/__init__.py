"""Files on a disk or at a URL, written completely or not at all, and typed JSON."""

from importlib.util import find_spec

if find_spec("fcntl") is None:
    raise ImportError("elmo needs the file locks of Linux or macOS; on Windows, run it in WSL")
