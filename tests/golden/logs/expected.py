"""Expected results of all cases: cause, accepted alternatives, and rank."""

from __future__ import annotations

from tests.golden.logs.framework_cases import OF_FRAMEWORKS
from tests.golden.logs.torch_cases import OF_TORCH

EXPECTED = OF_TORCH | OF_FRAMEWORKS
