"""Are all ranks at the same step, with as many batches and the same parameters? Looked at now and then, in passing.

A check is one all-reduce of six numbers in a gloo group of its own, beside whatever the ranks do, and is looked at when
the next one is due. Every rank looks at the same call, so that all raise at the same place.
"""

from __future__ import annotations

import atexit
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from holdfast.errors import BadValue, OutOfLockstep
from holdfast.report.ranksets import say_ranks
from holdfast.runtime.comm.groups import GroupState, state_of
from holdfast.runtime.comm.making import beside
from holdfast.runtime.comm.presence import Call
from holdfast.runtime.comm.waiting import begin, finish, poll

#: For a rank that is not at a check when the others are at the one after it.
LOCKSTEP_LIMIT_S = 300.0
#: A check reads at most so many bytes of parameters; the next one goes on behind them.
BYTES_A_CHECK = 64 * 2**20
_WHAT = ("step", "batches", "parameters")
_WORDS = "a check of lockstep"
#: For what a rank does not give.
_NONE = -1


def lockstep(
    step: int,
    *,
    every: int = 50,
    batches: int | None = None,
    parameters: Iterable[torch.Tensor] | None = None,
    group: dist.ProcessGroup | None = None,
    timeout: float = LOCKSTEP_LIMIT_S,
) -> None:
    """Say at each step where this rank is; the first call and every ``every``-th after it checks that all say the same.

    A check is told of by the next one. It counts calls and not steps, so that a rank that went on from another
    checkpoint is found too. ``batches``: how many this rank has had. ``parameters``: of the model, where all ranks of
    the group hold the same; some are read at each check (64 MiB), so that all are after a few. Sharded ones: give the
    group of the ranks that hold the same shard.

    Raises:
        OutOfLockstep: on every rank, it names those that differ from most, and what each has.
        CollectiveTimeout: ranks did not come to the last check within ``timeout`` seconds; it names them.
        BadValue, CollectiveFailed, GroupBroken: as :func:`holdfast.comm.all_reduce`.
    """
    watch = _watches.get(group if group is not None else dist.group.WORLD)  # type: ignore[arg-type]
    if watch is None:
        watch = _watch(group, every, timeout)
    watch.calls += 1
    if (watch.calls - 1) % every == 0:
        watch.look(timeout)
        watch.start(step, batches, parameters)


class Watch:
    """The checks of one group. ``calls`` counts those of :func:`lockstep`, the same on all ranks."""

    def __init__(self, watched: GroupState, timeout: float) -> None:
        self.calls = 0
        self._name = watched.name  # not the group itself, which would never be dropped
        self._state = state_of(beside(watched, "gloo", "lockstep", timedelta(seconds=timeout), timeout))
        self._own = (0, _NONE, _NONE)
        self._shared = torch.empty(0)
        self._work: dist.Work | None = None
        self._next_parameter = 0

    def look(self, limit_s: float) -> None:
        """Wait for the check under way, which began a while ago, and raise what it found."""
        if self._work is None:
            return
        call = begin(self._state, _WORDS, limit_s)
        work, self._work = self._work, None
        finish([work], call)
        most, inverted = self._shared.view(2, -1).tolist()
        if most != [~least for least in inverted]:
            self._tell(call)

    def start(self, step: int, batches: int | None, parameters: Iterable[torch.Tensor] | None) -> None:
        """Begin a check of this rank's numbers."""
        checksum = _NONE if parameters is None else self._checksum(list(parameters))
        self._own = (step, _NONE if batches is None else batches, checksum)
        values = torch.tensor(self._own, dtype=torch.int64)
        self._shared = torch.cat([values, ~values])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        self._work = self._state.group.allreduce([self._shared], options)

    def _checksum(self, parameters: Sequence[torch.Tensor]) -> int:
        """Of the next parameters in turn, as many as one check may read; their places count."""
        if not parameters:
            return _NONE
        first, size, sums = self._next_parameter % len(parameters), 0, []
        for parameter in islice((*parameters, *parameters), first, first + len(parameters)):
            sums.append(bits(parameter))
            size += parameter.numel() * parameter.element_size()
            if size >= BYTES_A_CHECK:
                break
        self._next_parameter = (first + len(sums)) % len(parameters)
        stacked = torch.stack(sums)
        weights = torch.arange(1, 2 * len(sums), 2, device=stacked.device)  # odd, so that no bit is lost
        return int((stacked * weights).sum().item())

    def _tell(self, call: Call) -> None:
        """All ranks write what they have, and raise the same sentence."""
        store, ranks = self._state.store, self._state.ranks
        keys = [call.key(f"has/{rank}") for rank in ranks]
        store.set(call.key(f"has/{dist.get_rank()}"), " ".join(map(str, self._own)))
        poll(lambda: store.check(keys), call)
        have = {rank: tuple(map(int, word.split())) for rank, word in zip(ranks, store.multi_get(keys), strict=True)}
        odd, why = compare(have)
        raise OutOfLockstep(f"group {self._name!r}", why=why, odd=odd)


