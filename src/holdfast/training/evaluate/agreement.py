"""Agreement of the ranks of an evaluation: one sum in a group of its own, else over the store.

The sum carries everything while no rank fails: the number of ranks without an error, the samples
seen, and sum and count of each metric. Its result is also proposed as the decision in the store,
where the first proposal counts: a rank whose sum failed or came too late reads it there.
"""

from __future__ import annotations

import json
import logging
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from holdfast.core.errors import CollectiveTimeout, HoldfastError, WorldError
from holdfast.training.collectives import failures, timeout_history
from holdfast.training.collectives.groups.group_info import (
    GenerationCounter,
    epoch,
    job_store,
    state_of,
)
from holdfast.training.collectives.groups.group_rebuild import rebuild
from holdfast.training.collectives.reduce import all_reduce
from holdfast.training.evaluate.decision import (
    DatasetTally,
    EvaluationDecision,
    RankOutcome,
    combine_outcomes,
    decode,
    encode,
)
from holdfast.training.evaluate.store_table import DecisionTable

_log = logging.getLogger("holdfast.evaluate")
_evaluation_counter = GenerationCounter()
#: State of a rebuilt group, on one rank or on all: created, retried later, or abandoned.
_CREATED, _LATER, _NEVER = "created", "later", "never"

#: Datasets and their metrics, in the order in which their sums are reduced.
MetricLayout = dict[str, list[str]]


