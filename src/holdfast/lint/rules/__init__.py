"""Rules: one file each, with its documentation and examples, which are its tests.

A rule turns a :class:`~holdfast.lint.abstract_domain.divergences.Divergence` into a finding. Its
cause is the one that the watcher and ``diagnose`` report when the program hangs.
"""
