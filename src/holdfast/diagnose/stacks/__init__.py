"""Stacks of many ranks: read stack files, merge them, judge a hang from stacks alone."""
