"""Ranks meet in the store before they make something together, so that nobody begins it alone.

Unlike a barrier, a meeting may be given up and tried again: each try has a word of its own, and a meeting is over when
all ranks have seen the same words. The word of a rank that has left meanwhile is seen by nobody as an answer.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from holdfast.errors import CollectiveTimeout
from holdfast.report.ranksets import say_ranks
from holdfast.report.text import duration

#: Between two looks at the store.
_SHORTEST_S, _LONGEST_S = 0.001, 0.1


def meet(store: Store, ranks: Sequence[int], limit_s: float, subject: str) -> str:
    """A name that all ``ranks`` have agreed on, and that no other meeting had.

    ``store`` is below a prefix that is used until one meeting succeeds; ``subject`` is what an error speaks of.

    Raises:
        CollectiveTimeout: ranks did not come within ``limit_s`` seconds; it names them.
    """
    own = dist.get_rank()
    store.set(f"word/{own}", uuid.uuid4().hex)
    words = [f"word/{rank}" for rank in ranks]
    until, pause = time.monotonic() + limit_s, _SHORTEST_S
    names: list[str] = []
    while True:
        absent = tuple(rank for rank, key in zip(ranks, words, strict=True) if not store.check([key]))
        if not absent:
            name = hashlib.sha256(b"".join(bytes(word) for word in store.multi_get(words))).hexdigest()[:16]
            if name not in names:
                names.append(name)
                store.set(f"{name}/{own}", "")
            for name in names:  # who has seen that all agree may be at the next meeting, with another word
                absent = tuple(rank for rank in ranks if not store.check([f"{name}/{rank}"]))
                if not absent:
                    return name
        left = until - time.monotonic()
        if left <= 0:
            why = f"{say_ranks(absent)} did not come within {duration(limit_s)}"
            raise CollectiveTimeout(subject, why=why, missing=absent)
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_S)