class EvaluationAgreement:
    """Agreements of one evaluation. All ranks of the job create it, in the same order.

    ``only_rank`` evaluates alone; the others read its decisions. ``grace_s``: how much longer than
    its own budget each rank waits for the others, which may have started later or be in their last
    batch.
    """

    def __init__(self, budget_s: float, grace_s: float, only_rank: int | None = None) -> None:
        self.grace_s = grace_s
        #: The group is broken on this rank; it is to be rebuilt, as all ranks decided.
        self._is_lost = self._needs_rebuild = False
        self._group: dist.ProcessGroup | None = None
        self._layout: MetricLayout | None = None
        self._is_distributed = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if self._is_distributed else 0
        size = dist.get_world_size() if self._is_distributed else 1
        ranks = tuple(range(size)) if only_rank is None else (only_rank,)
        self.table = DecisionTable(self._create_store(), ranks, self.rank)
        if size > 1 and only_rank is None and dist.is_gloo_available():
            # On the host whatever training uses: the sum is small, and its timeout is reliable.
            limit = timedelta(seconds=max(budget_s + 3 * grace_s, 30.0))
            self._group = dist.new_group(
                backend="gloo", timeout=limit, group_desc="holdfast evaluation"
            )

    def _create_store(self) -> Store:
        if not self._is_distributed:
            store: Store = dist.HashStore()  # type: ignore[attr-defined]
            return store
        number = _evaluation_counter.next()
        return PrefixStore(f"holdfast/evaluate/{epoch()}/{number}", job_store())

    @property
    def group(self) -> dist.ProcessGroup | None:
        """Return the evaluation's group; None if there is none (one rank, or a broken group)."""
        return None if self._is_lost else self._group

    @property
    def is_observer(self) -> bool:
        """Return whether another rank evaluates for this one."""
        return self.rank not in self.table.ranks

    def advised_delay(self) -> int:
        """Return how many evaluations to skip after each, by rank 0's history; 0 if unknown."""
        if not self._is_distributed:
            return 0
        try:
            state = state_of(None, broken_too=True)
            return timeout_history.advised_evaluation_delay(state, self.grace_s)
        except (WorldError, dist.DistError, ConnectionError) as error:
            _log.warning("cannot read the history of evaluations: %s", error)
            return 0

    def prepare_group(self, key: str) -> None:
        """Before an evaluation, rebuild the group if all ranks decided that it is broken."""
        if self._needs_rebuild and self._group is not None:
            self._rebuild(self._group, f"{key}/group")

    def decide(
        self, key: str, outcome: RankOutcome, deadline: float, *, may_retry: bool
    ) -> EvaluationDecision:
        """Report this rank's outcome, and return the decision, equal on every rank.

        Args:
            key: names this attempt.
            outcome: of this rank.
            deadline: the end of this rank's budget, on the monotonic clock.
            may_retry: whether another attempt is allowed, if the budget permits.
        """
        text = self._find_decision_after(key, deadline)
        text = text or self._decide_by_sum(key, outcome, deadline)
        if text is None:
            text = self._decide_over_store(key, outcome, deadline, may_retry=may_retry)
        decision = decode(text, EvaluationDecision)
        self._apply(decision)
        return decision

    def await_decision(self, key: str, deadline: float) -> EvaluationDecision:
        """Return the decision of the only rank that evaluates; a failed one if it is too late."""
        failed = encode(combine_outcomes({}, self.table.ranks, may_retry=False))
        end = deadline + 2 * self.grace_s
        text = self.table.agree(f"{key}/all", None, lambda _: failed, end, self.grace_s)
        return decode(text, EvaluationDecision)

    def publish_decision(self, key: str, decision: EvaluationDecision) -> EvaluationDecision:
        """Publish this rank's decision to observers; return theirs if they gave up waiting."""
        return decode(self.table.propose(f"{key}/all", encode(decision)), EvaluationDecision)

    def agree_maximum(self, key: str, numbers: list[float], deadline: float) -> list[float] | None:
        """Return the largest of each number over all ranks; None on all if a rank is missing."""
        text = self._find_decision_after(key, deadline)
        if text is None:
            vector = torch.tensor(numbers, dtype=torch.float64)
            if self._reduce(vector, dist.ReduceOp.MAX, deadline):
                text = self.table.propose(key, json.dumps(vector.tolist()))
            else:
                end, own = deadline + 2 * self.grace_s, json.dumps(numbers)
                text = self.table.agree(key, own, self._find_maximum, end, self.grace_s)
        largest: list[float] | None = json.loads(text)
        return largest

    def _find_maximum(self, messages: dict[int, str]) -> str:
        if len(messages) < len(self.table.ranks):
            return "null"
        columns = zip(*map(json.loads, messages.values()), strict=True)
        return json.dumps([max(column) for column in columns])

    # ---- decisions

    def _find_decision_after(self, key: str, deadline: float) -> str | None:
        """Return the decision of faster ranks, if this one is past its deadline."""
        return self.table.find_decision(key) if time.monotonic() > deadline else None

    def _decide_by_sum(self, key: str, outcome: RankOutcome, deadline: float) -> str | None:
        """Return the decision if no rank failed; None if one did, or the sum failed."""
        if self._layout is None:
            return None
        vector = torch.tensor(_pack(outcome, self._layout), dtype=torch.float64)
        if not self._reduce(vector, dist.ReduceOp.SUM, deadline):
            return None
        succeeded, *numbers = vector.tolist()
        if succeeded != len(self.table.ranks):
            return None
        decision = EvaluationDecision(_unpack(numbers, self._layout))
        return self.table.propose(key, encode(decision))

    def _reduce(self, vector: torch.Tensor, op: dist.ReduceOp.RedOpType, deadline: float) -> bool:
        """Reduce in place; return False if there is no group, or it broke."""
        if self.group is None:
            return False
        limit_s = max(deadline - time.monotonic(), 0.0) + self.grace_s
        try:
            all_reduce(vector, op, self.group, timeout=limit_s)
        except (HoldfastError, RuntimeError) as error:
            _log.warning("evaluation continues over the store: %s", error)
            self._lose_group(f"it failed in evaluation: {error}")
            return False
        return True

    def _decide_over_store(
        self, key: str, outcome: RankOutcome, deadline: float, *, may_retry: bool
    ) -> str:
        ranks = self.table.ranks

        def combine(messages: dict[int, str]) -> str:
            outcomes = {rank: decode(text, RankOutcome) for rank, text in messages.items()}
            has_time = time.monotonic() < deadline
            return encode(combine_outcomes(outcomes, ranks, may_retry=may_retry and has_time))

        message = encode(RankOutcome(outcome.tallies, outcome.error, group_lost=self._is_lost))
        return self.table.agree(key, message, combine, deadline + 2 * self.grace_s, self.grace_s)

    def _apply(self, decision: EvaluationDecision) -> None:
        if decision.group_lost:
            self._lose_group("it broke on another rank")
            self._needs_rebuild = True
        if self._layout is None and self._group is not None:
            # Decided once, so that all ranks sum vectors of one length.
            text = self.table.find_decision("layout")
            tallies = decision.tallies
            if text is None and tallies and all(tally.complete for tally in tallies.values()):
                layout = {name: list(tally.sums) for name, tally in tallies.items()}
                text = self.table.propose("layout", json.dumps(layout))
            self._layout = json.loads(text) if text else None

    # ---- the group

    def _lose_group(self, why: str) -> None:
        self._is_lost = True
        if self._group is not None:
            failures.break_group(state_of(self._group, broken_too=True), why)

    def _rebuild(self, group: dist.ProcessGroup, key: str) -> None:
        """Rebuild the group if all ranks can; otherwise the store serves, more slowly."""
        deadline, new_group, outcome = time.monotonic() + 2 * self.grace_s, group, _CREATED
        try:
            new_group = rebuild(group, timeout=self.grace_s)
        except CollectiveTimeout as error:
            outcome = _LATER
            _log.warning("this evaluation continues over the store: %s", error)
        except (WorldError, RuntimeError) as error:
            outcome = _NEVER
            _log.warning("evaluation continues over the store: %s", error)
        decided = self.table.agree(key, outcome, self._combine_rebuilds, deadline, self.grace_s)
        self._is_lost = self._needs_rebuild = decided != _CREATED
        self._group = None if decided == _NEVER else new_group

    def _combine_rebuilds(self, messages: dict[int, str]) -> str:
        """Return the common outcome. If only some ranks have a group, a retry cannot match them."""
        outcomes = set(messages.values())
        is_common = len(outcomes) == 1 and len(messages) == len(self.table.ranks)
        return outcomes.pop() if is_common else _NEVER


def _pack(outcome: RankOutcome, layout: MetricLayout) -> list[float]:
    """Return 1 for success, then samples seen and each metric's sum and count, per dataset."""
    succeeded = not outcome.error and outcome.tallies.keys() <= layout.keys()
    numbers = []
    for name, metrics in layout.items():
        tally = outcome.tallies.get(name, DatasetTally())
        succeeded = succeeded and tally.complete and tally.sums.keys() <= set(metrics)
        numbers.append(float(tally.seen))
        for metric in metrics:
            numbers.extend(tally.sums.get(metric, (0.0, 0.0)))
    return [float(succeeded), *numbers]


def _unpack(numbers: list[float], layout: MetricLayout) -> dict[str, DatasetTally]:
    remaining = iter(numbers)
    tallies = {}
    for name, metrics in layout.items():
        seen = int(next(remaining))
        sums = {metric: (next(remaining), next(remaining)) for metric in metrics}
        tallies[name] = DatasetTally(seen, seen, complete=True, sums=sums)
    return tallies
