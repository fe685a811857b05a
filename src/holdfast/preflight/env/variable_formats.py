"""Format variables, with reasons as comments, for a shell, a Slurm script or Kubernetes."""

from __future__ import annotations

import json
import shlex
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence

from holdfast.core.text import one_line

#: Name, value, reason.
Line = tuple[str, str, str]
_WIDTH = 100


def shell(lines: Sequence[Line], remarks: Sequence[str]) -> Iterator[str]:
    """Yield lines for bash and similar shells."""
    yield from _remarks(remarks)
    for name, value, why in lines:
        yield from _comment(why)
        yield f"export {name}={shlex.quote(value)}"


def slurm(lines: Sequence[Line], remarks: Sequence[str]) -> Iterator[str]:
    """Yield lines for a batch script; srun passes all variables on."""
    yield "#SBATCH --export=ALL"
    yield from shell(lines, remarks)


def kubernetes(lines: Sequence[Line], remarks: Sequence[str]) -> Iterator[str]:
    """Yield the ``env`` of a container."""
    yield from _remarks(remarks)
    yield "env:" if lines else "env: []"
    for name, value, why in lines:
        yield from ("  " + comment for comment in _comment(why))
        yield f"  - name: {name}"
        yield f"    value: {json.dumps(value)}"


FORMATS: Mapping[str, Callable[[Sequence[Line], Sequence[str]], Iterator[str]]] = {
    "shell": shell,
    "slurm": slurm,
    "kubernetes": kubernetes,
}


def _remarks(remarks: Sequence[str]) -> Iterator[str]:
    for remark in remarks:
        yield from _comment(remark)


def _comment(text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        one_line(text),
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )
