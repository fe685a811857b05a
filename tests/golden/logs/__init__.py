"""Logs of real failures, each with the cause that an expert would report.

``programs/`` contains small broken programs, ``torch_cases.py`` and ``framework_cases.py`` the
expected causes, ``launchers.py`` the launchers: torchrun, plain processes, spawn, Accelerate,
Transformers, Lightning, DeepSpeed, Ray and Slurm. ``make.py`` runs the programs and writes their
output to ``cases/``, with the paths of this checkout and of Python replaced by /job and /python.
Judging the logs requires no framework.
"""
