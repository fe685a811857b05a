"""Messages between the agent and the watcher of a node: JSON lines, tagged by ``kind``.

Requests go from the agent to the watcher, replies the other way. A message of an unknown kind or
with fields of the wrong type is dropped; the receiver logs one line for it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from holdfast.core.failures import JobState
from holdfast.core.findings import Verdict


class DumpLocation(msgspec.Struct, frozen=True):
    """Absolute prefixes of the names of pipe and dump: torch's two variables for this rank."""

    pipe: str
    dump: str


class WatchedWorker(msgspec.Struct, frozen=True):
    """A local rank: process id, path of its trace file, and where its flight recorder dumps to."""

    rank: int
    pid: int
    trace: str
    dumps: DumpLocation | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", omit_defaults=True):
    """Base class of all messages."""


class StartWatching(Message, frozen=True, tag="start"):
    """A generation started: its workers on this node, and the whole job.

    ``run_dir`` is absolute. ``agent`` identifies the agent among all nodes. ``limits_file`` stores
    the learned time limits of ``job``. ``launch_options`` and ``script`` (with its arguments) are
    the user's words, for the commands of remedies. ``address`` and ``port`` are those of the
    rendezvous. ``leader_workers`` is the number of workers of node 0, which have the lowest ranks.
    ``may_restart``: a failure of this generation may be followed by another generation.
    """

    generation: int
    run_dir: str
    node: int
    nodes: int
    leader: bool
    world_size: int
    workers: tuple[WatchedWorker, ...]
    agent: str = ""
    exclude_stragglers: bool = False
    limits_file: str = ""
    job: str = ""
    launch_options: tuple[str, ...] = ()
    script: tuple[str, ...] = ()
    address: str = ""
    port: int = 0
    leader_workers: int = 1
    may_restart: bool = True


class WorkerExits(Message, frozen=True, tag="exits"):
    """Exit codes by rank; negative: ended by that signal."""

    codes: dict[int, int]


class PeerSummaries(Message, frozen=True, tag="summaries"):
    """The newest encoded summary of each other node, by node number."""

    summaries: dict[int, str]


class LeaderContact(Message, frozen=True, tag="leader"):
    """On a node that does not lead: for how long the leader's node has not answered."""

    silent_s: float


class StopWatching(Message, frozen=True, tag="stop"):
    """All workers of the generation have ended."""


class JudgeNow(Message, frozen=True, tag="judge"):
    """Workers failed: return a verdict at once."""


class StackQuestion(Message, frozen=True, tag="stack-question"):
    """Somebody who watches the job asks where a rank is; from its leader to the rank's node."""

    rank: int
    nonce: str


class StackAnswer(Message, frozen=True, tag="stack-answer"):
    """The frames of that rank, innermost first, or why there are none."""

    nonce: str
    frames: tuple[str, ...] = ()
    why: str = ""


class ProgressNote(Message, frozen=True, tag="note"):
    """A line to print."""

    text: str


class HangSuspected(Message, frozen=True, tag="suspicion"):
    """A hang that may still resolve by itself, and the verdict about it so far."""

    text: str
    verdict: Verdict


class SuspicionWithdrawn(Message, frozen=True, tag="withdrawal"):
    """The job advanced after a suspicion."""

    text: str


class RankWarning(Message, frozen=True, tag="warning"):
    """A problem that a rank reported while the job continues."""

    rank: int
    about: str
    text: str


class NodeSummary(Message, frozen=True, tag="summary"):
    """The encoded summary of this node, for the leader."""

    summary: str


class VerdictReport(Message, frozen=True, tag="verdict"):
    """A verdict, with the state of the job when it was reached.

    ``stuck`` ranks ignore SIGTERM, ``stopped`` ranks are in process state T. ``html`` and
    ``folder`` are the page and the folder of the incident. ``detected_s``: seconds without progress
    until the verdict.
    """

    generation: int
    hang: bool
    verdict: Verdict
    stuck: tuple[int, ...] = ()
    stopped: tuple[int, ...] = ()
    html: str | None = None
    folder: str | None = None
    detected_s: float | None = None
    job: JobState = JobState()


Request = (
    StartWatching
    | WorkerExits
    | PeerSummaries
    | LeaderContact
    | StopWatching
    | JudgeNow
    | StackQuestion
    | StackAnswer
)
Reply = (
    ProgressNote
    | HangSuspected
    | SuspicionWithdrawn
    | RankWarning
    | NodeSummary
    | VerdictReport
    | StackQuestion
    | StackAnswer
)


_Message = TypeVar("_Message")


class UndecodableMessage(ValueError):
    """A line is not a message: not JSON, of an unknown kind, or with a field of another type."""


def encode_message(message: Message) -> bytes:
    """Return the message as one line, with the line break."""
    return msgspec.json.encode(message) + b"\n"


def decode_request(line: bytes) -> Request:
    """Decode a line from the agent. Raises UndecodableMessage."""
    return _decode(line, _REQUESTS)


def decode_reply(line: bytes) -> Reply:
    """Decode a line from the watcher. Raises UndecodableMessage."""
    return _decode(line, _REPLIES)


_REQUESTS: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_REPLIES: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)


def _decode(line: bytes, decoder: msgspec.json.Decoder[_Message]) -> _Message:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableMessage(f"ignored a message ({error}): {line[:80]!r}") from error
