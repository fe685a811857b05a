"""Ranks tell each other a word through the store, within a limit that names who says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from holdfast.errors import CollectiveTimeout
from holdfast.report.ranksets import say_ranks
from holdfast.report.text import duration


def roll_call(store: Store, ranks: Sequence[int], word: str, limit_s: float, subject: str) -> list[bytes]:
    """What each of the ranks said, in their order; this rank says ``word``, and takes it back where others miss.

    ``store`` is below a prefix that is used once, and ``subject`` what an error speaks of.

    Raises:
        CollectiveTimeout: ranks said nothing within ``limit_s`` seconds; it names them.
    """
    own = str(dist.get_rank())
    store.set(own, word)
    keys = [str(rank) for rank in ranks]
    try:
        store.wait(keys, timedelta(seconds=limit_s))
    except RuntimeError as error:
        absent = tuple(rank for rank, key in zip(ranks, keys, strict=True) if not store.check([key]))
        store.delete_key(own)
        why = f"{say_ranks(absent)} did not come within {duration(limit_s)}"
        raise CollectiveTimeout(subject, why=why, missing=absent) from error
    return [bytes(said) for said in store.multi_get(keys)]
