"""Every error that holdfast raises on purpose, as one tree::

    HoldfastError
    ├── UsageError                 the user's mistakes: change the command or the input
    │   ├── UnknownName            an unknown preset, fault, command or cause; lists similar names
    │   ├── InvalidValue           an option, variable or document with an invalid value
    │   ├── MissingFile            a script, folder or file that does not exist
    │   ├── NoJob                  no running training process matches
    │   ├── SeveralJobs            several training jobs match, where one is required
    │   ├── CheckpointMismatch     a checkpoint of another model or optimizer
    │   ├── CollectiveMismatch     ranks of a group made different calls or used different tensors
    │   └── MissingExtra           an optional dependency, or torch itself, is not installed
    ├── WorldError                 the environment: the command was right; machine or network failed
    │   ├── RendezvousUnreachable  the job's store cannot be reached
    │   ├── HostUnfit              a host that failed the health gate
    │   ├── PeerUnreachable        the leading `attach` process of the job cannot be reached
    │   ├── SubmissionRefused      a scheduler refused a job, or does not answer
    │   ├── CollectiveTimeout      ranks did not enter a collective within its timeout
    │   ├── CollectiveFailed       a collective failed on a rank: a peer died or the backend failed
    │   ├── RanksOutOfSync         ranks are at different steps, or hold different parameters
    │   ├── LossNotFinite          the loss became NaN or infinite
    │   ├── LossSpike              the loss rose far above its median
    │   ├── GroupBroken            a process group in which a call failed; it is not used again
    │   ├── ShmUnavailable         shared memory (or the trace folder) missing, full or not writable
    │   ├── StackRefused           the stack of a process cannot be read
    │   ├── TraceUnreadable        a file that is not a complete trace file
    │   │   ├── TraceTruncated     truncated
    │   │   ├── TraceVersion       written by another version of holdfast
    │   │   └── TraceCorrupt       has no trace header, or contradicts itself
    │   ├── CheckpointUnreadable   a folder that is not a checkpoint, or a damaged checkpoint
    │   │   └── CheckpointVersion  written by a newer version of holdfast
    │   ├── StorageUnusable        checkpoint storage (folder, bucket, memory) cannot be used
    │   ├── CheckpointFailed       a checkpoint could not be saved or loaded; earlier ones are kept
    │   ├── HistoryUnusable        the history store cannot be read or written
    │   ├── SnapshotUnreadable     not a complete GPU memory snapshot, or too large
    │   └── DumpUnreadable         not a complete dump of torch's flight recorder
    │       ├── DumpTruncated      truncated, or still being written
    │       ├── DumpVersion        written in an unsupported format version
    │       └── DumpCorrupt        not a dump, too large, or contains more than plain data
    └── InternalError              our bugs: a state that the code rules out

Each error is constructed with its subject (a name, a path, an address) and builds one sentence:
what happened, why, and what to do next. The command line prints that sentence on stderr and exits
with ``exit_status``; only bugs of holdfast print a traceback.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence


class HoldfastError(Exception):
    """Base of all errors of holdfast: ``what`` happened to ``subject``, ``why``, and ``next_step``.

    A subclass sets the three texts as class attributes; ``{subject}`` in them is replaced. ``why``
    and ``next_step`` passed to the constructor override those of the class.
    """

    what: str = "{subject}"
    why: str = ""
    next_step: str = ""
    exit_status: int = 3

    def __init__(
        self, subject: object, *, why: str | None = None, next_step: str | None = None
    ) -> None:
        super().__init__(subject)
        self.subject = str(subject)
        if why is not None:
            self.why = why
        if next_step is not None:
            self.next_step = next_step

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle independently of the constructor's signature: errors travel between ranks."""
        return _unpickle, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        sentence = self.what.replace("{subject}", self.subject)
        for mark, part in ((": ", self.why), ("; ", self.next_step)):
            if part:
                sentence += mark + part.replace("{subject}", self.subject)
        return " ".join(sentence.split())


class UsageError(HoldfastError):
    """The user's mistake: change the command line, the environment or an input file."""

    exit_status = 2


class UnknownName(UsageError):
    """``name`` is not a known ``kind``. ``near`` holds similar known names, best match first."""

    what = "{subject}"

    def __init__(
        self, kind: str, name: str, known: Iterable[str], *, next_step: str | None = None
    ) -> None:
        import difflib  # noqa: PLC0415 - not in every worker

        choices = sorted(known)
        near = difflib.get_close_matches(
            name.casefold(), [choice.casefold() for choice in choices], n=3, cutoff=0.6
        )
        self.near = [choice for match in near for choice in choices if choice.casefold() == match]
        hint = (
            f"did you mean {_join_names(self.near, 'or')}?"
            if self.near
            else f"choose from {_join_names(choices, 'and')}"
        )
        shown = name if kind == "option" else repr(name)
        super().__init__(f"unknown {kind} {shown}", next_step=next_step or hint)
        self.args = (kind, name, tuple(choices))


