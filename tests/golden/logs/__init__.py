"""Logs of failures that were really run here, each with the cause that a person would name.

``programs/`` holds small broken programs, ``torch_cases.py`` and ``framework_cases.py`` what becomes of them,
``launchers.py`` how jobs are started: torchrun, bare ranks, spawn, Accelerate, Transformers, Lightning, DeepSpeed, Ray
and Slurm. ``make.py`` runs them and keeps what they print in ``cases/``; the logs are the programs' own, with the
folders of this checkout and of Python written as /job and /python. No framework is needed to judge the logs.
"""
