"""Files on a disk or at a URL, written whole, and typed JSON."""
