"""Every error that holdfast raises on purpose, as one tree::

    HoldfastError
    ├── UsageError                 the user's mistakes: change the command or the input
    │   ├── UnknownName            a preset, fault, command or cause that does not exist; says which ones are near
    │   ├── BadValue               an option or variable whose value cannot be understood
    │   ├── MissingFile            a script, folder or file that is not there
    │   ├── NoJob                  no training process that is meant is running
    │   ├── SeveralJobs            several training jobs are meant, where one has to be
    │   ├── CheckpointMismatch     a checkpoint of another model, or of another optimizer
    │   ├── CollectiveMismatch     the ranks of a group made different calls, or with different tensors
    │   └── MissingExtra           a part of holdfast, or torch itself, that is not installed
    ├── WorldError                 the world's: the command was right, the machine or the network did not play along
    │   ├── RendezvousUnreachable  the store of the job cannot be reached
    │   ├── HostUnfit              a host that must not take part in the job
    │   ├── CopyUnreachable        the copy of `attach` that judges for all nodes cannot be reached
    │   ├── CollectiveTimeout      ranks did not come to a collective in time
    │   ├── CollectiveFailed       a collective failed on this rank: a peer is gone, or the backend gave up
    │   ├── OutOfLockstep          ranks are at different steps, or hold different parameters
    │   ├── LossNotFinite          the loss became NaN or infinite
    │   ├── LossSpike              the loss rose far above what it was, and stayed there
    │   ├── GroupBroken            a process group in which a call failed, and which is not used again
    │   ├── ShmUnavailable         the shared memory (or any folder for boxes) is missing, full or closed to us
    │   ├── StackRefused           the stack of a process cannot be taken
    │   ├── BoxUnreadable          a box that is no box, or not a whole one
    │   │   ├── BoxTruncated       cut short
    │   │   ├── BoxVersion         written by another version of holdfast
    │   │   └── BoxNoise           does not begin as a box does, or contradicts itself
    │   ├── CheckpointUnreadable   a folder that is no checkpoint, or a damaged one
    │   │   └── CheckpointVersion  written by a newer version of holdfast
    │   ├── PlaceUnusable          a place of checkpoints (folder, bucket, memory) cannot be read or written
    │   ├── CheckpointFailed       a checkpoint could not be saved or loaded; those before it are as they were
    │   ├── SnapshotUnreadable     a snapshot of a GPU's memory that is none, too large, or not a whole one
    │   └── DumpUnreadable         a dump of torch's flight recorder that is none, or not a whole one
    │       ├── DumpTruncated      cut short, or still being written
    │       ├── DumpVersion        of a form that holdfast does not know
    │       └── DumpNoise          no dump, too large, or with more in it than plain data
    └── InternalError              our bugs: something that cannot happen did

Each is given its subject (a name, a path, an address), and builds one sentence from it: what, why, and what to do next.
The command line prints that sentence on stderr and ends with ``exit_status``; a traceback is for our bugs alone.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import ClassVar


class HoldfastError(Exception):
    """Base of all errors of holdfast: ``what`` happened to ``subject``, ``why``, and what to do next (``next_step``).

    A subclass sets the three texts as class attributes; ``{subject}`` in them is replaced. ``why`` and ``next_step``
    given at the raise are more exact than those of the class and win over them.
    """

    what: ClassVar[str] = "{subject}"
    why: str = ""
    next_step: str = ""
    exit_status: int = 3

    def __init__(self, subject: object, *, why: str | None = None, next_step: str | None = None) -> None:
        super().__init__(subject)
        self.subject = str(subject)
        if why is not None:
            self.why = why
        if next_step is not None:
            self.next_step = next_step

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as what it is, whatever its constructor takes: errors travel from rank to rank."""
        return _unpickled, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        sentence = self.what.replace("{subject}", self.subject)
        for mark, part in ((": ", self.why), ("; ", self.next_step)):
            if part:
                sentence += mark + part.replace("{subject}", self.subject)
        return " ".join(sentence.split())


class UsageError(HoldfastError):
    """The user's mistake: the command line, the environment or an input file has to be changed."""

    exit_status = 2


class UnknownName(UsageError):
    """``name`` is no ``kind`` that holdfast knows. ``near`` holds the known names that look like it, best first."""

    what = "{subject}"

    def __init__(self, kind: str, name: str, known: Iterable[str], *, next_step: str | None = None) -> None:
        choices = sorted(known)
        near = difflib.get_close_matches(name.casefold(), [choice.casefold() for choice in choices], n=3, cutoff=0.6)
        self.near = [choice for match in near for choice in choices if choice.casefold() == match]
        hint = f"did you mean {_listed(self.near, 'or')}?" if self.near else f"choose from {_listed(choices, 'and')}"
        super().__init__(f"there is no {kind} {name!r}", next_step=next_step or hint)
        self.args = (kind, name, tuple(choices))


