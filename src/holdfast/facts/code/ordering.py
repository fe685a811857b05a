"""Partings that lie in the order of things: files, variables, samplers, scalers, threads, messages of two ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.facts.code.alarms import ON, abandoned
from holdfast.facts.code.devices import taken_late
from holdfast.facts.code.effects import (
    MOST_EVENTS,
    Body,
    Called,
    Effect,
    Exit,
    Fork,
    Group,
    Loop,
    Note,
    Op,
    Place,
    Try,
    Way,
    events,
)
from holdfast.facts.code.labour import MAY_FAIL, awaited, unguarded
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.shared_files import written_by_all
from holdfast.facts.code.values import by_rank


def in_function(body: Body, *, alone: bool, alarm: str = "") -> Iterator[Parting]:
    """Of one function; ``alone`` says that all ranks run it alike, ``alarm`` is what an alarm raises."""
    if ON in body.marks:
        yield from abandoned(body.way, alarm)
    if "work" in body.marks and body.whole:
        yield from awaited(body.way)
    if body.whole and body.marks & MAY_FAIL:
        yield from unguarded(body.way)
    if "unscale" in body.marks:
        yield from _scaler(body.way)
    if alone and "send" in body.marks:
        yield from _paired(body.way)
    if "shuffled" in body.marks:
        yield from _epochs(body.way)
    if "whole" in body.marks:
        yield from _whole(body.way)


def in_program(body: Body, threads: Sequence[tuple[Place, Way]]) -> Iterator[Parting]:
    """Of a whole program, from its beginning to its end."""
    if {"write", "read"} <= body.marks:
        yield from _files(body.way)
    if {"init", "written"} <= body.marks:
        yield from written_by_all(body.way)
    if "variable" in body.marks:
        reading = _Reading()
        reading.through(body.way, None, None)
        yield from reading.found
    if {"init", "device"} <= body.marks:
        yield from taken_late(body.way)
    yield from _threads(body.way, threads)


def _scaler(way: Sequence[Effect]) -> Iterator[Parting]:
    """GradScaler looks for Inf before gradients are averaged: backward, unscale_, all_reduce of gradients."""
    last, asked = "", None
    for event in events(way):
        match event:
            case Note(name="backward"):
                last, asked = "backward", None
            case Op(kind="backward"):
                last, asked = "", None
            case Note(name="unscale") if last == "backward":
                asked = event
            case Op(peer="grad") | Op(name="all_reduce_coalesced"):
                if asked is not None:
                    yield Parting(
                        "scaler", asked.place, event.place, "gradients are averaged only afterwards", (), event
                    )
                last, asked = "", None
            case _:
                pass


def _paired(way: Sequence[Effect]) -> Iterator[Parting]:
    """All send first: a blocking send, and then the receipt of the same peer, or of the other neighbour in a ring."""
    sent: Op | None = None
    for effect in way:
        match effect:
            case Op(kind="send"):
                sent = sent or effect
            case Op(kind="recv", peer=peer):
                if sent is not None and (sent.peer == peer or (sent.shifted and effect.shifted)):
                    yield Parting("paired", sent.place, effect.place, f"recv from {peer}", (), sent)
                sent = None
            case Note() | Exit():
                pass
            case _:
                sent = None


def _epochs(way: Sequence[Effect]) -> Iterator[Parting]:
    """A loop over epochs over a shuffled loader whose sampler is never told the epoch."""
    for effect in way:
        if isinstance(effect, Called):
            continue
        if isinstance(effect, Loop):
            names = {event.name for event in events(effect.body) if isinstance(event, Note)}
            if (
                "shuffled" in names
                and "set_epoch" not in names
                and not any(isinstance(each, Loop) and _holds(each) for each in effect.body)
            ):
                yield Parting("epoch", effect.place, effect.place, effect.text, ())
            yield from _epochs(effect.body)


def _whole(way: Sequence[Effect]) -> Iterator[Parting]:
    """A loop that trains a model in DDP, over a loader that gives every rank all of the data."""
    whole: set[Place] = set()
    for effect in way:
        match effect:
            case Note(name="whole", place=place):
                whole.add(place)
            case Loop(place=place, body=body, text=text):
                kinds = {(each.kind, each.weak) for each in events(body) if isinstance(each, Op)}
                if place in whole and ("forward", True) in kinds and ("backward", False) in kinds:
                    yield Parting("whole", place, place, text, ())
                yield from _whole(body)
            case Fork(yes=one, no=other) | Try(body=one, last=other):
                yield from _whole((*one, *other))
            case _:
                pass


def _holds(loop: Loop) -> bool:
    return any(isinstance(event, Note) and event.name == "shuffled" for event in events(loop.body))


def _files(way: Way) -> Iterator[Parting]:
    """Written by one rank, read by the others, and nothing between that makes them wait."""
    written: dict[str, Note] = {}
    for event in events(way):
        match event:
            case Op():
                written.clear()
            case Note(name="write", control=control) if control and by_rank(control):
                written[event.about] = event
            case Note(name="read", control=control) if not control and event.about in written:
                note = written.pop(event.about)
                yield Parting("file", event.place, note.place, f"{event.about} is written", note.control)
            case _:
                pass


class _Reading:
    """Goes along a way, and knows who has read variables by now; ``found`` are those that are set later."""

    def __init__(self) -> None:
        self.found: list[Parting] = []
        self.left = MOST_EVENTS

    def through(self, way: Sequence[Effect], begun: Place | None, used: Place | None) -> tuple[Place | None, ...]:
        """``begun``: where the process group was made, ``used``: where a collective came first."""
        self.left -= len(way)
        for effect in way if self.left > 0 else ():
            match effect:
                case Note(name="init", place=place):
                    begun = begun or place
                case Op(kind="collective" | "forward" | "backward" | "sharded", place=place):
                    used = used or place
                case Note(name="variable"):
                    self._set(effect, begun, used)
                case Called(within=within, place=place) if "variable" in within.marks:
                    begun, used = self.through(within.way, begun, used)
                case Called(within=within, place=place):
                    begun = begun or (place if "init" in within.marks else None)
                    used = used or (place if within.whole else None)
                case Fork(yes=yes, no=no):  # who goes one way has not gone the other
                    one, other = self.through(yes, begun, used), self.through(no, begun, used)
                    begun, used = one[0] or other[0], one[1] or other[1]
                case Loop(body=body, after=after) | Try(body=body, last=after):
                    begun, used = self.through((*body, *after), begun, used)
                case _:
                    pass
        return begun, used

    def _set(self, note: Note, begun: Place | None, used: Place | None) -> None:
        early = note.about.startswith(("TORCH_NCCL_", "GLOO_", "TORCH_DISTRIBUTED_"))
        read = begun if early else used if note.about.startswith("NCCL_") else None
        if read is not None:
            self.found.append(Parting("variable", note.place, read, note.about, ()))


def _is_of_all(op: Op) -> bool:
    """It is for the group that the program uses too: messages of two ranks, and groups that are chosen, are not."""
    return not op.own and op.kind not in ("send", "recv") and not (op.chosen and op.group is not Group.WORLD)


def _threads(way: Way, threads: Sequence[tuple[Place, Way]]) -> Iterator[Parting]:
    """A thread and the program enter collectives of the same group."""
    if not threads:
        return
    main = next((event for event in events(way) if isinstance(event, Op) and not event.own), None)
    for place, inner in threads:
        op = next((event for event in events(inner) if isinstance(event, Op) and _is_of_all(event)), None)
        if op is not None and main is not None:
            yield Parting("thread", op.place, place, "a thread runs it", (), op, (place, op.place))
