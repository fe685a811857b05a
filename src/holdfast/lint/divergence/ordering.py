"""Find problems of order: files, variables, samplers, gradient scalers, threads, messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    MAX_EVENTS,
    Branch,
    Effect,
    EffectPath,
    EffectSummary,
    ExitEffect,
    FunctionCall,
    GroupScope,
    LoopEffect,
    Marker,
    Operation,
    Try,
    iter_events,
)
from holdfast.lint.abstract_domain.values import RANK_KINDS, taint_kinds
from holdfast.lint.divergence.alarms import ALARM_SET, find_abandoned
from holdfast.lint.divergence.device_selection import find_late_selection
from holdfast.lint.divergence.long_work import find_awaited_work

_SEND_FIRST = ("send", "recv")


def find_in_function(
    body: EffectSummary, *, on_all_ranks: bool, alarm: str = ""
) -> Iterator[Divergence]:
    """Yield divergences in one function.

    ``on_all_ranks``: all ranks run it. ``alarm``: the exception that the alarm handler raises.
    """
    if ALARM_SET in body.tags:
        yield from find_abandoned(body.path, alarm)
    if "work" in body.tags and body.sequence:
        yield from find_awaited_work(body.path)
    if "unscale" in body.tags:
        yield from _unscale_before_reduction(body.path)
    if "send" in body.tags:
        yield from _blocking_sends(body.path) if on_all_ranks else _split_sends(body.path)
    if "creation" in body.tags:
        yield from _groups_of_steps(body.path)
    if "shuffled" in body.tags:
        yield from _missing_set_epoch(body.path)
    if "unsharded" in body.tags:
        yield from _unsharded_loops(body.path)


def find_in_program(
    body: EffectSummary, threads: Sequence[tuple[SourceLine, EffectPath]]
) -> Iterator[Divergence]:
    """Yield divergences over a whole program, from start to end."""
    if "variable" in body.tags:
        walker = _VariableWalker()
        walker.walk(body.path, None, None)
        yield from walker.divergences
    if {"init", "device"} <= body.tags:
        yield from find_late_selection(body.path)
    yield from _thread_collectives(body.path, threads)


def _unscale_before_reduction(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield ``unscale_`` calls that check for Inf before the gradients are averaged."""
    last, unscale = "", None
    for event in iter_events(path):
        match event:
            case Marker(name="backward"):
                last, unscale = "backward", None
            case Operation(kind="backward"):
                last, unscale = "", None
            case Marker(name="unscale") if last == "backward":
                unscale = event
            case Operation(peer="grad") | Operation(name="all_reduce_coalesced"):
                if unscale is not None:
                    yield Divergence(
                        "scaler",
                        unscale.location,
                        event.location,
                        "gradients are averaged only afterwards",
                        (),
                        event,
                    )
                last, unscale = "", None
            case _:
                pass


