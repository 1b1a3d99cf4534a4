"""A project folder: made, and run."""
