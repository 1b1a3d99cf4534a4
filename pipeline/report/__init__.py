"""Results as people see them: phrases, plots, and what the report's page says."""