class BadValue(UsageError):
    """The value of an option or variable (the subject) cannot be understood; ``why`` says what is wrong with it."""

    what = "{subject} has a value that cannot be used"


class MissingFile(UsageError):
    """A file or folder that the user named is not there (or is a folder where a file is wanted, or the reverse)."""

    what = "cannot open {subject}"
    why = "there is no such file"
    next_step = "check the path, which is taken relative to the current folder"


class NoJob(UsageError):
    """No training process is running that the subject (what was looked for) means."""

    what = "found no training job by {subject}"
    next_step = "run this on a host of the job, as its user or with sudo, and name a process with --pid if need be"


class SeveralJobs(UsageError):
    """The subject, a list of jobs, is more than the one that can be looked into."""

    what = "several training jobs run here: {subject}"
    next_step = "choose one with --pid, --name or --port"


class MissingExtra(UsageError):
    """The subject, a package that this command needs, is not installed. torch is one: holdfast never installs it."""

    what = "this needs {subject}"
    why = "which is not installed in this environment"
    next_step = "install it with: pip install {subject}"


class WorldError(HoldfastError):
    """The command was right, but the machine, the network or another process did not play along."""


class RendezvousUnreachable(WorldError):
    """The store through which the nodes of a job find each other does not answer at the subject, an address.

    You do not get this when the store answers but too few nodes join: that is the rendezvous' own time-out.
    """

    what = "cannot reach the rendezvous at {subject}"
    why = "nothing answers there"
    next_step = "check --rdzv-endpoint (or --master-addr and --master-port), and that node 0 is up and its port open"


class HostUnfit(WorldError):
    """The checks before a start found the subject, a host, in a state in which the job would fail on it.

    Its status is that of a job that failed, so that a scheduler starts it again elsewhere.
    """

    what = "{subject} does not take part in the job"
    next_step = "let `holdfast check` tell the whole of it; --no-gate starts there all the same"
    exit_status = 1


class CopyUnreachable(WorldError):
    """The copy of ``holdfast attach`` on the subject, a host, that judges for all nodes, cannot be reached."""

    what = "cannot tell {subject} what is seen here"
    next_step = (
        "see that a copy runs there, and that nodes may connect to each other; or run `holdfast attach --hosts` instead"
    )


class CheckpointMismatch(UsageError):
    """The subject, a checkpoint or a part of it, does not fit what the job has; nothing of it was taken."""

    what = "{subject} does not fit"
    next_step = "give the job the model and optimizer that were saved, or load with strict=False what both have"


class CollectiveMismatch(UsageError):
    """``odd`` are the global ranks whose call is not that of most; empty where that cannot be told."""

    what = "{subject} is not the same on all ranks"
    next_step = "make the same calls, with the same shapes and dtypes, on every rank; a fresh group is needed"

    def __init__(self, subject: object, *, why: str | None = None, odd: Sequence[int] = ()) -> None:
        super().__init__(subject, why=why)
        self.odd = tuple(odd)


class CollectiveTimeout(WorldError):
    """``missing`` are the global ranks that were not seen in the call; empty where that is not known."""

    what = "{subject} did not complete"
    next_step = "look at the stacks of the ranks that did not come (holdfast attach)"

    def __init__(self, subject: object, *, why: str | None = None, missing: Sequence[int] = ()) -> None:
        super().__init__(subject, why=why)
        self.missing = tuple(missing)


class CollectiveFailed(WorldError):
    """The call itself failed; the group it was made in is not used again."""

    what = "{subject} failed"
    next_step = "look for the rank that died first; this group is not used again"


class OutOfLockstep(WorldError):
    """``odd`` are the global ranks that differ from most."""

    what = "the ranks of {subject} are not in lockstep"
    next_step = "start all of them from one checkpoint; a rank that skips a step or a batch has to say so to the others"

    def __init__(self, subject: object, *, why: str | None = None, odd: Sequence[int] = ()) -> None:
        super().__init__(subject, why=why)
        self.odd = tuple(odd)


class LossNotFinite(WorldError):
    """The mean loss over all ranks was NaN or infinite in the steps ``first`` to ``last``; raised on all ranks."""

    what = "the loss is not finite: {subject}"
    next_step = "go back to a checkpoint of a step before it (`holdfast run` does), and leave that batch out"

    def __init__(self, subject: object, *, why: str | None = None, first: int = 0, last: int = 0) -> None:
        super().__init__(subject, why=why)
        self.first, self.last = first, last


