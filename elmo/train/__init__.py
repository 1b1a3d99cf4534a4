"""Training: plain PyTorch that reports to its caller."""
