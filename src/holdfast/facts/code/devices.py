"""When a rank takes its GPU: before the first collective, or after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.code.arguments import Arguments, LibraryCall
from holdfast.facts.code.effects import MOST_EVENTS, Called, Effect, Fork, Loop, Note, Op, Try, Way
from holdfast.facts.code.partings import Parting

#: Calls that say which GPU is meant from here on.
TAKING = frozenset({"torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index"})
#: What :class:`Note` tells about a group whose making settles the question, and about one that has no GPU.
_SETTLED, _PROCESSORS = "settled", "processors"


def note_device(call: LibraryCall) -> None:
    """A GPU is taken."""
    call.frame.note(Note("device", call.place, call.name.removeprefix("torch."), call.frame.control))


def settled(given: Arguments) -> str:
    """What a group is told: its device, or that it is of processors; empty where that is open."""
    backend, device = given.get(0, "backend"), given.get(8, "device_id")
    if device is not None or given.rest is not None:
        return _SETTLED
    return _PROCESSORS if backend is not None and backend.const in ("gloo", "mpi") else ""


def taken_late(way: Way) -> Iterator[Parting]:
    """The first GPU is taken after the first collective of a group that nobody told its device."""
    walk = _Walk()
    walk.through(way, begun=False, used=None)
    yield from walk.found


class _Walk:
    """Goes along a way until a GPU is taken or the question is settled (``done``)."""

    def __init__(self) -> None:
        self.found: list[Parting] = []
        self.done = False
        self.left = MOST_EVENTS

    def through(self, way: Sequence[Effect], *, begun: bool, used: Op | None) -> tuple[bool, Op | None]:
        """``begun``: a group that may be of GPUs was made, ``used``: its first collective."""
        self.left -= len(way)
        for effect in way:
            if self.done or self.left < 0:
                break
            match effect:
                case Note():
                    self._noted(effect, used)  # of processors a group is by one subclass, or one answer of a test
                    begun = begun or (effect.name == "init" and effect.about != _PROCESSORS)
                case Op(kind="collective", own=False) if begun:
                    used = used or effect
                case Called(within=within) if within.marks:
                    begun, used = self.through(within.way, begun=begun, used=used)
                case Fork(yes=yes, no=no):  # who goes one way has not gone the other
                    one = self.through(yes, begun=begun, used=used)
                    other = self.through(no, begun=begun, used=used)
                    begun, used = one[0] or other[0], one[1] or other[1]
                case Loop(body=body, after=after) | Try(body=body, last=after):
                    begun, used = self.through((*body, *after), begun=begun, used=used)
                case _:
                    pass
        return begun, used

    def _noted(self, note: Note, used: Op | None) -> None:
        """A GPU is taken, or the question is settled."""
        if note.name == "device" and used is not None:
            self.found.append(Parting("device", note.place, used.place, note.about, (), used))
        told = (note.name, note.about) in (("variable", "CUDA_VISIBLE_DEVICES"), ("init", _SETTLED))
        self.done = told or note.name == "device"
