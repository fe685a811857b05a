"""Logs of failures that were really run here, each with the cause that a person would name.

``programs/`` holds one small broken program a case and ``expected.py`` what becomes of it; ``make.py`` runs them under
torchrun and keeps what they print in ``cases/``. The logs are the programs' own, with the folders of this checkout and
of Python written as /job and /python.
"""
