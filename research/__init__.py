"""The paper's experiments, measured on models of this project."""
