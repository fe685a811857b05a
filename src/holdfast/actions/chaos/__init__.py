"""Scenarios in which a real job is hurt on purpose, and held against the same job left in peace.

``scenarios`` is the data: faults x moments x modes, and what has to come of them. ``play`` starts the job and strikes,
``blows`` are the faults that come from outside of a rank, ``assess`` says what is not as it has to be.
"""
