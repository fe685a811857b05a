"""PERF: Slow but alive."""
