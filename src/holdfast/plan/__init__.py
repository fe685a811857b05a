"""Arithmetic before the job: what fits, how long a step takes, and how a batch is dealt out. Pure: no I/O, no torch."""
