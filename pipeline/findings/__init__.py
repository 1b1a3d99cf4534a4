"""What the paper measures, measured on a model of one's own: one JSON file and picture for each."""
