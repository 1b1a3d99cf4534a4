"""Training in plain PyTorch, which reports its progress to its caller."""
