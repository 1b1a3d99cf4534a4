"""Read, check and write files of settings."""
