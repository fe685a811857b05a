"""Algorithms of an all-reduce: one call, chunks, exchange, shared memory."""
