"""Findings and verdicts, shown: on a terminal, as JSON, as one HTML page.

A reporter renders what it is given and knows nothing else: no rule, no probe, no clock, no setting.
"""
