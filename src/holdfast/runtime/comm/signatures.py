"""What each rank calls, laid where the others of its host see it before the backend moves a byte.

The words of a call are its signature: operation, reduction, elements, dtype, shape. gloo may sum tensors of different
sizes without a complaint, and wrongly (measured: four floats on three ranks and five on one gave a sum of sorts). So
every rank lays the number of its call and a checksum of its words into shared memory, and looks at those that are
there: whoever comes last sees all. It costs about a microsecond. Ranks of other hosts are seen nowhere: between hosts,
words are compared over the job's store when a rank uses them for the first time (``waiting.begin``).
"""

from __future__ import annotations

import zlib

import torch.distributed as dist

from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.hosts import layout_of
from holdfast.runtime.comm.segments import keeps_order, mates_of, share

#: Numbers that a rank has in shared memory: that of a call and its checksum, for even calls and for odd ones. Who is
#: further ahead than one call (the source of a broadcast may be) is not compared with.
_NUMBERS = 4


class Signatures:
    """Those of one group's calls. ``all_seen``: every rank of the group lays its own where this rank sees it."""

    def __init__(self, state: GroupState, limit_s: float) -> None:
        hosts = layout_of(state, limit_s)
        mates = mates_of(state)
        seen = len(mates) > 1 and keeps_order()
        segment = share(state, "signatures", 8 * _NUMBERS * len(mates), limit_s) if seen else None
        self._slots = memoryview(segment).cast("Q") if segment is not None else None
        self._mine = _NUMBERS * mates.index(dist.get_rank())
        self._others = tuple(_NUMBERS * at for at in range(len(mates)) if _NUMBERS * at != self._mine)
        self._checksums: dict[str, int] = {}
        self.all_seen = len(hosts) == 1 and (self._slots is not None or len(mates) == 1)

    def knows(self, words: str) -> bool:
        """True where this rank has called that in this group before."""
        return words in self._checksums

    def differ(self, number: int, words: str) -> bool:
        """Lay down call ``number``; True where another rank's call of this number is a different one."""
        checksum = self._checksums.get(words)
        if checksum is None:
            checksum = self._checksums[words] = zlib.crc32(words.encode())
        slots = self._slots
        if slots is None:
            return False
        odd = (number & 1) * 2
        mine = self._mine + odd
        slots[mine + 1] = checksum  # before the number, which says that it is there
        slots[mine] = number
        for other in self._others:  # noqa: SIM110 - a generator costs as much as all the rest
            if slots[other + odd] == number and slots[other + odd + 1] != checksum:
                return True
        return False


def of(state: GroupState, limit_s: float) -> Signatures:
    """Those of the group; all its ranks ask for them at their first call.

    Raises:
        CollectiveTimeout: ranks did not come to that within ``limit_s`` seconds; it names them.
    """
    found: Signatures | None = state.kept.get(Signatures)
    if found is None:
        found = state.kept[Signatures] = Signatures(state, limit_s)
    return found
