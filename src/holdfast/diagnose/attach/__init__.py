"""Inspect a running job that was started without holdfast (``holdfast attach``)."""
