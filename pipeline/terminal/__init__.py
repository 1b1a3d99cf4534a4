"""The terminal: progress, one-line errors."""