class InvalidValue(UsageError):
    """The subject, an option, variable or document, has an invalid value.

    ``why`` explains the error.

    A subject that begins with "the" names what is invalid itself: "the fault 'x'" is shown as
    "invalid fault 'x'", other subjects as "invalid value for --window".
    """

    what = "invalid value for {subject}"

    def __init__(
        self, subject: object, *, why: str | None = None, next_step: str | None = None
    ) -> None:
        super().__init__(subject, why=why, next_step=next_step)
        if self.subject.startswith("the "):
            self.what, self.subject = "invalid {subject}", self.subject.removeprefix("the ")


class MissingFile(UsageError):
    """A file or folder named by the user does not exist, or is of the wrong kind."""

    what = "cannot open {subject}"
    why = "there is no such file"
    next_step = "check the path; it is relative to the current folder"


class NoJob(UsageError):
    """No training process matches the subject, a search."""

    what = "no training job found by {subject}"
    next_step = (
        "run this on a host of the job, as its user or root; name a process with --pid if needed"
    )


class SeveralJobs(UsageError):
    """The subject lists several jobs, but only one can be inspected."""

    what = "several training jobs run here: {subject}"
    next_step = "choose one with --pid, --name or --port"


class MissingExtra(UsageError):
    """The subject, a required package, is not installed. holdfast never installs torch itself."""

    what = "{subject} is not installed in this environment"

    def __init__(
        self, subject: object, *, why: str | None = None, next_step: str | None = None
    ) -> None:
        step = next_step or f"install it with: pip install {shlex.quote(str(subject))}"
        super().__init__(subject, why=why, next_step=step)
        if self.subject == "torch":
            self.what = "PyTorch is not installed in this environment"


class WorldError(HoldfastError):
    """The command was right, but the machine, the network or another process failed."""


class RendezvousUnreachable(WorldError):
    """The store through which a job's nodes rendezvous does not answer at the subject, an address.

    Not raised when the store answers but too few nodes join: that is the rendezvous' own timeout.
    """

    what = "cannot reach the rendezvous at {subject}"
    why = "no answer"
    next_step = (
        "check --rdzv-endpoint (or --master-addr and --master-port), "
        "and that node 0 is up and its port open"
    )


class HostUnfit(WorldError):
    """The health gate found the subject, a host, in a state in which the job would fail on it.

    The exit status is that of a failed job, so that a scheduler restarts it elsewhere.
    """

    what = "{subject} is excluded from the job"
    next_step = "run `holdfast check` for details; --no-gate starts the job there anyway"
    exit_status = 1


class PeerUnreachable(WorldError):
    """The leading ``holdfast attach`` process, on the subject (a host), cannot be reached."""

    what = "cannot send this node's data to {subject}"
    next_step = (
        "check that `holdfast attach` runs there and that nodes can connect to each other, "
        "or run `holdfast attach --hosts`"
    )


class SubmissionRefused(WorldError):
    """The subject, a scheduler, refused a job, with its own reason; nothing was started."""

    what = "{subject} refused the job"
    next_step = "change the options of `holdfast submit`, or write the file with --write FILE"
    exit_status = 2


class CheckpointMismatch(UsageError):
    """The subject, a checkpoint or a part of it, does not match the job; nothing was loaded."""

    what = "{subject} does not match"
    next_step = (
        "use the model and optimizer that were saved, or load the common part with strict=False"
    )


class CollectiveMismatch(UsageError):
    """``odd`` holds the global ranks whose call differs from the majority; empty where unknown."""

    what = "{subject} is not the same on all ranks"
    next_step = (
        "make the same calls, with the same shapes and dtypes, on every rank; create a new group"
    )

    def __init__(self, subject: object, *, why: str | None = None, odd: Sequence[int] = ()) -> None:
        super().__init__(subject, why=why)
        self.odd = tuple(odd)


class CollectiveTimeout(WorldError):
    """``missing`` holds the global ranks that did not enter the call; empty where unknown."""

    what = "{subject} did not complete"
    next_step = "inspect the stacks of the missing ranks: holdfast attach"

    def __init__(
        self, subject: object, *, why: str | None = None, missing: Sequence[int] = ()
    ) -> None:
        super().__init__(subject, why=why)
        self.missing = tuple(missing)


class CollectiveFailed(WorldError):
    """The call itself failed; its group is not used again."""

    what = "{subject} failed"
    next_step = "find the rank that died first; this group is not used again"


class RanksOutOfSync(WorldError):
    """``odd`` holds the global ranks that differ from the majority."""

    what = "the ranks of {subject} are not in lockstep"
    next_step = (
        "start all ranks from one checkpoint; a rank that skips a step or batch must announce it"
    )

    def __init__(self, subject: object, *, why: str | None = None, odd: Sequence[int] = ()) -> None:
        super().__init__(subject, why=why)
        self.odd = tuple(odd)


class LossNotFinite(WorldError):
    """The mean loss over all ranks was NaN or infinite in steps ``first`` to ``last``.

    On all ranks.
    """

    what = "the loss is not finite: {subject}"
    next_step = (
        "resume from a checkpoint before that step (`holdfast run` does), and skip that batch"
    )

    def __init__(
        self, subject: object, *, why: str | None = None, first: int = 0, last: int = 0
    ) -> None:
        super().__init__(subject, why=why)
        self.first, self.last = first, last


