"""One module per stage of dvc.yaml, and what two of them share."""
