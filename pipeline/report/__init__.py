"""Presentation of results: phrases, plots, and the report's page."""
