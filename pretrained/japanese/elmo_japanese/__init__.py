"""The model japanese: `elmo.Embedder.load("japanese")`."""
