"""Rules that derive a verdict from the facts in logs: pure functions, grouped by evidence.

``signal_causes.py`` maps a signal to the cause that it indicates by itself, and
``direct_signals.py`` applies it; the other modules weigh several lines against each other.
``judge.py`` orders the candidates.
"""
