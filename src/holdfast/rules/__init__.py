"""Facts in, findings and verdicts out: pure functions, no I/O, no clock, no randomness.

A module here holds one kind of judgement (the wait-for graph, stragglers, causal order). A rule that meets a fact it
could not see answers *unknown*, never *fine*. What is known of each failure stands in ``holdfast.rules.causes``.
"""