class LossSpike(WorldError):
    """The mean loss of all ranks rose far above its median in steps ``first`` to ``last``."""

    what = "the loss jumped: {subject}"
    next_step = (
        "resume from a checkpoint before that step (`holdfast run` does), and skip those batches"
    )

    def __init__(
        self, subject: object, *, why: str | None = None, first: int = 0, last: int = 0
    ) -> None:
        super().__init__(subject, why=why)
        self.first, self.last = first, last


class GroupBroken(WorldError):
    """A call was made in a group in which an earlier call timed out or failed.

    The ranks of such a group may be at different calls.
    """

    what = "process group {subject} is not used again"
    next_step = "create a new group on every rank"


class ShmUnavailable(WorldError):
    """A trace file cannot be created at the subject, a path."""

    what = "cannot create the trace file {subject}"
    next_step = (
        "enlarge /dev/shm (containers: --shm-size); otherwise holdfast uses the run's folder"
    )


class StackRefused(WorldError):
    """The stack of the subject, a process id, could not be read from outside.

    Not raised for a process that has ended: its exit status is reported instead.
    """

    what = "cannot read the stack of process {subject}"
    why = "this machine does not permit ptrace"
    next_step = (
        "permit it (kernel.yama.ptrace_scope=0, or SYS_PTRACE for a container), "
        "or let the recorder write the stack"
    )


class CheckpointUnreadable(WorldError):
    """The subject, a folder, is not a valid checkpoint."""

    what = "cannot use the checkpoint {subject}"
    next_step = "move it away and use the previous one"
    exit_status = 2


class CheckpointVersion(CheckpointUnreadable):
    """The manifest's format version is not supported by this holdfast."""

    next_step = "load it with the version of holdfast that wrote it, or a newer one"


class CheckpointFailed(WorldError):
    """The subject (saving, loading or converting a checkpoint) failed; in a job, on all ranks."""

    what = "{subject} failed"
    next_step = "earlier checkpoints are unchanged"


class StorageUnusable(WorldError):
    """The subject, a storage backend for checkpoints or their copies, is currently unusable."""

    what = "cannot use {subject} for checkpoints"
    next_step = "training continues without it; holdfast retries it"


class TraceUnreadable(WorldError):
    """The subject, a path, cannot be read as a rank's trace file."""

    what = "cannot read the trace file {subject}"
    next_step = (
        "copy the trace files from the run's folder again; "
        "the other ranks' traces are readable without this one"
    )
    exit_status = 2


class TraceTruncated(TraceUnreadable):
    """The trace file is truncated: copied while the disk was full, or only in part."""

    why = "it is truncated"


class TraceVersion(TraceUnreadable):
    """The trace file has a layout that this version of holdfast does not support."""

    why = "unsupported layout version"
    next_step = "read it with the version of holdfast that wrote it"


class TraceCorrupt(TraceUnreadable):
    """The file has no trace header, or its header contradicts its size."""

    why = "it is not a trace file, or it was overwritten"


class DumpUnreadable(WorldError):
    """The subject, a path, cannot be read as a dump of torch's flight recorder."""

    what = "cannot read the flight-recorder dump {subject}"
    next_step = "leave this file out; the other ranks' dumps are readable without it"
    exit_status = 2


class DumpTruncated(DumpUnreadable):
    """The dump is truncated: its rank is still writing it, or died while writing."""

    why = "it is truncated"


class DumpVersion(DumpUnreadable):
    """The dump has a format that this version of holdfast does not support."""

    why = "unsupported format version"
    next_step = "read it with the tools of the torch version that wrote it (torchfrtrace)"


class DumpCorrupt(DumpUnreadable):
    """The file is not a dump, or contains objects that torch never writes; none was executed."""

    why = "it is not a flight-recorder dump of torch"


class HistoryUnusable(WorldError):
    """The history store at the subject, a file or a URL, cannot be read or written.

    The ledgers in the run folders are unaffected: their runs can be added later.
    """

    what = "the history store {subject} cannot be used"


class SnapshotUnreadable(WorldError):
    """The subject, a path, cannot be read as a GPU memory snapshot; none of it was executed."""

    what = "cannot read the memory snapshot {subject}"
    why = "it is not what torch.cuda.memory._dump_snapshot writes"
    next_step = (
        "write it with torch.cuda.memory._dump_snapshot; fewer events (max_entries) make it smaller"
    )
    exit_status = 2


class InternalError(HoldfastError):
    """A bug of holdfast: the program reached a state that its own code rules out."""

    next_step = "this is a bug in holdfast; please report it with the lines above"


def _unpickle(
    kind: type[HoldfastError], arguments: tuple[object, ...], fields: dict[str, object]
) -> HoldfastError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


def _join_names(names: list[str], word: str) -> str:
    return (
        names[0]
        if len(names) == 1
        else f"{', '.join(names[:-1])} {word} {names[-1]}"
        if names
        else "nothing"
    )
