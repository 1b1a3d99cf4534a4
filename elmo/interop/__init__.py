"""Reading and writing of other tools' files."""
