"""A project folder: creating it, running it, and what the run says at its end."""
