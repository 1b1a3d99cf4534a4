"""Readers of labelled files, one module per kind of content; `kinds` lists each task's readers."""
