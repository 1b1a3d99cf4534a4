"""The paper's experiments, repeated with models of this project."""
