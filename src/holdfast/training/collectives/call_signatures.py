"""Publish each rank's calls to the others on its host, before the backend moves a byte.

The signature of a call states its operation, reduction, elements, dtype and shape. gloo may sum
tensors of different sizes wrongly and without an error (measured: four floats on three ranks and
five on one gave a sum). So every rank writes the number of its call and a checksum of its signature
to shared memory, and compares those already there: the last rank sees all. It costs about a
microsecond. Between hosts, signatures are compared over the job's store when a rank first uses them
(``bounded_wait.begin_call``).
"""

from __future__ import annotations

import zlib

import torch.distributed as dist

from holdfast.training.collectives.groups.group_info import GroupState
from holdfast.training.collectives.groups.rank_hosts import host_layout
from holdfast.training.collectives.groups.segments import (
    create_segment,
    preserves_store_order,
    ranks_on_this_host,
)

#: Numbers of a rank in shared memory: a call's number and checksum, for even and for odd calls. A
#: rank more than one call ahead, as the source of a broadcast may be, is not compared.
_NUMBERS = 4


class CallSignatures:
    """Signatures of one group's calls.

    ``covers_group``: this rank sees the signatures of all ranks.
    """

    def __init__(self, state: GroupState, limit_s: float) -> None:
        hosts = host_layout(state, limit_s)
        local_ranks = ranks_on_this_host(state)
        is_usable = len(local_ranks) > 1 and preserves_store_order()
        size = 8 * _NUMBERS * len(local_ranks)
        segment = create_segment(state, "signatures", size, limit_s) if is_usable else None
        self._slots = memoryview(segment).cast("Q") if segment is not None else None
        offsets = {rank: _NUMBERS * index for index, rank in enumerate(local_ranks)}
        self._offsets = dict(offsets)
        self._own = offsets.pop(dist.get_rank())
        self._others = tuple(offsets.values())
        self._checksums: dict[str, int] = {}
        is_visible = self._slots is not None or len(local_ranks) == 1
        self.covers_group = len(hosts) == 1 and is_visible

    def has_seen(self, signature: str) -> bool:
        """Return whether this rank has made such a call in this group before."""
        return signature in self._checksums

    def entered_ranks(self, number: int) -> set[int]:
        """Return the ranks on this host that have entered the call ``number``, or a later one."""
        slots = self._slots
        if slots is None:
            return {dist.get_rank()}
        # For odd and for even calls.
        return {
            rank
            for rank, offset in self._offsets.items()
            if max(slots[offset], slots[offset + 2]) >= number
        }

    def publish_and_compare(self, number: int, signature: str) -> bool:
        """Publish call ``number``; return True if another rank's call of this number differs."""
        checksum = self._checksums.get(signature)
        if checksum is None:
            checksum = self._checksums[signature] = zlib.crc32(signature.encode())
        slots = self._slots
        if slots is None:
            return False
        parity = (number & 1) * 2
        own = self._own + parity
        slots[own + 1] = checksum  # before the number, which marks it as present
        slots[own] = number
        for other in self._others:  # not any(): a generator costs as much as all the rest
            if slots[other + parity] == number and slots[other + parity + 1] != checksum:
                return True
        return False


def signatures_of(state: GroupState, limit_s: float) -> CallSignatures:
    """Return the group's signatures; all its ranks call this at their first call.

    Raises:
        CollectiveTimeout: ranks did not call it within ``limit_s`` seconds; names them.
    """
    signatures: CallSignatures | None = state.cache.get(CallSignatures)
    if signatures is None:
        signatures = state.cache[CallSignatures] = CallSignatures(state, limit_s)
    return signatures
