"""Read ``heterogeneous.yaml`` on all ranks of a job, and check that their copies agree."""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist
import xxhash

from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.keyword_hints import suggest_keywords
from holdfast.core.rank_sets import describe_ranks
from holdfast.training.heterogeneous import config
from holdfast.training.heterogeneous.config import HeterogeneousConfig
from holdfast.training.heterogeneous.exchange import exchange_values, ranks_of


@suggest_keywords
def read_heterogeneous(
    path: str | Path, group: dist.ProcessGroup | None = None, *, timeout: float | str | None = None
) -> HeterogeneousConfig:
    """Return the validated configuration of each group of ranks; see docs/heterogeneous.md.

    All ranks call this: files on several hosts may differ, or be missing on one. ``shares()`` of
    the result is for :class:`holdfast.HeterogeneousSampler`, ``precision`` for
    :func:`holdfast.agree_precision`.

    Raises:
        MissingFile: it cannot be opened here.
        InvalidValue: it is inconsistent (lists all errors by line), is for another number of ranks,
            or another rank has a different file or none.
    """
    try:
        text: str | None = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = None
    own_digest = "" if text is None else xxhash.xxh3_128_hexdigest(text.encode())
    digests = dict(
        zip(ranks_of(group), exchange_values(own_digest, str, group, timeout=timeout), strict=True)
    )
    if text is None:
        raise MissingFile(path)
    different_ranks = [rank for rank, each in digests.items() if each != own_digest]
    if different_ranks:
        raise InvalidValue(
            str(path),
            why=f"{describe_ranks(different_ranks)} read a different file at this path, or none",
            next_step="use the same file on all hosts",
        )
    configuration = config.parse_heterogeneous(text, str(path))
    if configuration.world != len(digests):
        raise InvalidValue(
            str(path), why=f"it is for {configuration.world} ranks, but the job has {len(digests)}"
        )
    return configuration
