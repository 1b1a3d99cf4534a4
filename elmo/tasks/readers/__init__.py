"""Readers of labelled files, one module per family of formats; `kinds` lists each task's
readers."""
