"""From what logs say to a verdict: pure, like every rule; one file a kind of witness.

``meanings.py`` is the table of what a line means by itself and ``plain.py`` reads it off; the other files weigh several
lines against each other; ``judge.py`` puts what they offer into order.
"""
