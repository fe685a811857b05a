"""Rendezvous of ranks in the store before they create a group, so that none starts alone.

Unlike a barrier, a rendezvous may be abandoned and repeated: each attempt of a rank has a token of
its own, and a rendezvous is complete once all ranks have seen the same tokens. The token of a rank
that has left meanwhile never completes one.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from holdfast.training.collectives.groups.arrivals import arrival_timeout, ranks_without_key
from holdfast.training.store_wait import wait_until

#: Longest pause between two polls of the store, in seconds.
_MAX_PAUSE_S = 0.1
_AGREED, _ABANDONED = "agreed", "abandoned"


def agree_on_name(store: Store, ranks: Sequence[int], limit_s: float, subject: str) -> str:
    """Return a name that all ``ranks`` agree on, and that no other rendezvous had.

    ``store`` has a prefix that is used until one rendezvous succeeds; errors name ``subject``.

    Raises:
        CollectiveTimeout: ranks did not arrive within ``limit_s`` seconds; names them.
    """
    own_rank = dist.get_rank()
    store.set(f"token/{own_rank}", uuid.uuid4().hex)
    token_keys = [f"token/{rank}" for rank in ranks]
    names: list[str] = []
    agreed: list[str] = []
    missing: tuple[int, ...] = ()

    def is_agreed() -> bool:
        nonlocal missing
        missing = ranks_without_key(store, ranks, "token/{}".format)
        if missing:
            return False
        tokens = b"".join(bytes(token) for token in store.multi_get(token_keys))
        name = hashlib.sha256(tokens).hexdigest()[:16]
        if name not in names:
            names.append(name)
            store.set(f"{name}/{own_rank}", "")
        # A rank that saw the agreement may already be at the next rendezvous, with a new token.
        for known in names:
            missing = ranks_without_key(store, ranks, f"{known}/{{}}".format)
            if not missing and _decide(store, known, _AGREED):
                agreed.append(known)
                return True
        return False

    if not wait_until(is_agreed, limit_s, max_pause_s=_MAX_PAUSE_S):
        agreed = [name for name in names if _decide(store, name, _ABANDONED)]
    if not agreed:
        raise arrival_timeout(subject, missing, limit_s)
    return agreed[0]


def _decide(store: Store, name: str, proposed: str) -> bool:
    """Return whether the ranks agreed on this name; the first proposal decides, for all ranks."""
    outcome = bytes(store.compare_set(f"{name}/outcome", "", proposed)).decode()
    return outcome == _AGREED
