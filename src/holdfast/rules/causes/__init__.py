"""The catalogue: every cause is written once, in the file of its family, under the same fixed headings.

A family file (``sync.py``, ``proc.py``, ...) holds nothing but ``Cause`` values; ``explain``, the reports and the
documentation print these texts and have none of their own.
"""
