"""Which way a tensor is reduced is tried out on the calls that are made anyway, and decided by all ranks together.

For each power of two of bytes and each dtype of a group, the ways in question take turns in the first calls. A rank
that comes early waits for the others, so that the shortest time of all ranks is that of a call; when every way has had
its turns, one more small reduction (of these times, to their minimum) gives all ranks the same figures, and the fastest
way is taken from then on. Nothing is sent for the sake of measuring alone.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist

from holdfast.runtime.comm import history
from holdfast.runtime.comm.folding import Operation
from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.waiting import finish, poll
from holdfast.runtime.comm.ways import PLAIN, Way, in_pieces, start, ways_for

#: Turns of each way; the first one is not counted, as connections and memory are made in it.
TURNS = 4
#: What another way has to be better by than the plain one.
_WORTH = 0.9
#: Sizes and dtypes of one group that are tried out; whatever comes later is reduced in one call.
_MOST = 256

_log = logging.getLogger("holdfast.comm")

Key = tuple[int, torch.dtype, bool]


class Trial:
    """The ways for one size, by name, the plain one first, and how long their turns took, in seconds."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._times: list[float] = []

    def turn(self, runs: Sequence[Callable[[], None]], call: Call, nbytes: int) -> int | None:
        """Do it by the way whose turn it is; the number of the best one, when all have had theirs."""
        began = time.perf_counter()
        runs[len(self._times) % len(runs)]()
        self._times.append(time.perf_counter() - began)
        if len(self._times) < TURNS * len(runs):
            return None
        times = torch.tensor(self._times, dtype=torch.float64, device=call.state.device)
        finish([start(times, dist.ReduceOp.MIN, call.state)], call)
        return self._best(times.view(TURNS, -1)[1:].T.tolist(), call, nbytes)

    def _best(self, times: list[list[float]], call: Call, nbytes: int) -> int:
        plain, *others = (statistics.median(each) for each in times)
        fastest = min(others)
        best = 1 + others.index(fastest) if fastest < _WORTH * plain else 0
        table = ", ".join(
            f"{name} {1e6 * taken:,.0f} us" for name, taken in zip(self._names, (plain, *others), strict=True)
        )
        what = call.words.partition(" of ")[0]
        group, chosen = call.state.name, self._names[best]
        _log.info("%s of some %s bytes in group %r: by %s (%s)", what, f"{nbytes:,}", group, chosen, table)
        return best


class Choices(dict[Key, Way | tuple[Trial, list[Way]]]):
    """How one group reduces."""


class Others(dict[tuple[str, int], int | Trial]):
    """How one group does what is no reduction: by its name and size, the number of the way."""


def take(name: str, call: Call, nbytes: int, runs: Mapping[str, Callable[[], None]]) -> None:
    """Do what is called so by the fastest of the ways, the plain one first; all ranks have the same ways."""
    known = call.state.kept.setdefault(Others, Others())
    key = (name, nbytes.bit_length())
    found = known.get(key)
    ways = list(runs.values())
    if found is None:
        found = known[key] = Trial(list(runs)) if len(ways) > 1 and len(known) < _MOST else 0
    if isinstance(found, int):
        ways[found]()
    elif (best := found.turn(ways, call, nbytes)) is not None:
        known[key] = best


def reduce(flat: torch.Tensor, op: Operation, call: Call) -> None:
    """Reduce a contiguous tensor of one axis in place, by the way that was found to be the fastest here."""
    known = call.state.kept.get(Choices)
    if known is None:
        known = call.state.kept[Choices] = Choices()
    key = (flat.nbytes.bit_length(), flat.dtype, op is dist.ReduceOp.SUM or op == dist.ReduceOp.SUM)
    found = known.get(key)
    if isinstance(found, Way):
        found.reduce(flat, op, call)
        return
    if found is None:
        ways = _questioned(flat, op, call) if len(known) < _MOST else [PLAIN]
        if len(ways) == 1:
            if len(known) < _MOST:
                known[key] = ways[0]
            ways[0].reduce(flat, op, call)
            return
        found = known[key] = Trial([way.name for way in ways]), ways
    trial, ways = found
    best = trial.turn([partial(way.reduce, flat, op, call) for way in ways], call, flat.nbytes)
    if best is not None:
        known[key] = ways[best]


def is_plain(state: GroupState, nbytes: int, dtype: torch.dtype) -> bool:
    """Whether one call of the backend was decided for, for sums of this size and dtype."""
    known = state.kept.get(Choices)
    return known is not None and known.get((nbytes.bit_length(), dtype, True)) is PLAIN


def _questioned(flat: torch.Tensor, op: Operation, call: Call) -> list[Way]:
    """The ways to try out; a single one where nothing is to be found out."""
    if torch.are_deterministic_algorithms_enabled():  # a way that is chosen by its speed cannot promise the same bits
        return [PLAIN]
    poll(lambda: history.is_shared(call.state), call)
    advised = history.pieces(call.state, flat.nbytes, call.limit_s)
    if advised is not None:
        chunk = max(1, advised // flat.element_size())
        return [Way(f"pieces of {chunk:,}, which earlier time-outs speak for", partial(in_pieces, chunk=chunk))]
    return ways_for(flat, op, call)


def chosen(state: GroupState) -> dict[Key, str]:
    """By size (bits of its number of bytes), dtype, and whether it is a sum: the way that was decided for."""
    return {key: way.name for key, way in state.kept.get(Choices, Choices()).items() if isinstance(way, Way)}
