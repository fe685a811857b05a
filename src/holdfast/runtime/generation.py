"""One generation of a job, from one start of its workers to the next: who runs where, and what all nodes share of it.

Every generation gets a store of its own, a TCPStore server on a free port of the first node, which the agents announce
to each other through the rendezvous. The store of a dead generation still holds addresses at which nobody listens any
more: torchrun of torch 2.13 keeps one for all, and a restarted rank that reads the old address fails or waits.

The same store carries the board: short texts that each node posts and all read, from memory, so that no agent ever
waits for the network while it has workers to look after.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

#: How often a node reads the board, in seconds.
READ_EVERY_S = 0.25
#: A store that does not answer for this long is lost.
STORE_LIMIT_S = 30
#: What nodes post; each node has one sheet of a kind. A call is read before the summary that was posted before it.
SHEETS = ("call", "summary", "dead", "done", "left")
#: Those that every node reads; the leader reads all.
_OF_ALL = ("dead", "done", "left")
_BLANK = "-"


class Choice(StrEnum):
    """What becomes of a generation that went wrong. EXCLUDE and REPLACE may always be carried out as RESTART."""

    RESTART = "restart"
    EXCLUDE = "exclude"
    REPLACE = "replace"
    STOP = "stop"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes do now. ``stuck`` ranks get SIGKILL at once, the others after ``patience_s`` (None: torch's).

    EXCLUDE: the ``excluded`` nodes of this generation do not join the next. REPLACE: ``ranks`` alone are started again.
    ``payload`` belongs to the hooks: the nodes hand it on unread.
    """

    choice: Choice
    reason: str
    stuck: tuple[int, ...] = ()
    patience_s: float | None = None
    excluded: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    payload: str = ""


class End(StrEnum):
    """How a generation ended on this node."""

    CLEAN = "clean"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    REPLACED = "replaced"


@dataclass(frozen=True)
class Worker:
    """One worker of this node."""

    rank: int
    local_rank: int
    pid: int


@dataclass(frozen=True)
class Generation:
    """The workers of this node in generation ``number`` (restarts so far); ``node`` 0 leads.

    They meet at ``address`` and ``port`` (MASTER_ADDR, MASTER_PORT).
    """

    number: int
    node: int
    nodes: int
    world_size: int
    restarts_left: int
    workers: tuple[Worker, ...]
    board: Board
    address: str = ""
    port: int = 0

    @property
    def leader(self) -> bool:
        """Whether this is the node whose watcher judges."""
        return self.node == 0


@dataclass(frozen=True)
class Look:
    """What the agent sees at one tick: exit codes of local workers that ended, by rank (negative: by that signal).

    ``waiting`` nodes stand by. ``in_place``: the survivors can take in a new rank.
    """

    codes: Mapping[int, int]
    waiting: int = 0
    in_place: bool = False


class Hooks(Protocol):
    """What the agent calls. Nothing may block: the agent waits for the answer with workers to look after."""

    def prepare(self) -> None:
        """Before this node joins a generation; the one that may block: it is called in a thread, without workers.

        Raises:
            HostUnfit: this host must not take part.
        """

    def handover(self) -> str:
        """What a node that joins for the first time has to know of the job."""

    def take_over(self, state: str) -> None:
        """Take on what the nodes agreed upon, which one of them handed over."""

    def variables(self, rank: int, generation: int) -> Mapping[str, str]:
        """What the environment of worker ``rank`` gets in addition."""

    def started(self, generation: Generation) -> None:
        """The workers of a generation run."""

    def tick(self, look: Look) -> Order | None:
        """Called ten times a second: what should be done, if anything. Asked until an order is agreed upon."""

    def decided(self, order: Order) -> None:
        """All nodes carry out ``order`` now; the workers still run."""

    def ended(self, how: End) -> None:
        """No worker of the generation is left."""

    def room(self) -> tuple[int, int] | None:
        """Bytes of memory that this host can still give, and that it has in all; None where that cannot be seen."""

    def note(self, text: str) -> None:
        """One line for people."""

    def abandon(self) -> None:
        """This process ends at once, whatever it was doing."""


