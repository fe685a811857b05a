"""Checklists that run: each item is a check of this project, with its command and what to do."""
