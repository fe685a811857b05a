"""The resilient loop: resumes by itself, saves by itself, and does what the policy decided after a failure.

May stand here: the position in the data (``position.py``, ``order.py``, ``streams.py``).
"""
