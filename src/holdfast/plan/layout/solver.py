"""Find all layouts of a model on a cluster that meet the batch exactly and fit, fastest first.

Degrees of data, shard, tensor, pipeline, context and expert parallelism, micro-batch, accumulation,
activation checkpointing and schedule (:mod:`~holdfast.plan.layout.space`) are enumerated.
:mod:`~holdfast.plan.memory.estimate` decides what fits, :mod:`~holdfast.plan.step_time.estimate`
how fast it is. Nothing is fitted here.
"""

from __future__ import annotations

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.layout.reasons import (
    RejectedAlternative,
    data_label,
    explain_layout,
    explain_rejected,
    strategy_label,
)
from holdfast.plan.layout.search import (
    LayoutCandidate,
    LayoutQuery,
    SearchState,
    make_query,
    search_layouts,
)
from holdfast.plan.layout.shortage import LayoutShortage, explain_shortage, require_exact_batch
from holdfast.plan.layout.space import LayoutOptions, stage_imbalance
from holdfast.plan.memory.estimate import MemoryEstimate, MemoryFit
from holdfast.plan.models import Transformer
from holdfast.plan.setup import TrainingSetup
from holdfast.plan.step_time.estimate import StepTime
from holdfast.plan.step_time.rates import DEFAULT_CONDITIONS, Conditions

_GIB = 1 << 30
_TIGHT = (MemoryFit.FITS, MemoryFit.TIGHT)
#: Settings of all layouts by default: a fused optimizer and DDP's bucket views are free.
BASE_SETUP = TrainingSetup(fused_optimizer=True, bucket_views=True)
#: Headings of :meth:`Layout.table_row`.
HEADINGS = (
    "strategy",
    "data",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "micro-batch",
    "recompute",
    "schedule",
    "GiB",
    "left",
    "step s",
    "tokens/s",
    "MFU",
)


class SolvedLayout(msgspec.Struct, frozen=True, kw_only=True):
    """A layout that meets the batch exactly and fits.

    ``reasons``: where its time goes, and what limits it. ``behind``: how much slower than the first
    it is, as a share of the first's throughput. ``imbalance``: how many more layers than the
    average the fullest pipeline stage has, as a share.
    """

    setup: TrainingSetup
    step: StepTime
    memory: MemoryEstimate
    reasons: tuple[str, ...]
    behind: float
    imbalance: float

    def table_row(self) -> tuple[str, ...]:
        """Return the row under :data:`HEADINGS`."""
        setup, memory = self.setup, self.memory
        return (
            strategy_label(setup),
            data_label(setup),
            str(setup.tensor),
            str(setup.pipeline),
            str(setup.context),
            str(setup.expert),
            f"{setup.micro_batch} x {setup.accumulation}",
            setup.recompute.value,
            f"{setup.schedule.value} x {setup.chunks}" if setup.pipeline > 1 else "-",
            f"{memory.worst.total / _GIB:.1f}",
            f"{(memory.margin or 0) / _GIB:.1f}",
            f"{self.step.seconds:.2f}",
            f"{self.step.tokens_per_s:,.0f}",
            f"{self.step.mfu:.0%}",
        )


class LayoutChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The ``best`` layouts, fastest first, and the ``rejected`` alternatives.

    Each layout has other degrees. ``simplest``: of the layouts at most 2 % slower than the
    first, the one with the fewest kinds of parallelism. ``tight``: the first fits
    only if the memory estimate is not too low; unless requested, this means that none fits surely.
    If none may fit, ``best`` is empty and ``shortage`` holds what would fit. ``tried``: layouts
    whose memory was estimated; ``fitting``: those whose time was estimated.
    """

    model: Transformer
    cluster: Cluster
    best: tuple[SolvedLayout, ...]
    simplest: SolvedLayout | None
    rejected: tuple[RejectedAlternative, ...]
    tried: int
    fitting: int
    tight: bool = False
    shortage: LayoutShortage | None = None

    def table_rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the best layouts under :data:`HEADINGS`."""
        return [layout.table_row() for layout in self.best]


