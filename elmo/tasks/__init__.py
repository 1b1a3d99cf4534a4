"""The six tasks of the paper, on labelled sentences; `kinds` has one record of each."""

RESULTS_VERSION = 6  # raised where a change of the code changes a task's numbers
