"""Downstream models that read a store."""
