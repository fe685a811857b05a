"""Benchmark tests; a package, because each rank imports its program by name."""
