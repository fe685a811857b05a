"""Predict before a job starts: memory, step time and batch allocation. Pure: no I/O, no torch."""
