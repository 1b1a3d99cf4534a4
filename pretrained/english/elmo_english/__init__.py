"""The model english: `elmo.Embedder.load("english")`."""
