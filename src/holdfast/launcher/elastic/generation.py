"""One generation of a job: from one start of its workers to the next.

Every generation has its own TCPStore server on the first node, which the agents announce through
the rendezvous. The store of an ended generation still holds addresses that nothing listens on;
torchrun of torch 2.13 keeps one store for all generations, and a restarted rank that reads an old
address fails or waits. With ``--master-port`` the first generation uses the rendezvous's own store,
so that the workers get this port as under torchrun, and the next ones the ports after it.

The same store carries the :class:`StatusBoard`: short texts that each node posts and the others
read. A thread exchanges them, so no agent waits for the network while it monitors workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol

import msgspec
from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from holdfast.training.store_wait import wait_until

#: Interval in which a node reads the board, in seconds.
READ_EVERY_S = 0.25
#: The leader reads the summaries, most of the bytes, less often of many nodes: at least this often,
#: of as many nodes per second, and at once when a node calls.
SUMMARIES_EVERY_S, SUMMARIES_PER_S = 1.0, 512
#: A store that does not respond for this many seconds is lost.
STORE_TIMEOUT_S = 30
#: Each node has one text per topic.
TOPICS = ("call", "summary", "dead", "done", "left")
#: Topics that all nodes read; the leader reads all topics, "call" before "summary": if it sees a
#: call, it also has the summary that was posted before it.
_COMMON_TOPICS = ("dead", "done", "left")
_EMPTY = "-"
#: Counts the posts on all topics except "summary": only after one, nodes read these topics: of
#: 2,048 nodes, they are thousands of keys.
_CHANGES, _NO_CHANGES = "holdfast/changes", "0"
#: A question of the leader to the node that it concerns, and that node's answer.
_QUESTION, _ANSWER = "holdfast/question", "holdfast/answer"
#: With ``--master-port P``, restarts use the ports P + 1 to P + RESTART_PORTS in turn.
RESTART_PORTS = 4
_PORTS = 1 << 16


class OrderAction(StrEnum):
    """What happens to a failed generation. EXCLUDE and REPLACE may be carried out as RESTART."""

    RESTART = "restart"
    EXCLUDE = "exclude"
    REPLACE = "replace"
    STOP = "stop"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What all nodes do.

    ``stuck`` ranks get SIGKILL at once, the others after ``grace_s`` seconds (None: torch's limit).
    EXCLUDE: the ``excluded`` nodes of this generation do not join the next one. REPLACE: only
    ``ranks`` are started again. ``payload`` is for the hooks of all nodes.
    """

    action: OrderAction
    reason: str
    stuck: tuple[int, ...] = ()
    grace_s: float | None = None
    excluded: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    payload: str = ""


class GenerationEnd(StrEnum):
    """How a generation ended on this node."""

    CLEAN = "clean"  #: all workers exited with status 0
    FAILED = "failed"
    INTERRUPTED = "interrupted"  #: by a signal to the agent
    REPLACED = "replaced"  #: because nodes joined or left


@dataclass(frozen=True)
class Worker:
    """One worker of this node."""

    rank: int
    local_rank: int
    pid: int


@dataclass(frozen=True)
class Generation:
    """The workers of this node in generation ``number`` (restarts so far); ``node`` 0 leads.

    ``address`` and ``port`` are MASTER_ADDR and MASTER_PORT. ``leader_workers`` is the number of
    workers of node 0, which have the lowest ranks.
    """

    number: int
    node: int
    nodes: int
    world_size: int
    workers: tuple[Worker, ...]
    board: StatusBoard
    address: str = ""
    port: int = 0
    leader_workers: int = 1

    @property
    def leader(self) -> bool:
        """Return whether the watcher of this node judges failures."""
        return self.node == 0


@dataclass(frozen=True)
class NodeStatus:
    """What the agent of a node observes.

    ``exit_codes`` by rank of local workers that ended (negative: the signal), the number of
    ``waiting_nodes``, and whether dead ranks are ``replaceable`` while the others continue.
    """

    exit_codes: Mapping[int, int]
    waiting_nodes: int = 0
    replaceable: bool = False


class AgentHooks(Protocol):
    """What the agent calls. Only :meth:`prepare` may block; during others, workers run."""

    def prepare(self) -> None:
        """Prepare to join a generation; called in a thread while no workers run.

        Raises:
            HostUnfit: this host must not join.
        """

    def export_state(self) -> str:
        """Return the state of the job, for nodes that join later."""

    def import_state(self, state: str) -> None:
        """Adopt the state that all nodes agreed on."""

    def worker_environment(self, rank: int, generation: int) -> Mapping[str, str]:
        """Return additional environment variables of worker ``rank``."""

    def workers_started(self, generation: Generation) -> None:
        """Note that the workers of a generation run."""

    def tick(self, status: NodeStatus) -> Order | None:
        """Return the order to propose, if any; called about ten times per second."""

    def order_agreed(self, order: Order) -> None:
        """Note that all nodes now carry out ``order``; the workers still run."""

    def workers_ended(self, how: GenerationEnd) -> None:
        """Note that no worker of the generation is left."""

    def helpers(self) -> frozenset[int]:
        """Return the processes that the hooks started, also after the workers."""

    def available_memory(self) -> tuple[int, int] | None:
        """Return this host's available and total memory in bytes; None if unknown."""

    def notify(self, text: str) -> None:
        """Print one line to the user."""

    def abort(self) -> None:
        """Clean up: this process exits immediately after."""


