"""Fault-injection scenarios: run a real job with a fault and compare it with an undisturbed run.

``scenarios`` is the data: faults x moments x modes, with the expected outcome. ``runner`` starts
the job and injects faults, ``external_faults`` are faults from outside the ranks, ``assessment``
lists the violations.
"""
