"""Which other ranks on this host have ended, asked of the kernel: memory does not tell, as a socket does."""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def identity() -> str:
    """This process, for those that see the same process ids."""
    try:
        space = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        space = "?"  # nobody's
    return f"{space} {os.getpid()}"


class Peers:
    """Processes by rank, given as their :func:`identity`; those of other name spaces are taken to live for ever.

    Each is held by a descriptor, so that a process that gets the id of one that has ended is not taken for it.
    """

    def __init__(self, identities: Mapping[int, str]) -> None:
        self._ranks: dict[int, int] = {}
        self._ended = select.poll()
        own = identity().partition(" ")[0]
        for rank, (space, _, pid) in ((rank, each.partition(" ")) for rank, each in identities.items()):
            if space == own and int(pid) != os.getpid():
                with suppress(OSError, AttributeError):  # ended already, or a kernel before 5.3
                    self._ranks[os.pidfd_open(int(pid))] = rank
        for descriptor in self._ranks:
            self._ended.register(descriptor, select.POLLIN)
        weakref.finalize(self, _close, tuple(self._ranks))

    def ended(self) -> set[int]:
        """The ranks whose processes have ended."""
        return {self._ranks[descriptor] for descriptor, _ in self._ended.poll(0)}


def _close(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
