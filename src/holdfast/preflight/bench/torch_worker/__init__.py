"""The code that each rank of ``holdfast bench`` runs.

Modules: the timing loop (``timing_loop``), the timed calls (``calls``), the data that verifies
results (``test_data``), pairs of ranks (``pairs``), and the measurement (``session``). ``python -m
holdfast.preflight.bench.torch_worker`` is a rank started by ``holdfast bench`` itself.
"""
