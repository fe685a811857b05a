"""NUM: Numerics."""
