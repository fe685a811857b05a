"""Messages between peers, one struct each; msgspec rejects unknown kinds and wrong types."""

from __future__ import annotations

import msgspec

from holdfast.preflight.rendezvous import (
    EndpointAccess,
    EndpointLookup,
    IncompatiblePeer,
    LinkMeasurement,
    Participant,
    Peer,
    PeerReport,
    ProbeResult,
)

# ---- from the leader


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """First message after the handshake: the leader's key and its version of holdfast."""

    key: str
    version: str = ""


class Heartbeat(msgspec.Struct, frozen=True, tag="waiting"):
    """Sent once a second: how many peers joined, of how many."""

    joined: int
    expected: int


class Roster(msgspec.Struct, frozen=True, tag="roster"):
    """All participants; ``number`` is the recipient's index, ``word`` the secret of probes.

    Endpoint access and interfaces are omitted: with a thousand hosts they would be large.
    """

    word: str
    number: int
    participants: tuple[Participant, ...]


class ReadClock(msgspec.Struct, frozen=True, tag="tell-clock"):
    """Reply at once with the time of your clock."""


class ProbePeers(msgspec.Struct, frozen=True, tag="meet"):
    """Probe every port of every other peer."""


class SendReport(msgspec.Struct, frozen=True, tag="report"):
    """Send your host's report."""


class MeasureLink(msgspec.Struct, frozen=True, tag="measure"):
    """Measure the link to this peer."""

    target: int


class FinalResult(msgspec.Struct, frozen=True, tag="outcome"):
    """The result, the same for all peers; the last message."""

    content: bytes


# ---- to the leader


class Join(msgspec.Struct, frozen=True, tag="join"):
    """First message of a peer: its description and the ports on which it answers probes."""

    peer: Peer = msgspec.field(name="copy")  # the name is part of the protocol
    access: EndpointAccess
    probe_port: int
    range_ports: tuple[int, ...]


class ClockReply(msgspec.Struct, frozen=True, tag="my-clock"):
    """Unix time in seconds."""

    time: float


class ProbesDone(msgspec.Struct, frozen=True, tag="met"):
    """The failed probes of ``probe_count``, and the other peers' names as resolved here."""

    failed_probes: tuple[ProbeResult, ...]
    probe_count: int
    lookups: tuple[EndpointLookup, ...]


class ReportReply(msgspec.Struct, frozen=True, tag="reported"):
    """The report of this host."""

    report: PeerReport


class LinkReply(msgspec.Struct, frozen=True, tag="measured"):
    """A measured link."""

    link: LinkMeasurement


class _IncompatibleJoin(msgspec.Struct, frozen=True, tag="join"):
    copy: IncompatiblePeer = IncompatiblePeer()


FromLeader = (
    Welcome | Heartbeat | Roster | ReadClock | ProbePeers | SendReport | MeasureLink | FinalResult
)
ToLeader = Join | ClockReply | ProbesDone | ReportReply | LinkReply

encode = msgspec.json.Encoder().encode
from_leader: msgspec.json.Decoder[FromLeader] = msgspec.json.Decoder(FromLeader)
_incompatible_join = msgspec.json.Decoder(_IncompatibleJoin)
to_leader: msgspec.json.Decoder[ToLeader] = msgspec.json.Decoder(ToLeader)


def decode_join(payload: bytes) -> Join | IncompatiblePeer:
    """Decode the first message of a peer as far as possible.

    Raises:
        msgspec.DecodeError: it is not a join message of any version.
    """
    try:
        return msgspec.json.decode(payload, type=Join)
    except msgspec.ValidationError:
        return _incompatible_join.decode(payload).copy
