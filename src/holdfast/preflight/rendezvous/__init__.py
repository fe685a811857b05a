"""Rendezvous of several hosts before a job, and probes of every pair of hosts.

Observes, never judges.

The peers (one ``holdfast check`` process per host) meet at the job's own endpoint
(:mod:`.rendezvous`). The peer that listens there leads (:mod:`.leader`); the others are members
(:mod:`.member`). How a peer reached the endpoint is an :class:`EndpointAccess`; all results
together are :class:`Observations`. Needs neither torch nor root.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.core.findings import Unknown


class ConnectOutcome(StrEnum):
    """How an attempt to connect ended.

    ``REJECTED``: a host or router sent an ICMP error. ``REFUSED``: the host reset the connection:
    no listener, or a firewall that resets. ``NO_HOST``: no host has this address.
    ``FOREIGN_SERVICE``: another service answered. ``INCOMPATIBLE``: a peer of another job, token or
    protocol answered. ``STALLED``: small messages pass and a large one does not.
    """

    OPEN = "open"
    REFUSED = "refused"
    REJECTED = "rejected"
    TIMED_OUT = "no answer"
    NO_HOST = "no host"
    NO_ROUTE = "no route"
    FOREIGN_SERVICE = "foreign service"
    INCOMPATIBLE = "incompatible peer"
    STALLED = "stalled"
    FAILED = "failed"


class ProtocolMismatch(Unknown, frozen=True):
    """This peer and the leader run another ``version`` of holdfast, or another command."""

    version: str = ""


class ConnectAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to connect; ``by``: the address that sent the ICMP error, if any."""

    address: str
    port: int
    outcome: ConnectOutcome
    elapsed_s: float = 0.0
    detail: str = ""
    by: str = ""


class InterfaceAddress(msgspec.Struct, frozen=True):
    """An interface that is up, one of its addresses, and its MTU in bytes."""

    name: str
    address: str
    mtu: int


class PublishedAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of this host that ``library`` (gloo, NCCL) publishes to its peers, and why."""

    library: str
    address: str | Unknown
    interface: str = ""
    why: str = ""


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One peer's description of itself; ``node``: its node rank, None if unknown.

    ``key`` identifies it. ``endpoint``: as specified by the user. ``machine``: equal for peers on
    one host. ``name``: the host's full name, which torchrun's c10d rendezvous publishes.
    ``devices``: it has GPUs. ``names``: the names of all nodes by rank, if a scheduler provides
    them.
    """

    key: str
    node: int | None
    nodes: int
    host: str
    name: str
    machine: str
    version: str
    endpoint: str
    interfaces: tuple[InterfaceAddress, ...] = ()
    published: tuple[PublishedAddress, ...] = ()
    devices: bool = False
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Return its name for messages."""
        return f"{self.host} (node {self.node})" if self.node is not None else self.host


class EndpointAccess(msgspec.Struct, frozen=True, kw_only=True):
    """How a peer reached the endpoint: name resolution, route, and connection attempts.

    ``owned``: the address belongs to this host. ``source``: the local address of the route.
    ``main`` is the attempt at the endpoint, ``side`` those at other ports of the leader. ``bound``:
    "listening", or why this peer could not listen at the endpoint; empty if not tried.
    """

    host: str
    port: int
    addresses: tuple[str, ...] | Unknown
    resolve_s: float = 0.0
    owned: bool = False
    source: str = ""
    interface: str = ""
    main: ConnectAttempt | None = None
    side: tuple[ConnectAttempt, ...] = ()
    bound: str = ""


class Participant(msgspec.Struct, frozen=True, kw_only=True):
    """A peer that joined; ``number``: its index in the roster. ``seen_as``: its source address.

    ``probe_port``: the port on which it answers probes; ``range_ports``: those of the job's port
    range on which it answers too.
    """

    number: int
    peer: Peer
    access: EndpointAccess
    seen_as: str = ""
    probe_port: int = 0
    range_ports: tuple[int, ...] = ()
    leads: bool = False


class IncompatiblePeer(msgspec.Struct, frozen=True):
    """A peer of another version of holdfast: all that could be decoded of its first message."""

    version: str = "unknown"
    host: str = "a host"
    node: int | None = None

    @property
    def label(self) -> str:
        """Return its name for messages."""
        return f"{self.host} (node {self.node})" if self.node is not None else self.host


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a probe from peer ``source`` to peer ``target`` (their numbers).

    ``purpose``: ``data`` (the address used for the rendezvous), ``range`` (a port of the job's port
    range), or the library that publishes the address (gloo, NCCL).
    """

    source: int
    target: int
    purpose: str
    attempt: ConnectAttempt


class EndpointLookup(msgspec.Struct, frozen=True, kw_only=True):
    """The addresses to which the full name of ``target`` resolves on ``source``."""

    source: int
    target: int
    name: str
    addresses: tuple[str, ...] | Unknown


class LinkMeasurement(msgspec.Struct, frozen=True, kw_only=True):
    """A measured pair: minimum round trip in seconds and bytes/s in both directions.

    ``outcome`` and ``detail`` describe a failure.
    """

    source: int
    target: int
    round_trip_s: float | None = None
    forth: float | None = None
    back: float | None = None
    outcome: ConnectOutcome = msgspec.field(default=ConnectOutcome.OPEN, name="fate")
    detail: str = ""


class ClockOffset(msgspec.Struct, frozen=True):
    """How far a peer's clock is ahead of the leader's, in seconds, ± ``within_s``."""

    number: int
    ahead_s: float
    within_s: float


class PeerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One host's check results (name -> JSON), variables, and Unix time by its own clock.

    ``judged`` holds the JSON of its own findings. ``workers``: its number of smoke-test processes.
    """

    host: str
    at: float = 0.0
    results: dict[str, msgspec.Raw] = {}
    judged: msgspec.Raw = msgspec.Raw(b"[]")
    workers: int = 1
    environ: dict[str, str] = {}


class Observations(msgspec.Struct, frozen=True, kw_only=True):
    """Everything observed on and between all hosts; ``lost``: number -> why a peer disappeared.

    ``waited_s``: how long the leader waited for missing peers. ``failed_probes``: those of
    ``probe_count`` probes that failed. ``unmeasured``: number of pairs that were not measured in
    time.
    """

    nodes: int
    waited_s: float
    participants: tuple[Participant, ...]
    incompatible: tuple[IncompatiblePeer, ...] = ()
    failed_probes: tuple[ProbeResult, ...] = ()
    probe_count: int = 0
    lookups: tuple[EndpointLookup, ...] = ()
    links: tuple[LinkMeasurement, ...] = ()
    clocks: tuple[ClockOffset, ...] = ()
    reports: dict[int, PeerReport] = {}
    lost: dict[int, str] = {}
    rounds: int = 0
    unmeasured: int = 0
