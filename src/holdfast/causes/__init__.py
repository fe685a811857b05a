"""The catalogue of causes: one file per cause, ``<family>/<name>.py``, with all knowledge about it.

A cause is a constant named after its file: ``sync/rank_missing_collective.py`` defines
``RANK_MISSING_COLLECTIVE``. ``python -m holdfast.causes new NAME --family FAMILY`` writes a file.
Rules import the constant, so a stale name is an import error. ``explain``, reports and the
documentation print its texts; the log reader, the verdict rules and the recovery policy derive
their tables from its other fields.
"""

from __future__ import annotations

import pkgutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module

from holdfast.core.errors import InternalError, UnknownName
from holdfast.core.findings import Cause

#: Letters of the codes -> what the family is about, in the order in which they are listed.
FAMILIES: Mapping[str, str] = {
    "ENV": "environment, versions",
    "NET": "network, rendezvous",
    "GPU": "devices, drivers, links",
    "MEM": "host and device memory",
    "SYNC": "ranks out of step",
    "PROC": "processes that died or were stopped",
    "DATA": "input pipeline",
    "CKPT": "checkpoints",
    "CONF": "configuration",
    "PERF": "slow but alive",
    "NUM": "numerics",
}


@cache
def all_causes() -> tuple[Cause, ...]:
    """Return every cause, sorted by family and code.

    Raises:
        InternalError: a file does not define the constant named after it, two causes share a name,
            a code or a signal, or a cause refers to one that does not exist.
    """
    order = list(FAMILIES)
    causes = [_load_cause(module) for module in _cause_modules()]
    check_references(causes)
    return tuple(sorted(causes, key=lambda cause: (order.index(cause.family), cause.code)))


def check_references(causes: Sequence[Cause]) -> None:
    """Raise InternalError unless names, codes and signals are unique and all references resolve."""
    for kind, values in (
        ("name", [cause.name for cause in causes]),
        ("code", [cause.code for cause in causes]),
        ("log signal", [signal.name for cause in causes for signal in cause.signals]),
    ):
        if duplicates := [value for value, count in Counter(values).items() if count > 1]:
            raise InternalError(f"two causes have the {kind} {', '.join(duplicates)}")
    names = {cause.name for cause in causes}
    for cause in causes:
        if unknown := set(cause.alternatives) - names:
            raise InternalError(
                f"{cause.name} names alternatives that do not exist: {', '.join(sorted(unknown))}"
            )


def _cause_modules() -> list[str]:
    """Return the dotted names of all cause files."""
    modules = pkgutil.iter_modules(__path__, f"{__name__}.")
    return [
        file.name
        for package in modules
        if package.ispkg
        for file in pkgutil.iter_modules(import_module(package.name).__path__, f"{package.name}.")
    ]


def _load_cause(module: str) -> Cause:
    name = module.rpartition(".")[2]
    cause = getattr(import_module(module), name.upper(), None)
    if not isinstance(cause, Cause) or cause.name != name.replace("_", "-"):
        raise InternalError(f"{module} does not define the cause {name.upper()}")
    return cause


@cache
def _by_name() -> Mapping[str, Cause]:
    return {cause.name: cause for cause in all_causes()}


def by_name(name: str) -> Cause:
    """Return the cause named exactly ``name``, for names that come from findings.

    Raises:
        InternalError: no cause has this name.
    """
    if name not in _by_name():
        raise InternalError(f"the catalogue has no cause named {name!r}")
    return _by_name()[name]


def find_cause(text: str) -> Cause:
    """Return the cause that ``text`` names.

    ``text`` is a code or a name, in upper or lower case, with ``-``, ``_`` or blanks.

    Raises:
        UnknownName: no cause matches; the error names similar ones.
    """
    wanted = "-".join(text.replace("_", " ").replace("-", " ").split()).casefold()
    for cause in all_causes():
        if wanted in {cause.name, cause.code.casefold()}:
            return cause
    codes = [cause.code for cause in all_causes()]
    error = UnknownName("cause", text, (*_by_name(), *codes))
    if not error.near:
        error = UnknownName(
            "cause", text, _by_name(), next_step="list them with: holdfast explain --list"
        )
    raise error
