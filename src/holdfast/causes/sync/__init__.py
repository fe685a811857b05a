"""SYNC: Ranks out of step."""
