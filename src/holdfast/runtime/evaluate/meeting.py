"""Where the ranks of an evaluation meet: one sum in a group of its own, and the table where that fails.

The sum carries everything there is to know while all is well: the number of ranks without trouble, the samples seen,
sum and count of each metric. What it gives is put on the table too, where the first proposal counts: a rank whose sum
failed, or came too late, reads there what the others have.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.errors import CollectiveTimeout, HoldfastError, WorldError
from holdfast.runtime.comm import history, trouble
from holdfast.runtime.comm.groups import Numbers, epoch, job_store, state_of
from holdfast.runtime.comm.rebuild import rebuild
from holdfast.runtime.comm.reduce import all_reduce
from holdfast.runtime.evaluate.decision import Decision, Outcome, Tally, decode, encode, weigh
from holdfast.runtime.evaluate.table import Table

_log = logging.getLogger("holdfast.evaluate")
_numbers = Numbers()
#: What ranks say, and decide, of a fresh group: all have it, nobody does yet, it is done without.
_MADE, _LATER, _NEVER = "made", "later", "never"

#: Datasets and their metrics, in the order in which their sums are reduced.
Layout = dict[str, list[str]]


class Meeting:
    """The meetings of one evaluation. All ranks of the job make it, in the same order.

    ``speaker``: the only rank that evaluates; the others listen. ``grace_s``: so much longer than its own time each
    rank waits for the others, who began a little later, or are still in their last batch.
    """

    def __init__(self, budget_s: float, grace_s: float, speaker: int | None = None) -> None:
        self.grace_s = grace_s
        #: Not used any more, as this rank found; to be made anew, as all have heard in the same decision.
        self._lost = self._renew = False
        self._group: dist.ProcessGroup | None = None
        self._layout: Layout | None = None
        self.alone = not (dist.is_available() and dist.is_initialized())
        self.rank = 0 if self.alone else dist.get_rank()
        size = 1 if self.alone else dist.get_world_size()
        everybody = tuple(range(size)) if speaker is None else (speaker,)
        self.table = Table(_store(alone=self.alone), everybody, self.rank)
        if size > 1 and speaker is None and dist.is_gloo_available():
            # On the host whatever training uses: what is summed is small, and a wait for it ends when it should.
            limit = timedelta(seconds=max(budget_s + 3 * grace_s, 30.0))
            self._group = dist.new_group(backend="gloo", timeout=limit, group_desc="holdfast evaluation")

    @property
    def group(self) -> dist.ProcessGroup | None:
        """The group of this evaluation; None where it has none (one rank, or it was lost)."""
        return None if self._lost else self._group

    def advised_delay(self) -> int:
        """How many evaluations to leave out after each, by rank 0's history; 0 where it cannot be asked."""
        if self.alone:
            return 0
        try:
            return history.evaluation_delay(state_of(None, broken_too=True), self.grace_s)
        except (WorldError, dist.DistError, ConnectionError) as error:
            _log.warning("the history is not asked: %s", error)
            return 0

    def open(self, key: str) -> None:
        """Before an evaluation: a fresh group in place of one that was lost on any rank, as all were told."""
        if self._renew and self._group is not None:
            self._rebuild(self._group, f"{key}/group")

    def decide(self, key: str, outcome: Outcome, deadline: float, *, may_retry: bool) -> Decision:
        """Tell the others how it went here, and hear what is done about it: the same on every rank.

        Args:
            key: names this try.
            outcome: of this rank.
            deadline: the end of this rank's time, on the monotonic clock.
            may_retry: whether there may be another try, if the time is not over.
        """
        decided = self.table.decision(key) if time.monotonic() > deadline else None
        if decided is None:
            decided = self._sum(key, outcome, deadline) or self._talk(key, outcome, deadline, may_retry=may_retry)
        decision = decode(decided, Decision)
        self._after(decision)
        return decision

    @property
    def listens(self) -> bool:
        """True where another rank evaluates for this one."""
        return self.rank not in self.table.ranks

    def listen(self, key: str, deadline: float) -> Decision:
        """Hear what the one rank that evaluates comes to; where it does not in time, that is decided."""
        nothing = encode(weigh({}, self.table.ranks, may_retry=False))
        end = deadline + 2 * self.grace_s
        return decode(self.table.settle(f"{key}/all", None, lambda _: nothing, end, self.grace_s), Decision)

    def announce(self, key: str, decision: Decision) -> Decision:
        """Tell those who listen; they may have given up before, and then it is as they say."""
        return decode(self.table.decide(f"{key}/all", encode(decision)), Decision)

    def most(self, key: str, numbers: list[float], deadline: float) -> list[float] | None:
        """The largest of each number over all ranks; None, on every rank, where some rank did not come."""
        decided = self.table.decision(key) if time.monotonic() > deadline else None
        if decided is None:
            decided = self._maximum(key, numbers, deadline) or self.table.settle(
                key, json.dumps(numbers), self._largest, deadline + 2 * self.grace_s, self.grace_s
            )
        largest: list[float] | None = json.loads(decided)
        return largest

    def _maximum(self, key: str, numbers: list[float], deadline: float) -> str | None:
        vector = torch.tensor(numbers, dtype=torch.float64)
        if not self._reduce(vector, dist.ReduceOp.MAX, deadline):
            return None
        return self.table.decide(key, json.dumps(vector.tolist()))

    def _largest(self, voices: dict[int, str]) -> str:
        if len(voices) < len(self.table.ranks):
            return "null"
        return json.dumps([max(column) for column in zip(*map(json.loads, voices.values()), strict=True)])

    # ---- the sum

    def _sum(self, key: str, outcome: Outcome, deadline: float) -> str | None:
        """What is decided where all ranks are well; None where one is not, or the sum failed."""
        if self._layout is None:
            return None
        vector = torch.tensor(_pack(outcome, self._layout), dtype=torch.float64)
        if not self._reduce(vector, dist.ReduceOp.SUM, deadline):
            return None
        well, *numbers = vector.tolist()
        if well != len(self.table.ranks):
            return None
        return self.table.decide(key, encode(Decision(_unpack(numbers, self._layout))))

    def _reduce(self, vector: torch.Tensor, op: dist.ReduceOp.RedOpType, deadline: float) -> bool:
        """False where there is no group, or no longer."""
        if self.group is None:
            return False
        try:
            all_reduce(vector, op, self.group, timeout=max(deadline - time.monotonic(), 0.0) + self.grace_s)
        except (HoldfastError, RuntimeError) as error:
            _log.warning("the ranks go on over the store: %s", error)
            self._lose(f"it failed in evaluation: {error}")
            return False
        return True

    def _talk(self, key: str, outcome: Outcome, deadline: float, *, may_retry: bool) -> str:
        ranks = self.table.ranks

        def count_voices(voices: dict[int, str]) -> str:
            outcomes = {rank: decode(voice, Outcome) for rank, voice in voices.items()}
            return encode(weigh(outcomes, ranks, may_retry=may_retry and time.monotonic() < deadline))

        voice = encode(Outcome(outcome.tallies, outcome.trouble, lost=self._lost))
        return self.table.settle(key, voice, count_voices, deadline + 2 * self.grace_s, self.grace_s)

    def _after(self, decision: Decision) -> None:
        if decision.lost:
            self._lose("it was lost on another rank")
            self._renew = True
        if self._layout is None and self._group is not None:
            # Written once, so that all ranks sum vectors of one length.
            text = self.table.decision("layout")
            if text is None and decision.tallies and all(tally.complete for tally in decision.tallies.values()):
                layout = {name: list(tally.sums) for name, tally in decision.tallies.items()}
                text = self.table.decide("layout", json.dumps(layout))
            self._layout = json.loads(text) if text else None

    # ---- the group

    def _lose(self, why: str) -> None:
        self._lost = True
        if self._group is not None:
            trouble.leave(state_of(self._group, broken_too=True), why)

    def _rebuild(self, group: dist.ProcessGroup, key: str) -> None:
        """A fresh group if all ranks come and get it; otherwise the store serves, which is slower and as right."""
        end, fresh, voice = time.monotonic() + 2 * self.grace_s, group, _MADE
        try:
            fresh = rebuild(group, timeout=self.grace_s)
        except CollectiveTimeout as error:
            voice = _LATER
            _log.warning("evaluation goes on over the store for now: %s", error)
        except (WorldError, RuntimeError) as error:
            voice = _NEVER
            _log.warning("evaluation goes on over the store: %s", error)
        decided = self.table.settle(key, voice, self._count_groups, end, self.grace_s)
        self._lost = self._renew = decided != _MADE
        self._group = None if decided == _NEVER else fresh

    def _count_groups(self, voices: dict[int, str]) -> str:
        """Where some have it and some not, they would not find each other a second time."""
        said = set(voices.values())
        return said.pop() if len(said) == 1 and len(voices) == len(self.table.ranks) else _NEVER


def _store(*, alone: bool) -> Store:
    if alone:
        store: Store = dist.HashStore()  # type: ignore[attr-defined]  # it is there, and not listed
        return store
    return PrefixStore(f"holdfast/evaluate/{epoch()}/{_numbers.next()}", job_store())


def _pack(outcome: Outcome, layout: Layout) -> list[float]:
    """1 where all went well here, and then for each dataset the samples seen, and sum and count of each metric."""
    well = not outcome.trouble and outcome.tallies.keys() <= layout.keys()
    numbers = []
    for name, metrics in layout.items():
        tally = outcome.tallies.get(name, Tally())
        well = well and tally.complete and tally.sums.keys() <= set(metrics)
        numbers.append(float(tally.seen))
        for metric in metrics:
            numbers.extend(tally.sums.get(metric, (0.0, 0.0)))
    return [float(well), *numbers]


def _unpack(numbers: list[float], layout: Layout) -> dict[str, Tally]:
    each = iter(numbers)
    tallies = {}
    for name, metrics in layout.items():
        seen = int(next(each))
        sums = {metric: (next(each), next(each)) for metric in metrics}
        tallies[name] = Tally(seen, seen, complete=True, sums=sums)
    return tallies
