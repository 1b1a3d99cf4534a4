"""The network: from characters to layers, and the loss. It is independent of data and files."""
