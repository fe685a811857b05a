"""The terminal view of a run: ``holdfast top``."""