class StatusBoard:
    """Short texts of all nodes of one generation. Without a store (one node) only in memory."""

    def __init__(self, store: Store | None, node: int, nodes: int) -> None:
        self._store = store
        self._node = node
        self._nodes = nodes
        self._texts: dict[str, str] = {}
        self._unsent: dict[str, str] = {}
        self._posted: dict[str, str] = {}
        self._proposed: Order | None = None
        self._order: Order | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        #: Whether the store stopped responding; each node then decides alone.
        self.lost = False
        self._answered_at = time.monotonic()
        self._summaries_at = 0.0
        self._changes = _NO_CHANGES
        self._thread: threading.Thread | None = None
        if store is not None:
            self._thread = threading.Thread(target=self._run, name="holdfast board", daemon=True)
            self._thread.start()

    @property
    def leader_silent_s(self) -> float:
        """Return the seconds since the leader, which hosts the store, last answered."""
        if self._store is None or self._node == 0:
            return 0.0
        return time.monotonic() - self._answered_at

    def post(self, topic: str, text: str) -> None:
        """Replace this node's text on ``topic``."""
        key = _key(topic, self._node)
        if self._posted.get(key) == text:
            return
        with self._lock:
            self._posted[key] = self._unsent[key] = text
        self._wake.set()

    def read(self, topic: str) -> dict[int, str]:
        """Return the newest texts of the other nodes, by node."""
        others = (node for node in range(self._nodes) if node != self._node)
        texts = {node: self._texts.get(_key(topic, node), _EMPTY) for node in others}
        return {node: text for node, text in texts.items() if text != _EMPTY}

    def ask(self, text: str) -> None:
        """Replace the leader's question, which all nodes read."""
        self._send(_QUESTION, text)

    def answer(self, text: str) -> None:
        """Replace the answer, which the leader reads."""
        self._send(_ANSWER, text)

    @property
    def conversation(self) -> tuple[str, str]:
        """The newest question and, on the leader, the newest answer; empty without."""
        newest = (self._texts.get(key, _EMPTY) for key in (_QUESTION, _ANSWER))
        question, answer = ("" if text == _EMPTY else text for text in newest)
        return question, answer

    def _send(self, key: str, text: str) -> None:
        with self._lock:
            self._unsent[key] = text
        self._wake.set()

    def propose(self, order: Order) -> None:
        """Propose an order; the first proposal of any node applies to all nodes."""
        if self._store is None or self.lost:
            self._order = self._order or order
        elif self._proposed is None:
            self._proposed = order
            self._wake.set()

    def order(self) -> Order | None:
        """Return the order that the nodes agreed on, if any."""
        return self._order or (self._proposed if self.lost else None)

    def close(self, timeout_s: float) -> None:
        """Post that this node leaves, and stop the exchange.

        The leader, whose process hosts the store, first waits up to ``timeout_s`` seconds for the
        other nodes to leave.
        """
        if self._thread is None:
            return
        self.post("left", "1")
        if self._node == 0:
            wait_until(
                lambda: self.lost or len(self.read("left")) >= self._nodes - 1, lambda: timeout_s
            )
        self._closed = True
        self._wake.set()
        self._thread.join(timeout=2 * READ_EVERY_S)

    def _run(self) -> None:
        topics = ("call", *_COMMON_TOPICS) if self._node == 0 else _COMMON_TOPICS
        keys = [_key(topic, node) for topic in topics for node in range(self._nodes)]
        summaries = [_key("summary", node) for node in range(self._nodes)]
        try:
            last = False
            while not last:
                last = self._closed  # exchange once more after closing: "left" must be sent
                self._exchange(keys, summaries if self._node == 0 else ())
                self._wake.wait(0 if last else READ_EVERY_S)
                self._wake.clear()
        except (RuntimeError, ValueError, OSError):  # torch's network errors are RuntimeErrors
            self.lost = True

    def _exchange(self, keys: Sequence[str], summaries: Sequence[str]) -> None:
        store: Any = self._store
        with self._lock:
            unsent, self._unsent = self._unsent, {}
        for key, text in unsent.items():
            store.set(key, text)
        if unsent.keys() - {_key("summary", self._node), _QUESTION, _ANSWER}:
            store.add(_CHANGES, 1)
        if self._proposed is not None and self._order is None:
            store.compare_set("order", _EMPTY, msgspec.json.encode(self._proposed).decode())
        always = ("order", _CHANGES, _QUESTION, *((_ANSWER,) if self._node == 0 else ()))
        texts = self._texts | _read(store, always)
        if texts[_CHANGES] != self._changes:
            self._changes = texts[_CHANGES]
            texts |= _read(store, keys)
        calls = (texts.get(_key("call", node), _EMPTY) for node in range(len(summaries)))
        is_called = any(call != _EMPTY for call in calls)
        every_s = min(SUMMARIES_EVERY_S, self._nodes / SUMMARIES_PER_S)
        if summaries and (is_called or time.monotonic() >= self._summaries_at + every_s):
            self._summaries_at = time.monotonic()
            texts |= _read(store, summaries)
        if texts["order"] != _EMPTY and self._order is None:
            self._order = msgspec.json.decode(texts["order"], type=Order)
        self._texts, self._answered_at = texts, time.monotonic()


