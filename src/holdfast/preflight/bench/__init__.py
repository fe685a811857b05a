"""Benchmark collectives (``holdfast bench``)."""
