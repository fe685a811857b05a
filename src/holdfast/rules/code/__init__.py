"""What is wrong where ranks part: one file a rule. A rule has its docs, and examples that are its tests.

A rule looks at a :class:`~holdfast.facts.code.partings.Parting` and makes findings of the one catalogue: the cause is
the one that the watcher and ``diagnose`` name once the program has hung.
"""
