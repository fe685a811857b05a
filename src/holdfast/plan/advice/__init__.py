"""Advice: changes that make a run fit, changes that make it faster, and explanations of scaling."""
