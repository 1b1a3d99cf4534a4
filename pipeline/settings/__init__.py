"""Files of settings: read, checked, written."""
