"""When a rank takes its GPU: before the first collective, or after it."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.code.arguments import Arguments, LibraryCall
from holdfast.facts.code.effects import Note, Op, Way, events
from holdfast.facts.code.partings import Parting

#: Calls that say which GPU is meant from here on.
TAKING = frozenset({"torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index"})
#: What :class:`Note` tells about a group whose making settles the question.
_SETTLED = "settled"


def note_device(call: LibraryCall) -> None:
    """A GPU is taken."""
    call.frame.note(Note("device", call.place, call.name.removeprefix("torch."), call.frame.control))


def settled(given: Arguments) -> str:
    """What a group is told: its device, or that it is of processors; empty where that is open."""
    backend, device = given.get(0, "backend"), given.get(8, "device_id")
    of_processors = backend is not None and backend.const in ("gloo", "mpi")
    return _SETTLED if of_processors or device is not None or given.rest is not None else ""


def taken_late(way: Way) -> Iterator[Parting]:
    """The first GPU is taken after the first collective of a group that nobody told its device."""
    begun, used = False, None
    for event in events(way):
        match event:
            case Note(name="device", about=about):
                if used is not None:
                    yield Parting("device", event.place, used.place, about, (), used)
                return
            case Note(name="variable", about="CUDA_VISIBLE_DEVICES") | Note(name="init", about="settled"):
                return
            case Note(name="init"):
                begun = True
            case Op(kind="collective", own=False) if begun:
                used = used or event
            case _:
                pass
