"""Measures collectives as a rank of a job: what ``holdfast bench`` has each rank run.

May stand here: the loop that takes the time (``loop.py``), the calls that are timed (``calls.py``), the data by which
results are checked (``filling.py``), and what puts a measurement together (``session.py``). ``python -m
holdfast.runtime.bench`` is a rank that ``holdfast bench`` itself has started.
"""
