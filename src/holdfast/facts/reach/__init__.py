"""Several hosts before a job: can they find each other, and can every one talk to every other? It looks, never judges.

The copies of ``holdfast check``, one a host, meet at the job's own endpoint (:mod:`.meeting`). Whoever listens there
leads (:mod:`.leader`), the others do as it says (:mod:`.member`). What a copy saw on its way is an :class:`Approach`,
what all of them saw together :class:`Gathered`. Needs neither torch nor root.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from holdfast.findings import Unknown


class Fate(StrEnum):
    """How an attempt to connect ended.

    ``REJECTED``: a host or router said no by ICMP. ``REFUSED``: the host itself reset it, which a listener that is not
    there and a firewall that resets look like. ``NOBODY``: no host has this address. ``FOREIGN``: something answers
    that is not this command, ``STRANGER``: this command, of another job or with another token. ``STALLED``: small
    messages pass and a large one does not.
    """

    OPEN = "open"
    REFUSED = "refused"
    REJECTED = "rejected"
    SILENT = "silent"
    NOBODY = "nobody"
    NO_ROUTE = "no route"
    FOREIGN = "foreign"
    STRANGER = "stranger"
    STALLED = "stalled"
    FAILED = "failed"


class NotUnderstood(Unknown, frozen=True):
    """This host and whoever leads do not understand each other: of another ``version``, or another command."""

    version: str = ""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to reach ``address``:``port``. ``by``: the address that sent the ICMP error, where one came."""

    address: str
    port: int
    fate: Fate
    elapsed_s: float = 0.0
    detail: str = ""
    by: str = ""


class Interface(msgspec.Struct, frozen=True):
    """An interface that is up, with one address of it and its MTU in bytes."""

    name: str
    address: str
    mtu: int


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """An address that ``who`` (gloo, NCCL) of this host gives to its peers, and why it is this one."""

    who: str
    address: str | Unknown
    interface: str = ""
    why: str = ""


class Copy(msgspec.Struct, frozen=True, kw_only=True):
    """What one copy of the command knows of itself. ``node``: None where nobody told it.

    ``endpoint``: as it was given. ``machine``: equal for copies on one host. ``name``: what the host calls itself in
    full, which torchrun's c10d gives to the others. ``key`` tells copies apart. ``devices``: it has GPUs.
    ``names``: of all nodes by rank, where a scheduler said them.
    """

    key: str
    node: int | None
    nodes: int
    host: str
    name: str
    machine: str
    version: str
    endpoint: str
    interfaces: tuple[Interface, ...] = ()
    published: tuple[Published, ...] = ()
    devices: bool = False
    names: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What it is called in sentences."""
        return f"{self.host} (node {self.node})" if self.node is not None else self.host


class Approach(msgspec.Struct, frozen=True, kw_only=True):
    """A copy's way to the endpoint. ``owned``: this host has the address. ``source``: from which address it goes there.

    ``main`` is the endpoint itself, ``side`` are other ports on which whoever leads listens too. ``bound`` says how
    listening at the endpoint went (``listening``, or why not), empty where it was not tried.
    """

    host: str
    port: int
    addresses: tuple[str, ...] | Unknown
    resolve_s: float = 0.0
    owned: bool = False
    source: str = ""
    interface: str = ""
    main: Attempt | None = None
    side: tuple[Attempt, ...] = ()
    bound: str = ""


class Present(msgspec.Struct, frozen=True, kw_only=True):
    """A copy that came, and how. ``number``: its place in the roster. ``seen_as``: the address it came from.

    ``doors``: the ports on which it answers probes, and ``ranged``: those of the job's port range among them.
    """

    number: int
    copy: Copy
    approach: Approach
    seen_as: str = ""
    door: int = 0
    ranged: tuple[int, ...] = ()
    leads: bool = False


class Stranger(msgspec.Struct, frozen=True):
    """A copy of another version of holdfast that came, and of whose words only these were understood."""

    version: str = "unknown"
    host: str = "a host"
    node: int | None = None

    @property
    def label(self) -> str:
        """What it is called in sentences."""
        return f"{self.host} (node {self.node})" if self.node is not None else self.host


class Crossing(msgspec.Struct, frozen=True, kw_only=True):
    """What copy ``source`` met when it went to an address and port of copy ``target`` (their numbers).

    ``purpose``: ``data`` (the address through which the hosts met), ``range`` (a port of the job's range), or the
    name of who publishes this address (gloo, NCCL).
    """

    source: int
    target: int
    purpose: str
    attempt: Attempt


class Naming(msgspec.Struct, frozen=True, kw_only=True):
    """What the name by which ``target`` calls itself means on ``source``."""

    source: int
    target: int
    name: str
    addresses: tuple[str, ...] | Unknown


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A pair measured: least round trip in seconds, bytes a second in both directions, or how it failed (``fate``)."""

    source: int
    target: int
    round_trip_s: float | None = None
    forth: float | None = None
    back: float | None = None
    fate: Fate = Fate.OPEN
    detail: str = ""


class Clock(msgspec.Struct, frozen=True):
    """How far a copy's clock is ahead of the leader's, in seconds, give or take ``within_s``."""

    number: int
    ahead_s: float
    within_s: float


class HostReport(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen on one host: the looks of all checks (name -> JSON), its variables, and when, by its own clock.

    ``judged`` is what its own rules made of the looks, as the action writes and reads it. ``workers``: processes that
    it brings into the small job.
    """

    host: str
    at: float = 0.0
    looks: dict[str, msgspec.Raw] = {}
    judged: msgspec.Raw = msgspec.Raw(b"[]")
    workers: int = 1
    environ: dict[str, str] = {}


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """All that was seen from all hosts. ``lost``: number -> why a copy fell silent after it had come.

    ``strangers``: those that came and could not be understood.
    ``waited_s``: how long the leader waited for those that are missing. ``crossings``: those of ``tried`` that failed.
    ``unmeasured``: pairs for which time was short.
    """

    nodes: int
    waited_s: float
    present: tuple[Present, ...]
    strangers: tuple[Stranger, ...] = ()
    crossings: tuple[Crossing, ...] = ()
    tried: int = 0
    namings: tuple[Naming, ...] = ()
    links: tuple[Link, ...] = ()
    clocks: tuple[Clock, ...] = ()
    reports: dict[int, HostReport] = {}
    lost: dict[int, str] = {}
    rounds: int = 0
    unmeasured: int = 0
