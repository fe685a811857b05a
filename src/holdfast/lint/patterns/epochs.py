"""Find epoch loops of programs that shuffle with DistributedSampler and never call set_epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.rank_guards import iter_units
from holdfast.lint.sources.modules import Module, last_name

_SAMPLER = re.compile(r"\bDistributedSampler\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_EPOCH_LOOP = re.compile(r"\bfor \w*epoch\w* in ")
#: Libraries that set the epoch themselves.
_SET_BY_LIBRARY = re.compile(r"lightning|accelerator\.prepare|\bTrainer\(|ignite|poptorch")
_TRAINS = re.compile(r"^(?:backward|\w*train\w*|run_epoch|_run_epoch|run_batch|fit_epoch)$")


def find_missing_epochs(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield the epoch loops if the program never calls ``set_epoch``."""
    own = [module for module in modules if not module.is_test]
    if not any(_is_shuffled(module.text) for module in own) or any(
        ".set_epoch(" in module.text or _SET_BY_LIBRARY.search(module.text) for module in own
    ):
        return
    for module in own:
        for unit in iter_units(module, _EPOCH_LOOP):
            for loop in unit.nodes:
                if isinstance(loop, ast.For) and "epoch" in ast.unparse(loop.target):
                    calls = (node for node in ast.walk(loop) if isinstance(node, ast.Call))
                    if any(_TRAINS.match(last_name(call.func)) for call in calls):
                        text = f"for {ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"
                        location = unit.location(loop)
                        yield Divergence("epoch", location, location, text, (), by_name=True)


def _is_shuffled(text: str) -> bool:
    """Return True if a sampler for training is created, which shuffles by default."""
    return "DistributedSampler(" in text and any(
        "shuffle" not in arguments or "shuffle=True" in arguments.replace(" ", "")
        for arguments in _SAMPLER.findall(text)
    )
