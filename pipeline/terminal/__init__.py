"""Terminal output: progress and one-line errors."""
