"""Renderers of findings and verdicts: terminal, JSON, HTML, SARIF, GitHub, JUnit.

A renderer shows its input only: it applies no rule, and reads no sensor, clock or setting.
"""
