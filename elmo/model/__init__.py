"""Use a model: its folder, its vectors, its mix of layers."""
