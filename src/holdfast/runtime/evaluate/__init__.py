"""Evaluation that never ends training: what fails in it is agreed by all ranks, reported as failed, and left behind.

May stand here: the guard that users call (``guard.py``, and ``background.py`` for one on the side), the work of one
rank (``local.py``, ``in_step.py``, ``batches.py``, ``sampler.py``), where the ranks meet (``meeting.py``,
``table.py``), what they decide there (``decision.py``, pure), and what is handed back (``result.py``). No collective
is made in a group of training's.
"""

from __future__ import annotations

from holdfast.runtime.evaluate.background import AsyncEvaluation
from holdfast.runtime.evaluate.guard import Evaluation
from holdfast.runtime.evaluate.result import EvalResult
from holdfast.runtime.evaluate.sampler import DistributedEvalSampler

__all__ = ["AsyncEvaluation", "DistributedEvalSampler", "EvalResult", "Evaluation"]
