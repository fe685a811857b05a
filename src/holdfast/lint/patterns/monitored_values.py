"""Find values that Lightning logs on rank 0 only although a callback of all ranks monitors them.

Source: lightning 2.6, ``LightningModule.log``: with ``rank_zero_only=True``, the metric cannot be
used as a monitor in callbacks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import argument, calls_named, is_constant_argument
from holdfast.lint.sources.modules import Module

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
