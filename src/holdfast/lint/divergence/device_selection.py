"""Find GPUs that are selected after the first collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    MAX_EVENTS,
    Branch,
    Effect,
    EffectPath,
    FunctionCall,
    LoopEffect,
    Marker,
    Operation,
    Try,
)
from holdfast.lint.abstract_state.arguments import Arguments, LibraryCall

#: Calls that select a GPU.
DEVICE_CALLS = frozenset(
    {"torch.cuda.set_device", "torch.cuda.device", "torch.accelerator.set_device_index"}
)
#: Marker details of a group: the device is given; the group is on CPU.
_DEVICE_GIVEN, _CPU_GROUP = "settled", "processors"


def record_device(call: LibraryCall) -> None:
    """Record the selection of a GPU."""
    call.frame.add_effect(
        Marker("device", call.location, call.name.removeprefix("torch."), call.frame.control)
    )


def group_device(arguments: Arguments) -> str:
    """Return whether a group is given a device or is on CPU; empty if neither is known."""
    backend, device = arguments.get(0, "backend"), arguments.get(8, "device_id")
    if device is not None or arguments.starred is not None:
        return _DEVICE_GIVEN
    return _CPU_GROUP if backend is not None and backend.const in ("gloo", "mpi") else ""


def find_late_selection(path: EffectPath) -> Iterator[Divergence]:
    """Yield a GPU selection after the first collective of a group that was given no device."""
    walker = _DeviceWalker()
    walker.walk(path, group_created=False, collective_used=None)
    yield from walker.divergences


class _DeviceWalker:
    """Walk a path until a GPU is selected or the device is otherwise given (``done``)."""

    def __init__(self) -> None:
        self.divergences: list[Divergence] = []
        self.done = False
        self.remaining = MAX_EVENTS

    def walk(
        self, path: Sequence[Effect], *, group_created: bool, collective_used: Operation | None
    ) -> tuple[bool, Operation | None]:
        """Walk a path; return whether a GPU group may exist, and the first collective on it."""
        self.remaining -= len(path)
        for effect in path:
            if self.done or self.remaining < 0:
                break
            match effect:
                case Marker():
                    self._record_selection(effect, collective_used)
                    # a CPU backend may be only one of several possible ones
                    group_created = group_created or (
                        effect.name == "init" and effect.detail != _CPU_GROUP
                    )
                case Operation(kind="collective", own_group=False) if group_created:
                    collective_used = collective_used or effect
                case FunctionCall(callee=callee) if callee.tags:
                    group_created, collective_used = self.walk(
                        callee.path, group_created=group_created, collective_used=collective_used
                    )
                case Branch(yes=yes, no=no):  # the sides exclude each other
                    yes_state = self.walk(
                        yes, group_created=group_created, collective_used=collective_used
                    )
                    no_state = self.walk(
                        no, group_created=group_created, collective_used=collective_used
                    )
                    group_created = yes_state[0] or no_state[0]
                    collective_used = yes_state[1] or no_state[1]
                case LoopEffect(body=body, orelse=after) | Try(body=body, final_body=after):
                    group_created, collective_used = self.walk(
                        (*body, *after),
                        group_created=group_created,
                        collective_used=collective_used,
                    )
                case _:
                    pass
        return group_created, collective_used

    def _record_selection(self, marker: Marker, collective_used: Operation | None) -> None:
        """Record a late GPU selection; stop if the device is given."""
        if marker.name == "device" and collective_used is not None:
            self.divergences.append(
                Divergence(
                    "device",
                    marker.location,
                    collective_used.location,
                    marker.detail,
                    (),
                    collective_used,
                )
            )
        device_known = (marker.name, marker.detail) in (
            ("variable", "CUDA_VISIBLE_DEVICES"),
            ("init", _DEVICE_GIVEN),
        )
        self.done = device_known or marker.name == "device"
