"""The commands of `elmo`, one module per section of its help."""
