"""Find epoch loops of programs that shuffle with DistributedSampler and never call set_epoch."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.rank_guards import iter_units
from holdfast.lint.sources.modules import Module, last_name

_SAMPLER = re.compile(r"\bDistributedSampler\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_NAMED_SAMPLER = re.compile(rf"(\w+) = (?:\w+\.)*{_SAMPLER.pattern}")
_LOADER = re.compile(r"\bDataLoader\(([^()]*(?:\([^()]*\)[^()]*)*)\)")
_SETS_EPOCH = re.compile(r"([\w.]+)\.set_epoch\(")
_SAMPLER_OF_LOADER = re.compile(r"loader\.sampler$")
_EPOCH_LOOP = re.compile(r"\bfor \w*epoch\w* in ")
#: Libraries that set the epoch themselves.
_SET_BY_LIBRARY = re.compile(r"lightning|accelerator\.prepare|\bTrainer\(|ignite|poptorch")
_TRAINS = re.compile(r"^(?:backward|\w*train\w*|run_epoch|_run_epoch|run_batch|fit_epoch)$")


def find_missing_epochs(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield the epoch loops if the program never calls ``set_epoch``."""
    own = [module for module in modules if not module.is_test]
    if not any(_is_shuffled(module.text) for module in own) or any(
        _SET_BY_LIBRARY.search(module.text) for module in own
    ):
        return
    receivers = [name for module in own for name in _SETS_EPOCH.findall(module.text)]
    if any(".set_epoch(" in module.text for module in own) and not (
        receivers and _are_others(own, receivers)
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


def _are_others(modules: Collection[Module], receivers: Collection[str]) -> bool:
    """Return True if no sampler that shuffles gets the epoch.

    That is one with ``shuffle=False``, or ``loader.sampler`` of a loader with a batch sampler,
    which is a SequentialSampler. Source: torch.utils.data.DataLoader.__init__ (2.13.0).
    """
    samplers = [pair for module in modules for pair in _NAMED_SAMPLER.findall(module.text)]
    ordered = {name for name, given in samplers if "shuffle=False" in given.replace(" ", "")}
    ordered -= {name for name, given in samplers if "shuffle=False" not in given.replace(" ", "")}
    loaders = [given for module in modules for given in _LOADER.findall(module.text)]
    batched = bool(loaders) and all("batch_sampler" in given for given in loaders)
    return all(
        name.rpartition(".")[2] in ordered or (batched and _SAMPLER_OF_LOADER.search(name))
        for name in receivers
    )


def _is_shuffled(text: str) -> bool:
    """Return True if a sampler for training is created, which shuffles by default."""
    return "DistributedSampler(" in text and any(
        "shuffle" not in arguments or "shuffle=True" in arguments.replace(" ", "")
        for arguments in _SAMPLER.findall(text)
    )
