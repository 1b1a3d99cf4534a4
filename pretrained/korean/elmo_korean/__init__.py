"""The model korean: `elmo.Embedder.load("korean")`."""
