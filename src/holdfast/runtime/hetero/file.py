"""``heterogeneous.yaml`` as all ranks of a job have it."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
import xxhash

from holdfast.errors import BadValue, MissingFile
from holdfast.plan import heterogeneous
from holdfast.plan.heterogeneous import Heterogeneous
from holdfast.report.ranksets import say_ranks
from holdfast.runtime.hetero.telling import everyone, ranks_of


def read_heterogeneous(
    path: str | Path, group: dist.ProcessGroup | None = None, *, timeout: float | str | None = None
) -> Heterogeneous:
    """What the file says of each group of ranks, checked; docs/heterogeneous.md tells what may stand in it.

    All ranks call it: files on several hosts may differ, or be missing on one. ``shares()`` of what is returned is for
    :class:`holdfast.HeterogeneousSampler`, ``precision`` for :func:`holdfast.agree_precision`.

    Raises:
        MissingFile: it cannot be opened here.
        BadValue: it is not consistent (all that is wrong is said, by line), is for another number of ranks, or another
            rank has a different one or none.
    """
    try:
        text: str | None = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = None
    own = "" if text is None else xxhash.xxh3_128_hexdigest(text.encode())
    digests = dict(zip(ranks_of(group), everyone(own, str, group, timeout=timeout), strict=True))
    if text is None:
        raise MissingFile(path)
    others = [rank for rank, each in digests.items() if each != own]
    if others:
        raise BadValue(str(path), why=f"{say_ranks(others)} read another one there, or none",
                       next_step="give all hosts the same file")  # fmt: skip
    found = heterogeneous.read(text, str(path))
    if found.world != len(digests):
        raise BadValue(str(path), why=f"it is for {found.world} ranks, and there are {len(digests)}")
    return found
