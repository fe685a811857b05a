"""What the copies say to each other, one structure a message; unknown kinds and wrong types are refused by msgspec."""

from __future__ import annotations

import msgspec

from holdfast.facts.reach import Approach, Copy, Crossing, HostReport, Link, Naming, Present, Stranger

# ---- from whoever leads


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """First word after the handshake: the key of the copy that leads, and its version of holdfast."""

    key: str
    version: str = ""


class Waiting(msgspec.Struct, frozen=True, tag="waiting"):
    """A sign of life, once a second: how many came, of how many."""

    came: int
    of: int


class Roster(msgspec.Struct, frozen=True, tag="roster"):
    """Who came, ``number`` being the reader's own place; ``word`` is what doors ask for before they answer.

    Of how the others came, and of their interfaces, nothing is told: with a thousand hosts that alone is much.
    """

    word: str
    number: int
    present: tuple[Present, ...]


class TellClock(msgspec.Struct, frozen=True, tag="tell-clock"):
    """Answer at once with the time of your clock."""


class Meet(msgspec.Struct, frozen=True, tag="meet"):
    """Go to every door of every other copy."""


class Report(msgspec.Struct, frozen=True, tag="report"):
    """Tell what your host is."""


class Measure(msgspec.Struct, frozen=True, tag="measure"):
    """Measure the link to this copy."""

    target: int


class Outcome(msgspec.Struct, frozen=True, tag="outcome"):
    """What was judged, the same for all; it is the last message."""

    content: bytes


# ---- to whoever leads


class Join(msgspec.Struct, frozen=True, tag="join"):
    """First word of a copy: what it is, how it came, and the ports at which it answers probes."""

    copy: Copy
    approach: Approach
    door: int
    ranged: tuple[int, ...]


class MyClock(msgspec.Struct, frozen=True, tag="my-clock"):
    """Unix time in seconds."""

    time: float


class Met(msgspec.Struct, frozen=True, tag="met"):
    """Which of the doors that were ``tried`` did not open, and what the others' names mean here."""

    crossings: tuple[Crossing, ...]
    tried: int
    namings: tuple[Naming, ...]


class Reported(msgspec.Struct, frozen=True, tag="reported"):
    """What this host is."""

    report: HostReport


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """A link."""

    link: Link


class _StrangersJoin(msgspec.Struct, frozen=True, tag="join"):
    copy: Stranger = Stranger()


FromLeader = Welcome | Waiting | Roster | TellClock | Meet | Report | Measure | Outcome
ToLeader = Join | MyClock | Met | Reported | Measured

encode = msgspec.json.Encoder().encode
from_leader: msgspec.json.Decoder[FromLeader] = msgspec.json.Decoder(FromLeader)
_strangers_join = msgspec.json.Decoder(_StrangersJoin)
to_leader: msgspec.json.Decoder[ToLeader] = msgspec.json.Decoder(ToLeader)


def joined(payload: bytes) -> Join | Stranger:
    """The first word of a copy, as far as it can be understood.

    Raises:
        msgspec.DecodeError: it is no first word, of no version.
    """
    try:
        return msgspec.json.decode(payload, type=Join)
    except msgspec.ValidationError:
        return _strangers_join.decode(payload).copy
