"""The build's one check; all else is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

# Links, which a checkout without them (git's core.symlinks off, or an archive unpacked on Windows)
# has as files of text: a wheel of it would lack the pipeline.
for link in ("elmo_pipeline/__init__.py", "pipeline/project/dvc.yaml"):
    path = Path(__file__).parent / link
    if not path.is_file() or path.read_text(encoding="utf-8").startswith("../"):
        sys.exit(
            f"error: {link}: symbolic links of this checkout are lost; "
            "clone it again with: git clone -c core.symlinks=true"
        )
setup()
