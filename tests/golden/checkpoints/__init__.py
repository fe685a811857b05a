"""Generators of real checkpoints with the real frameworks, one module per format family.

model     the model that all of them train, and its data
making    extracts a stored checkpoint, or runs its generator once per test run
stored/   archives of checkpoints, one per generator; ``make golden`` writes them
"""