class LossSpike(WorldError):
    """The mean loss over all ranks rose far above its median, in the steps ``first`` to ``last``; on all ranks."""

    what = "the loss jumped: {subject}"
    next_step = "go back to a checkpoint of a step before it (`holdfast run` does), and leave those batches out"

    def __init__(self, subject: object, *, why: str | None = None, first: int = 0, last: int = 0) -> None:
        super().__init__(subject, why=why)
        self.first, self.last = first, last


class GroupBroken(WorldError):
    """A call was made in a group in which an earlier one timed out or failed: its ranks may be at different calls."""

    what = "process group {subject} is not used again"
    next_step = "make a fresh group, on every rank"


class ShmUnavailable(WorldError):
    """A box cannot be made at the subject, a path: the file system is missing, full, or does not let us write."""

    what = "cannot make the box {subject}"
    next_step = "give /dev/shm more room (containers: --shm-size), or let holdfast fall back to the run's folder"


class StackRefused(WorldError):
    """The stack of the subject, a process id, could not be read from outside.

    You do not get this for a process that has ended: then there is no stack, and its exit status is known instead.
    """

    what = "cannot take the stack of process {subject}"
    why = "this machine does not allow one process to inspect another"
    next_step = "allow it (kernel.yama.ptrace_scope=0, or SYS_PTRACE for a container), or let the recorder write it"


class CheckpointUnreadable(WorldError):
    """The subject, a folder, is no checkpoint that can be trusted."""

    what = "cannot use the checkpoint {subject}"
    next_step = "move it away and take the one before it"
    exit_status = 2


class CheckpointVersion(CheckpointUnreadable):
    """The manifest is of a form that this holdfast does not know."""

    next_step = "load it with the holdfast that wrote it, or a newer one"


class CheckpointFailed(WorldError):
    """The subject, the saving, loading or conversion of a checkpoint, failed; in a job on all ranks alike."""

    what = "{subject} failed"
    next_step = "the checkpoints before it are as they were"


class PlaceUnusable(WorldError):
    """The subject, a place where checkpoints or copies of them lie, cannot be read or written just now."""

    what = "cannot use {subject} for checkpoints"
    next_step = "training goes on without it, and it is tried again"


class BoxUnreadable(WorldError):
    """The subject, a path, cannot be read as the box of a rank."""

    what = "cannot read the box {subject}"
    next_step = "take the boxes from the run's folder again; the other ranks' boxes can be read without this one"
    exit_status = 2


class BoxTruncated(BoxUnreadable):
    """The box is cut short: copied while the disk was full, or only in part."""

    why = "it is cut short"


class BoxVersion(BoxUnreadable):
    """The box has a layout that this version of holdfast does not know."""

    why = "its layout is of another version"
    next_step = "read it with the version of holdfast that wrote it"


class BoxNoise(BoxUnreadable):
    """The file is no box: it does not begin as one, or what it says of itself contradicts its size."""

    why = "it is not a box, or it was overwritten"


class DumpUnreadable(WorldError):
    """The subject, a path, cannot be read as a dump of torch's flight recorder."""

    what = "cannot read the flight recorder's dump {subject}"
    next_step = "leave this file out; the other ranks' dumps can be read without it"
    exit_status = 2


class DumpTruncated(DumpUnreadable):
    """The dump is cut short: its rank is still writing it, or died while it did."""

    why = "it is cut short"


class DumpVersion(DumpUnreadable):
    """The dump has a form that this version of holdfast does not know."""

    why = "its form is of another version"
    next_step = "read it with the tools of the torch that wrote it (torchfrtrace)"


class DumpNoise(DumpUnreadable):
    """The file is no dump, or holds what torch never writes; nothing in it was carried out."""

    why = "it is not a dump of torch's flight recorder"


class SnapshotUnreadable(WorldError):
    """The subject, a path, cannot be read as a snapshot of a GPU's memory; nothing in it was carried out."""

    what = "cannot read the memory snapshot {subject}"
    why = "it is not what torch.cuda.memory._dump_snapshot writes"
    next_step = "write it with torch.cuda.memory._dump_snapshot; with fewer events (max_entries) it is smaller"
    exit_status = 2


class InternalError(HoldfastError):
    """A bug of holdfast: something that its own code rules out has happened."""

    next_step = "this is a bug of holdfast; please report it with the lines above"


def _unpickled(kind: type[HoldfastError], arguments: tuple[object, ...], fields: dict[str, object]) -> HoldfastError:
    error = kind.__new__(kind, *arguments)
    error.__dict__.update(fields)
    return error


def _listed(names: list[str], word: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {word} {names[-1]}" if names else "nothing"
