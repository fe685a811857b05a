"""Detect which other ranks on this host have ended; unlike sockets, memory does not show it."""

from __future__ import annotations

import os
import select
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path


def process_identity() -> str:
    """Return pid namespace and pid of this process."""
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = "?"
    return f"{namespace} {os.getpid()}"


class PeerProcesses:
    """Processes by rank, from their :func:`process_identity`; other pid namespaces are ignored.

    Each is held by a pidfd, so that a reused pid is not mistaken for it.
    """

    def __init__(self, identities: Mapping[int, str]) -> None:
        self._ranks: dict[int, int] = {}
        self._poll = select.poll()
        own_namespace = process_identity().partition(" ")[0]
        for rank, identity in identities.items():
            namespace, _, pid = identity.partition(" ")
            if namespace == own_namespace and int(pid) != os.getpid():
                with suppress(OSError, AttributeError):  # already ended, or a kernel before 5.3
                    self._ranks[os.pidfd_open(int(pid))] = rank
        for descriptor in self._ranks:
            self._poll.register(descriptor, select.POLLIN)
        weakref.finalize(self, _close_all, tuple(self._ranks))

    def ended_ranks(self) -> set[int]:
        """Return the ranks whose processes have ended."""
        return {self._ranks[descriptor] for descriptor, _ in self._poll.poll(0)}


def _close_all(descriptors: tuple[int, ...]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