def find_layouts(
    model: Transformer,
    cluster: Cluster,
    global_batch: int,
    sequence: int = 2048,
    *,
    base: TrainingSetup = BASE_SETUP,
    options: LayoutOptions | None = None,
    conditions: Conditions | None = None,
) -> LayoutChoice:
    """Return the best layouts of ``model`` on ``cluster`` for exactly ``global_batch`` sequences.

    ``base``: settings common to all layouts: precision, optimizer, attention, offload; searched
    settings are ignored in it.

    Raises:
        InvalidValue: no layout meets the batch exactly (the message names the nearest), or a wrong
            number.
    """
    if global_batch < 1 or sequence < 1:
        raise InvalidValue(
            "the batch", why=f"{global_batch} sequences of {sequence} tokens cannot be"
        )
    alike = msgspec.structs.replace(base, sequence=sequence)
    query = make_query(
        model,
        cluster,
        global_batch,
        alike,
        options or LayoutOptions(),
        conditions or DEFAULT_CONDITIONS,
    )
    require_exact_batch(query)
    if query.options.tight:
        query = query._replace(accepted=_TIGHT)
    state = search_layouts(query)
    ranked = _rank_candidates(query, state)
    if not ranked and not query.options.tight:
        query = query._replace(accepted=_TIGHT)
        state = search_layouts(query)
        ranked = _rank_candidates(query, state)
    first = ranked[0] if ranked else None
    return LayoutChoice(
        model=model,
        cluster=cluster,
        best=tuple(
            _build_layout(query, each, ranked[0])
            for each in _best_per_shape(ranked, query.options.max_results)
        ),
        simplest=_build_layout(query, _find_simplest(query, ranked), ranked[0]) if ranked else None,
        rejected=explain_rejected(query, state, first),
        tried=state.tried,
        fitting=state.fitting,
        tight=first is not None and first.memory.fit is MemoryFit.TIGHT,
        shortage=None if ranked else explain_shortage(query, state),
    )


def _rank_candidates(query: LayoutQuery, state: SearchState) -> list[LayoutCandidate]:
    """Return the reportable candidates, fastest first; ties by simplicity."""
    candidates = [
        candidate for candidate in state.fastest.values() if query.allows(candidate.shape)
    ]
    return sorted(
        candidates,
        key=lambda candidate: (candidate.step.seconds, _count_parallelisms(candidate.setup)),
    )


def _best_per_shape(ranked: list[LayoutCandidate], most: int) -> list[LayoutCandidate]:
    """Return the fastest of each shape."""
    shapes: dict[object, LayoutCandidate] = {}
    for candidate in ranked:
        shapes.setdefault(candidate.shape, candidate)
    return list(shapes.values())[:most]


def _count_parallelisms(setup: TrainingSetup) -> int:
    """Count the kinds of parallelism beside data parallelism."""
    return sum(
        degree > 1
        for degree in (
            setup.tensor,
            setup.pipeline,
            setup.context,
            setup.expert,
            setup.chunks,
            setup.replicas,
        )
    )


def _find_simplest(query: LayoutQuery, ranked: list[LayoutCandidate]) -> LayoutCandidate:
    slowest = ranked[0].step.seconds * (1 + query.options.simplest_within)
    return min(
        (candidate for candidate in ranked if candidate.step.seconds <= slowest),
        key=lambda candidate: _count_parallelisms(candidate.setup),
    )


def _build_layout(
    query: LayoutQuery, candidate: LayoutCandidate, first: LayoutCandidate
) -> SolvedLayout:
    return SolvedLayout(
        setup=candidate.setup,
        step=candidate.step,
        memory=candidate.memory,
        reasons=explain_layout(query, candidate),
        behind=1 - candidate.step.tokens_per_s / first.step.tokens_per_s,
        imbalance=stage_imbalance(query.model, candidate.setup.pipeline, candidate.setup.chunks),
    )
