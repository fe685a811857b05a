"""Parallel layouts: search, explanations and process groups."""
