"""A model as people use it: its folder, its vectors, its mix of layers."""
