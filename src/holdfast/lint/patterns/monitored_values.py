"""Find values of one rank that Lightning logs although a callback of all ranks monitors them.

Sources: lightning 2.6, ``LightningModule.log``: with ``rank_zero_only=True``, the metric cannot be
used as a monitor in callbacks; without ``sync_dist``, each rank has the mean over its own share,
unless it is a torchmetrics object.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.framework_habits import SEVERAL_RANKS
from holdfast.lint.patterns.scopes import argument, calls_named, is_constant_argument, walk
from holdfast.lint.sources.modules import Module

_EVALUATES = re.compile(r"^(?:on_)?validation_")
_IS_LOSS = re.compile(r"loss|error|mse|mae")
_AGREES = re.compile(r"gather|reduce|sync|metric|compute\(")
_MONITORS = frozenset({"ModelCheckpoint", "EarlyStopping"})


def find_unseen_monitors(modules: Iterable[Module]) -> Iterator[Divergence]:
    """Yield each ``log`` on rank 0 only of a name that is monitored."""
    modules = list(modules)
    logging = [module for module in modules if "rank_zero_only" in module.text]
    if not logging:
        return
    monitored = set(_monitored(modules))
    for module in logging if monitored else ():
        for call in calls_named(module, {"log", "log_dict"}):
            if not is_constant_argument(call, "rank_zero_only", answer=True):
                continue
            name = argument(call, 0, "name")
            matched = next((each for each in sorted(monitored) if _may_be(name, each)), None)
            if matched is not None:
                at = SourceLine(module.file, call.lineno, "log")
                message = (
                    f"`{matched}` is logged on rank 0 only, and a callback of all ranks monitors "
                    "it: ranks decide differently or fail; log it with `sync_dist=True`"
                )
                yield Divergence("habit-branch", at, at, "", (), detail=message, by_name=True)


def find_own_monitors(modules: Iterable[Module]) -> Iterator[Divergence]:
    """Yield each ``log`` of a loss over the rank's own share whose name is monitored."""
    modules = list(modules)
    if not any(SEVERAL_RANKS.search(module.text) for module in modules):
        return
    monitored = set(_monitored(modules))
    for module in modules if monitored else ():
        for function in module.functions():
            if not _EVALUATES.match(function.name) or "self.log(" not in module.text:
                continue
            for call in walk(function.node):
                if isinstance(call, ast.Call) and _logs_own(call, function.node):
                    name = argument(call, 0, "name")
                    if isinstance(name, ast.Constant) and name.value in monitored:
                        at = SourceLine(module.file, call.lineno, function.name)
                        message = (
                            f"`{name.value}` is that of this rank's share of the data, and a "
                            "callback monitors it: it compares the shares of single ranks; log it "
                            "with `sync_dist=True`"
                        )
                        yield Divergence(
                            "habit-branch", at, at, "", (), detail=message, by_name=True
                        )


def _logs_own(call: ast.Call, function: ast.AST) -> bool:
    """Return True for ``self.log`` of a loss that is computed here, without ``sync_dist``."""
    if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func) != "self.log":
        return False
    named = {keyword.arg for keyword in call.keywords}
    value = argument(call, 1, "value")
    if named & {None, "sync_dist", "rank_zero_only"} or not isinstance(value, ast.Name):
        return False
    made = [
        node.value
        for node in walk(function)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == value.id
    ]
    return bool(made) and all(
        _IS_LOSS.search(value.id) and not _AGREES.search(ast.unparse(each)) for each in made
    )


def _monitored(modules: Iterable[Module]) -> Iterator[str]:
    for module in modules:
        if "monitor" in module.text:
            for call in calls_named(module, _MONITORS):
                name = argument(call, len(call.args), "monitor")
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value


def _may_be(name: ast.expr | None, monitored: str) -> bool:
    """Return True if a logged name is the monitored one, or a format that it fits."""
    if isinstance(name, ast.Constant):
        return name.value == monitored
    if not isinstance(name, ast.JoinedStr):
        return False
    form = "".join(
        re.escape(str(part.value)) if isinstance(part, ast.Constant) else "(.+)"
        for part in name.values
    )
    return re.fullmatch(form, monitored) is not None