def _groups_of_steps(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield groups that every step of a training loop creates."""
    for effect in path:
        match effect:
            case LoopEffect(body=body, location=location):
                events = list(iter_events(body))
                trains = any(
                    event.name == "backward"
                    if isinstance(event, Marker)
                    else event.kind == "backward"
                    for event in events
                )
                created = [
                    event
                    for event in events
                    if isinstance(event, Operation) and event.kind == "creation"
                ]
                if trains and created:
                    message = (
                        f"every step creates the groups of {created[0].name} again, each with a "
                        "communicator that stays: create them once, before the loop"
                    )
                    at = created[0].location
                    yield Divergence(
                        "habit-group", at, location, "", (), detail=message, by_name=True
                    )
                else:
                    yield from _groups_of_steps(body)
            case Branch(yes=first, no=second) | Try(body=first, final_body=second):
                yield from _groups_of_steps((*first, *second))
            case _:
                pass


def _blocking_sends(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield blocking sends followed by a receive from the same peer or ring neighbour."""
    sent: Operation | None = None
    for effect in path:
        match effect:
            case Operation(kind="send"):
                sent = sent or effect
            case Operation(kind="recv", peer=peer):
                if sent is not None and (
                    sent.peer == peer or (sent.peer_varies and effect.peer_varies)
                ):
                    yield Divergence(
                        "paired", sent.location, effect.location, f"recv from {peer}", (), sent
                    )
                sent = None
            case Marker() | ExitEffect():
                pass
            case Branch():
                yield from _split_sends([effect])
                sent = None
            case LoopEffect(body=body):
                yield from _blocking_sends(body)
                sent = None
            case _:
                sent = None


def _split_sends(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield sends that come first on both sides of a test of the rank, which splits partners."""
    for effect in path:
        if not isinstance(effect, Branch):
            continue
        pairs = [_first_messages(side) for side in (effect.yes, effect.no)]
        # in a function that runs under a test of the rank, another has no taint
        by_rank = taint_kinds(effect.taint) & RANK_KINDS or "rank" in effect.text
        if not by_rank:
            yield from _split_sends((*effect.yes, *effect.no))
        elif all(
            tuple(message.kind for message in pair) == _SEND_FIRST and pair[0].peer == pair[1].peer
            for pair in pairs
        ):
            send, receive = pairs[1]
            text = f"recv from {receive.peer}"
            yield Divergence("paired", send.location, receive.location, text, (), send)


def _first_messages(path: EffectPath) -> list[Operation]:
    """Return the first two operations of a path; fewer if it has anything else before them."""
    found: list[Operation] = []
    for effect in path:
        if isinstance(effect, Operation):
            found.append(effect)
        elif not isinstance(effect, Marker):
            break
        if len(found) == len(_SEND_FIRST):
            break
    return found


def _missing_set_epoch(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield epoch loops over a shuffled loader without ``set_epoch``."""
    for effect in path:
        if isinstance(effect, FunctionCall):
            continue
        if isinstance(effect, Try):
            yield from _missing_set_epoch(effect.body)
        elif isinstance(effect, LoopEffect):
            names = _marker_names(effect)
            inner_loops = [inner for inner in effect.body if isinstance(inner, LoopEffect)]
            if (
                "shuffled" in names
                and "set_epoch" not in names
                and not any("shuffled" in _marker_names(inner) for inner in inner_loops)
            ):
                yield Divergence("epoch", effect.location, effect.location, effect.text, ())
            yield from _missing_set_epoch(effect.body)


def _unsharded_loops(path: Sequence[Effect]) -> Iterator[Divergence]:
    """Yield loops that train a DDP model on a loader without sharding."""
    unsharded: set[SourceLine] = set()
    for effect in path:
        match effect:
            case Marker(name="unsharded", location=location):
                unsharded.add(location)
            case LoopEffect(location=location, body=body, text=text):
                kinds = {
                    (event.kind, event.may_not_wait)
                    for event in iter_events(body)
                    if isinstance(event, Operation)
                }
                if (
                    location in unsharded
                    and ("forward", True) in kinds
                    and ("backward", False) in kinds
                ):
                    yield Divergence("unsharded", location, location, text, ())
                yield from _unsharded_loops(body)
            case Branch(yes=first, no=second) | Try(body=first, final_body=second):
                yield from _unsharded_loops((*first, *second))
            case _:
                pass


def _marker_names(loop: LoopEffect) -> set[str]:
    return {event.name for event in iter_events(loop.body) if isinstance(event, Marker)}


class _VariableWalker:
    """Walk a path and yield variables that are set after they were read."""

    def __init__(self) -> None:
        self.divergences: list[Divergence] = []
        self.remaining = MAX_EVENTS

    def walk(
        self,
        path: Sequence[Effect],
        group_created: SourceLine | None,
        collective_used: SourceLine | None,
    ) -> tuple[SourceLine | None, ...]:
        """Walk a path; return where the process group was created and the first collective was."""
        self.remaining -= len(path)
        for effect in path if self.remaining > 0 else ():
            match effect:
                case Marker(name="init", location=location):
                    group_created = group_created or location
                case Operation(
                    kind="collective" | "forward" | "backward" | "sharded", location=location
                ):
                    collective_used = collective_used or location
                case Marker(name="variable"):
                    self._set(effect, group_created, collective_used)
                case FunctionCall(callee=callee, location=location) if "variable" in callee.tags:
                    group_created, collective_used = self.walk(
                        callee.path, group_created, collective_used
                    )
                case FunctionCall(callee=callee, location=location):
                    group_created = group_created or (location if "init" in callee.tags else None)
                    collective_used = collective_used or (location if callee.sequence else None)
                case Branch(yes=yes, no=no):  # the sides exclude each other
                    yes_state = self.walk(yes, group_created, collective_used)
                    no_state = self.walk(no, group_created, collective_used)
                    group_created = yes_state[0] or no_state[0]
                    collective_used = yes_state[1] or no_state[1]
                case LoopEffect(body=body, orelse=after) | Try(body=body, final_body=after):
                    group_created, collective_used = self.walk(
                        (*body, *after), group_created, collective_used
                    )
                case _:
                    pass
        return group_created, collective_used

    def _set(
        self, marker: Marker, group_created: SourceLine | None, collective_used: SourceLine | None
    ) -> None:
        early = marker.detail.startswith(("TORCH_NCCL_", "GLOO_", "TORCH_DISTRIBUTED_"))
        read = (
            group_created
            if early
            else collective_used
            if marker.detail.startswith("NCCL_")
            else None
        )
        if read is not None:
            self.divergences.append(
                Divergence("variable", marker.location, read, marker.detail, ())
            )


def _operations(path: EffectPath) -> Iterator[Operation]:
    return (event for event in iter_events(path) if isinstance(event, Operation))


def _is_on_shared_group(op: Operation) -> bool:
    """Return True if the operation is on a group that the main thread may use too."""
    return (
        not op.own_group
        and op.kind not in ("send", "recv")
        and not (op.names_group and op.group is not GroupScope.WORLD)
    )


def _thread_collectives(
    path: EffectPath, threads: Sequence[tuple[SourceLine, EffectPath]]
) -> Iterator[Divergence]:
    """Yield collectives of a thread on a group that the main program uses too."""
    if not threads:
        return
    if all(op.own_group for op in _operations(path)):
        return
    for location, inner in threads:
        op = next(filter(_is_on_shared_group, _operations(inner)), None)
        if op is not None:
            yield Divergence(
                "thread", op.location, location, "a thread runs it", (), op, (location, op.location)
            )
