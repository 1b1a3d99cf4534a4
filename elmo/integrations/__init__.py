"""Integrations with other libraries, one file each; each needs the extra of that library's name."""
