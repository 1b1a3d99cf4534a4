"""The findings of the paper, measured on models of our own."""
