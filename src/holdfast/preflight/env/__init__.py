"""Audit of environment variables (``holdfast env``)."""
