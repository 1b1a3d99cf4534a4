"""Readers of labelled files, one module for each family of formats; `kinds` says who reads what."""
