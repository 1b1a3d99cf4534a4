"""The stages: what `dvc.yaml` runs, one module per stage, and the command line."""
