"""The six tasks of the paper, trained on labelled data; `kinds` has one record per kind of task."""

RESULTS_VERSION = 11  # raise it when a change of the code changes a task's scores
TASK_FILE = "task.json"  # the record of a trained task, written last
