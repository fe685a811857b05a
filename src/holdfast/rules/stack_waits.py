"""What a rank waits in, told from its stack alone: a collective, the backward pass, the device, the rendezvous store.

Only frames between the innermost line of the user's and the tip of the stack count. A wait that C++ does behind a line
of the user's (``work.wait()``, ``loss.item()``) leaves no frame: there the text of the line is asked.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from holdfast.facts.ranks import Place, Stack
from holdfast.facts.user_code import innermost_user
from holdfast.rules.places import Source


class Kind(StrEnum):
    """What is waited in; the later ones say less about who is waited for."""

    COLLECTIVE = "collective"
    POINT_TO_POINT = "point-to-point"
    STORE = "store"
    BACKWARD = "backward"
    DEVICE = "device"


class Wait(msgspec.Struct, frozen=True):
    """What a rank waits in (``all_reduce``) and the innermost line of the user's."""

    kind: Kind
    call: str
    place: Place | None

    def __str__(self) -> str:
        return self.call + (f" at {self.place.file.rsplit('/', 1)[-1]}:{self.place.line}" if self.place else "")


_PUBLIC = re.compile(
    r"(all_reduce|all_gather|all_to_all|reduce_scatter|broadcast|reduce|gather|scatter|barrier|monitored_barrier)\w*$"
)
_PEER = re.compile(r"(send|recv|isend|irecv|batch_isend_irecv|send_object_list|recv_object_list)$")
_STORE = re.compile(r"(init_process_group|new_group|new_subgroups\w*|split_group|_store_based_barrier)$")
_C10D = re.compile(r"/torch/distributed/distributed_c10d\.py$")
_FUNCTIONAL = re.compile(r"/torch/distributed/_functional_collectives\.py$")
_RENDEZVOUS = re.compile(r"/torch/distributed/(rendezvous|elastic/rendezvous/\w+)\.py$")
#: Files whose own innermost frame is a wait in C++ for a collective, with what they are called.
_INNERMOST = (
    (re.compile(r"/torch/nn/parallel/distributed\.py$"), Kind.COLLECTIVE, "a collective of DistributedDataParallel"),
    (re.compile(r"/torch/distributed/(fsdp|_composable)/"), Kind.COLLECTIVE, "a collective of FSDP"),
    (re.compile(r"/torch/distributed/tensor/"), Kind.COLLECTIVE, "a collective of DTensor"),
    (re.compile(r"/torch/distributed/pipelining/"), Kind.POINT_TO_POINT, "a transfer of the pipeline"),
    (re.compile(r"/torch/autograd/(graph|__init__)\.py$"), Kind.BACKWARD, "the backward pass"),
    (re.compile(r"/torch/cuda/(__init__|streams)\.py$"), Kind.DEVICE, "a wait for the GPU"),
)
_LINE_WAITS = re.compile(r"\.wait\(")
_LINE_SYNCHRONISES = re.compile(r"\.(item|tolist|cpu|numpy|synchronize)\(|\.to\(\s*[\"']cpu")


def find(threads: Sequence[Stack], source: Source) -> Wait | None:
    """What the main thread (the first) waits in; None where it is elsewhere.

    A backward pass is run by a thread of its own where there is a GPU; if that one is in a collective, it counts.
    """
    if not threads:
        return None
    wait = of_stack(threads[0], source)
    if wait is not None and wait.kind == Kind.BACKWARD:
        others = (of_stack(other, source) for other in threads[1:])
        inner = next((other for other in others if other is not None and other.kind == Kind.COLLECTIVE), None)
        return Wait(inner.kind, f"{inner.call} in the backward pass", wait.place) if inner is not None else wait
    return wait


def of_stack(stack: Stack, source: Source) -> Wait | None:
    """What one thread waits in; None where its stack shows no wait for others."""
    place = innermost_user(stack)
    inner = stack.frames[: stack.frames.index(place)] if place is not None else stack.frames
    if not inner:
        return _by_text(place, source)
    named = None
    for frame in inner:  # the outermost public name is the one that the user called
        named = _named(frame, place) or named
    if named is not None:
        return named
    tip = inner[0]
    return next((Wait(kind, call, place) for file, kind, call in _INNERMOST if file.search(tip.file)), None)


def _named(frame: Place, place: Place | None) -> Wait | None:
    if _FUNCTIONAL.search(frame.file):
        return Wait(Kind.COLLECTIVE, frame.function if _PUBLIC.match(frame.function) else "a collective", place)
    if _RENDEZVOUS.search(frame.file):
        return Wait(Kind.STORE, "the rendezvous", place)
    if not _C10D.search(frame.file):
        return None
    kinds = ((_PUBLIC, Kind.COLLECTIVE), (_PEER, Kind.POINT_TO_POINT), (_STORE, Kind.STORE))
    return next((Wait(kind, frame.function, place) for name, kind in kinds if name.match(frame.function)), None)


def _by_text(place: Place | None, source: Source) -> Wait | None:
    seen = source.get(place) if place is not None else None
    if seen is None:
        return None
    if _LINE_WAITS.search(seen.text):
        return Wait(Kind.COLLECTIVE, "a collective that was started before", place)
    if _LINE_SYNCHRONISES.search(seen.text):
        return Wait(Kind.DEVICE, "a wait for the device", place)
    return None
