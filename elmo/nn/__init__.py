"""The network: characters to layers, and the loss. It knows no data."""
