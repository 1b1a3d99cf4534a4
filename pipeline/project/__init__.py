"""Creates and runs a project folder, and prints the lines that end a run."""
