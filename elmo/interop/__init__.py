"""Files of other tools, read and written."""
