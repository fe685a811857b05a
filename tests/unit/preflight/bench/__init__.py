"""Ranks that measure; a package, as each rank imports its program by name."""
