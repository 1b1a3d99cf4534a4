"""The stages: what `dvc.yaml` runs, one module a stage, and the command line."""