_watches: WeakKeyDictionary[dist.ProcessGroup, Watch] = WeakKeyDictionary()
atexit.register(_watches.clear)  # threads of gloo must not outlive the interpreter


def _watch(group: dist.ProcessGroup | None, every: int, timeout: float) -> Watch:
    state = state_of(group)
    if every < 1 or not timeout > 0:
        raise BadValue("lockstep", why=f"every {every} steps within {timeout} s makes no sense")
    found = _watches[state.group] = Watch(state, timeout)
    return found


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The sum of the tensor's bits as 64-bit integers, on its device: one number, no copy where it is contiguous."""
    local = tensor.detach()
    local = getattr(local, "to_local", lambda: local)()  # a DTensor's own shard
    flat = local.contiguous().view(-1)
    flat = torch.view_as_real(flat).view(-1) if flat.is_complex() else flat
    if flat.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=flat.device)
    in_one = 8 // flat.element_size()
    if (flat.storage_offset() * flat.element_size()) % 8:
        return flat.view(torch.uint8).sum(dtype=torch.int64)
    whole = flat.numel() // in_one * in_one
    total = flat[:whole].view(torch.int64).sum()
    return total + flat[whole:].view(torch.uint8).sum(dtype=torch.int64) if whole < flat.numel() else total


def compare(have: dict[int, tuple[int, ...]]) -> tuple[tuple[int, ...], str]:
    """The ranks that differ from most, and a sentence of who has what."""
    odd: set[int] = set()
    sentences = []
    for at, what in enumerate(_WHAT):
        values = Counter(mine[at] for mine in have.values())
        if len(values) == 1:
            continue
        usual = values.most_common(1)[0][0]
        others = {value: [rank for rank, mine in have.items() if mine[at] == value] for value in values}
        odd.update(rank for value, ranks in others.items() if value != usual for rank in ranks)
        parts = [_say(what, ranks, value) for value, ranks in others.items() if value != usual]
        sentences.append(f"{', '.join(parts)}, {_say(what, others[usual], usual, short=True)}")
    return tuple(sorted(odd)), "; ".join(sentences)


def _say(what: str, ranks: Sequence[int], value: int, *, short: bool = False) -> str:
    """``rank 3 is at step 41``, and where the same was just said of others, ``ranks 0-2 at 42``."""
    who, one = say_ranks(ranks), len(ranks) == 1
    if what == "step":
        return f"{who} at {value}" if short else f"{who} {'is' if one else 'are'} at step {value}"
    if what == "batches":
        shown = "no number of" if value == _NONE else str(value)
        return f"{who} {shown}" if short else f"{who} had {shown} batches"
    shown = "none" if value == _NONE else f"checksum {value & (2**64 - 1):016x}"
    return f"{who} {shown}" if short else f"{who} {'has' if one else 'have'} other parameters ({shown})"
