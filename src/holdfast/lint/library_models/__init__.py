"""Effects and results of calls into libraries, from the tables of :mod:`holdfast.lint.library`."""