class Board:
    """What the nodes of one generation tell each other. Without a store (one node) it is a piece of memory."""

    def __init__(self, store: Store | None, node: int, nodes: int) -> None:
        self._store = store
        self._node = node
        self._nodes = nodes
        self._read: dict[str, str] = {}
        self._unsent: dict[str, str] = {}
        self._posted: dict[str, str] = {}
        self._proposed: Order | None = None
        self._order: Order | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        #: Whether the store stopped answering; each node is on its own then.
        self.lost = False
        self._thread: threading.Thread | None = None
        if store is not None:
            self._thread = threading.Thread(target=self._carry, name="holdfast board", daemon=True)
            self._thread.start()

    def post(self, sheet: str, text: str) -> None:
        """Put ``text`` on this node's sheet, in place of what stood there."""
        key = _key(sheet, self._node)
        if self._posted.get(key) == text:
            return
        with self._lock:
            self._posted[key] = self._unsent[key] = text
        self._wake.set()

    def read(self, sheet: str) -> dict[int, str]:
        """What the other nodes last posted, by node; the leader knows all sheets, the others some of them."""
        others = (node for node in range(self._nodes) if node != self._node)
        return {node: text for node in others if (text := self._read.get(_key(sheet, node), _BLANK)) != _BLANK}

    def propose(self, order: Order) -> None:
        """Propose what all nodes should do; the first proposal of any node becomes everybody's order."""
        if self._store is None or self.lost:
            self._order = self._order or order
        elif self._proposed is None:
            self._proposed = order
            self._wake.set()

    def order(self) -> Order | None:
        """The order that was agreed upon, if there is one."""
        return self._order or (self._proposed if self.lost else None)

    def leave(self, limit_s: float) -> None:
        """Say goodbye and read no more. The leader, whose process holds the store, waits so long for the others."""
        if self._thread is None:
            return
        self.post("left", "1")
        waited = threading.Event()
        while limit_s > 0 and not self.lost and len(self.read("left")) < self._nodes - 1 and self._node == 0:
            waited.wait(READ_EVERY_S)
            limit_s -= READ_EVERY_S
        self._closed = True
        self._wake.set()
        self._thread.join(timeout=2 * READ_EVERY_S)

    def _carry(self) -> None:
        sheets = SHEETS if self._node == 0 else _OF_ALL
        keys = ["order", *(_key(sheet, node) for sheet in sheets for node in range(self._nodes))]
        try:
            last = False
            while not last:
                last = self._closed  # once more after closing: the goodbye has to be sent
                self._exchange(keys)
                self._wake.wait(0 if last else READ_EVERY_S)
                self._wake.clear()
        except (RuntimeError, ValueError, OSError):  # torch's errors of the network are RuntimeErrors
            self.lost = True

    def _exchange(self, keys: list[str]) -> None:
        store: Any = self._store
        with self._lock:
            unsent, self._unsent = self._unsent, {}
        for key, text in unsent.items():
            store.set(key, text)
        if self._proposed is not None and self._order is None:
            store.compare_set("order", _BLANK, msgspec.json.encode(self._proposed).decode())
        texts = dict(zip(keys, (text.decode() for text in store.multi_get(keys)), strict=True))
        if texts["order"] != _BLANK and self._order is None:
            self._order = msgspec.json.decode(texts["order"], type=Order)
        self._read = texts


@dataclass(frozen=True)
class Joined:
    """The store of a generation that this node has joined; ``restarts`` is what all nodes count from now on.

    ``state`` is what the node with the most restarts knew of the job.
    """

    store: TCPStore
    address: str
    port: int
    restarts: int
    state: str = ""


class _Arrived(msgspec.Struct, frozen=True):
    """What a node brings along."""

    restarts: int
    state: str = ""


def join(
    rendezvous: Store, where: str, *, node: int, nodes: int, address: str, restarts: int, state: str = ""
) -> Joined:
    """Make (node 0) or find (the others) the store of the coming generation; blocks until all nodes have come.

    ``where`` is a prefix in the ``rendezvous`` that no other generation uses, ``address`` that of node 0.
    The nodes agree on the highest count of ``restarts``, and on the ``state`` that came with it: after a change of
    members theirs may differ.
    """
    mine = _Arrived(restarts, state)
    if node != 0:
        rendezvous.set(f"{where}/arrived/{node}", msgspec.json.encode(mine).decode())
        found = msgspec.json.decode(rendezvous.get(f"{where}/store"))
        own = _tcp_store(found["address"], found["port"], serve=False)
        return Joined(own, found["address"], found["port"], found["restarts"], found["state"])
    others = (rendezvous.get(f"{where}/arrived/{other}") for other in range(1, nodes))
    arrived = [mine, *(msgspec.json.decode(told, type=_Arrived) for told in others)]
    agreed = max(arrived, key=lambda each: (each.restarts, len(each.state)))
    own = _tcp_store(address, 0, serve=True)
    keys = ["order", *(_key(sheet, each) for sheet in SHEETS for each in range(nodes))]
    for key in keys:
        own.set(key, _BLANK)  # nobody who reads it shall have to wait
    public = {"address": address, "port": own.port, "restarts": agreed.restarts, "state": agreed.state}
    rendezvous.set(f"{where}/store", msgspec.json.encode(public).decode())
    return Joined(own, address, own.port, agreed.restarts, agreed.state)


def _tcp_store(address: str, port: int, *, serve: bool) -> TCPStore:
    limit = timedelta(seconds=STORE_LIMIT_S)
    return TCPStore(address, port, is_master=serve, wait_for_workers=False, timeout=limit)


def _key(sheet: str, node: int) -> str:
    return f"holdfast/{sheet}/{node}"
