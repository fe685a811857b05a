"""Facts are looked at here and never judged: what boxes, /proc, stacks, logs and dumps say, each with its receipt.

A probe does not raise and does not guess: where something could not be seen, it says so (``Unknown``, ``unseen``).
What the facts mean is for ``holdfast.rules`` to say.
"""
