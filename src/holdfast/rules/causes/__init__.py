"""The catalogue: every cause is written once, in the file of its family, under the same fixed headings.

A family file (``sync.py``, ``process.py``, ...) holds nothing but ``Cause`` values; ``explain``, the reports and the
documentation print these texts and have none of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.errors import InternalError, UnknownName
from holdfast.findings import Cause
from holdfast.rules.causes import (
    checkpoint_contents,
    checkpoints,
    configuration,
    data,
    environment,
    gpu,
    gpu_condition,
    hosts,
    machine,
    memory,
    mismatch,
    network,
    numerics,
    performance,
    process,
    sync,
    variables,
)

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
_FILES = (
    environment, variables, network, hosts, gpu, gpu_condition, memory, sync, mismatch, process,
    data, checkpoints, checkpoint_contents, configuration, performance, numerics, machine,
)  # fmt: skip
_PLACE = {family: place for place, family in enumerate(FAMILIES)}

#: Every cause, by family and code.
CAUSES: tuple[Cause, ...] = tuple(
    sorted((cause for file in _FILES for cause in file.CAUSES), key=lambda cause: (_PLACE[cause.family], cause.code))
)
_BY_NAME = {cause.name: cause for cause in CAUSES}
_BY_CODE = {cause.code: cause for cause in CAUSES}


def by_name(name: str) -> Cause:
    """The cause called exactly ``name``, for rules that claim it.

    Raises:
        InternalError: no cause has this name; a rule of ours is wrong.
    """
    if name not in _BY_NAME:
        raise InternalError(f"a rule claims the cause {name!r}, which is not in the catalogue")
    return _BY_NAME[name]


def by_code(code: str) -> Cause:
    """The cause with exactly this ``code``.

    Raises:
        InternalError: no cause has this code; a rule of ours is wrong.
    """
    if code not in _BY_CODE:
        raise InternalError(f"a rule claims the code {code!r}, which is not in the catalogue")
    return _BY_CODE[code]


def find(text: str) -> Cause:
    """The cause that a person means by ``text``: a code or a name, in any case, with ``_`` or blanks for ``-``.

    Raises:
        UnknownName: there is none; the error names those that are near.
    """
    wanted = "-".join(text.replace("_", " ").replace("-", " ").split()).casefold()
    for cause in CAUSES:
        if wanted in {cause.name, cause.code.casefold()}:
            return cause
    error = UnknownName("cause", text, (*_BY_NAME, *_BY_CODE))
    if not error.near:
        error = UnknownName("cause", text, _BY_NAME, next_step="list them with: holdfast explain --list")
    raise error
