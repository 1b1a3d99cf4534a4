"""Training in plain PyTorch; progress is reported to the caller."""