@dataclass(frozen=True)
class JoinedGeneration:
    """The store of a joined generation, at ``address`` and ``port``, and what the nodes agreed on.

    ``leader_workers`` is the number of workers of node 0. ``restarts`` is the count of all nodes
    from now on; ``state`` is the state of the node with the most restarts.
    """

    store: TCPStore
    address: str
    port: int
    leader_workers: int
    restarts: int
    state: str


@dataclass(frozen=True)
class StoreEndpoint:
    """Where node 0 opens the store of a generation.

    ``rendezvous_port`` is that of a static rendezvous, 0 for others; ``number`` counts the
    generations that this node joined before.
    """

    address: str
    rendezvous_port: int = 0
    number: int = 0

    @property
    def port(self) -> int:
        """Return the port, 0 for any free one."""
        if self.rendezvous_port == 0 or self.number == 0:
            return self.rendezvous_port
        port = self.rendezvous_port + 1 + (self.number - 1) % RESTART_PORTS
        return port if port < _PORTS else 0

    def open(self) -> TCPStore:
        """Serve the store, on any free port if another program uses this one."""
        if self.port != 0 and self.number == 0:  # the rendezvous serves it
            return _tcp_store(self.address, self.port, serve=False)
        try:
            return _tcp_store(self.address, self.port, serve=True)
        except RuntimeError:
            return _tcp_store(self.address, 0, serve=True)


class NodeArrival(msgspec.Struct, frozen=True):
    """What a node that joins reports: its number of workers, its count of restarts, its state."""

    workers: int
    restarts: int
    state: str = ""


class _Announcement(msgspec.Struct, frozen=True):
    address: str
    port: int
    workers: int
    restarts: int
    state: str


def join_generation(
    rendezvous: Store,
    prefix: str,
    *,
    node: int,
    nodes: int,
    endpoint: StoreEndpoint,
    arrival: NodeArrival,
) -> JoinedGeneration:
    """Create (node 0) or connect to (others) the next generation's store; blocks until all arrived.

    ``prefix`` is unique to the generation within ``rendezvous``; node 0 uses ``endpoint``. The
    nodes agree on the highest count of restarts, and on the state of that node: counts differ after
    nodes joined or left.
    """
    if node != 0:
        rendezvous.set(f"{prefix}/arrived/{node}", msgspec.json.encode(arrival).decode())
        found = msgspec.json.decode(rendezvous.get(f"{prefix}/store"), type=_Announcement)
        store = _tcp_store(found.address, found.port, serve=False)
        return JoinedGeneration(
            store, found.address, found.port, found.workers, found.restarts, found.state
        )
    others = (rendezvous.get(f"{prefix}/arrived/{other}") for other in range(1, nodes))
    arrivals = [arrival, *(msgspec.json.decode(text, type=NodeArrival) for text in others)]
    agreed = max(arrivals, key=lambda each: (each.restarts, len(each.state)))
    store, address = endpoint.open(), endpoint.address
    clear_board(store, nodes)
    announcement = _Announcement(
        address, store.port, arrival.workers, agreed.restarts, agreed.state
    )
    rendezvous.set(f"{prefix}/store", msgspec.json.encode(announcement).decode())
    return JoinedGeneration(
        store, address, store.port, arrival.workers, agreed.restarts, agreed.state
    )


def clear_board(store: Store, nodes: int) -> None:
    """Write empty texts for all nodes of a new generation: reading waits for missing keys."""
    topics = (_key(topic, node) for topic in TOPICS for node in range(nodes))
    for key in ("order", _QUESTION, _ANSWER, *topics):
        store.set(key, _EMPTY)
    store.set(_CHANGES, _NO_CHANGES)


def _tcp_store(address: str, port: int, *, serve: bool) -> TCPStore:
    timeout = timedelta(seconds=STORE_TIMEOUT_S)
    return TCPStore(address, port, is_master=serve, wait_for_workers=False, timeout=timeout)


def _read(store: Any, keys: Sequence[str]) -> dict[str, str]:
    return dict(zip(keys, (text.decode() for text in store.multi_get(keys)), strict=True))


def _key(topic: str, node: int) -> str:
    return f"holdfast/{topic}/{node}"
