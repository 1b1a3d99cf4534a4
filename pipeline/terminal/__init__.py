"""What a person reads while work runs: progress, one-line errors."""
