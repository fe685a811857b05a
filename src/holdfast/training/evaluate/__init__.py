"""Evaluation that never ends training: all ranks agree on a failure, report it, and continue.

No collective runs in a process group of training's.
"""

from __future__ import annotations

from holdfast.training.evaluate.background import AsyncEvaluation
from holdfast.training.evaluate.guard import Evaluation
from holdfast.training.evaluate.result import EvalResult
from holdfast.training.evaluate.sampler import DistributedEvalSampler

__all__ = ["AsyncEvaluation", "DistributedEvalSampler", "EvalResult", "Evaluation"]
