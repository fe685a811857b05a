"""Detect and remove secrets, e-mail addresses and names of people."""
