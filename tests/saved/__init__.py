"""Programs that make real checkpoints with the real frameworks, for the tests: a file for each family of formats.

model     the model that all of them train, and its data
making    starts such a program once for a whole run of the tests, and keeps what it made
"""
