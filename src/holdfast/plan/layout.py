"""How to divide a model over a cluster: all layouts that meet the batch exactly and fit, the fastest first.

Degrees of data, shard, tensor, pipeline, context and expert parallelism, micro-batch, accumulation, recomputing and
schedule (:mod:`~holdfast.plan.layout_space`) are tried one by one; :mod:`~holdfast.plan.memory` says what fits and
:mod:`~holdfast.plan.time` how fast it is. Nothing is fitted here.
"""

from __future__ import annotations

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.layout_reasons import Lost, data, lost, reasons, strategy
from holdfast.plan.layout_search import Candidate, Question, Seen, ask, search
from holdfast.plan.layout_shortage import Shortage, exact_batch, shortage
from holdfast.plan.layout_space import Options, imbalance
from holdfast.plan.memory import Answer, Footprint
from holdfast.plan.models import Transformer
from holdfast.plan.rates import USUAL, Conditions
from holdfast.plan.setup import Setup
from holdfast.plan.time import Step

_GIB = 1 << 30
_TIGHT = (Answer.FITS, Answer.TIGHT)
#: What all layouts have alike where nothing is said: the optimizer's fused kernel and DDP's views cost nothing.
BASE = Setup(fused_optimizer=True, bucket_views=True)
#: Of :meth:`Layout.row`.
HEADINGS = (
    "strategy", "data", "tensor", "pipeline", "context", "expert", "micro-batch", "recompute", "schedule", "GiB",
    "left", "step s", "tokens/s", "MFU",
)  # fmt: skip


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A way to train that meets the batch exactly and fits.

    ``reasons``: where its time goes, and what keeps it from being faster. ``behind``: how much slower than the first it
    is, as a share of the first's tokens a second. ``imbalance``: how many more layers than the average the fullest
    pipeline stage has, as a share.
    """

    setup: Setup
    step: Step
    needs: Footprint
    reasons: tuple[str, ...]
    behind: float
    imbalance: float

    def row(self) -> tuple[str, ...]:
        """Under :data:`HEADINGS`."""
        run, needs = self.setup, self.needs
        return (
            strategy(run), data(run), str(run.tensor), str(run.pipeline), str(run.context), str(run.expert),
            f"{run.micro_batch} x {run.accumulation}", run.recompute.value,
            f"{run.schedule.value} x {run.chunks}" if run.pipeline > 1 else "-",
            f"{needs.worst.total / _GIB:.1f}", f"{(needs.margin or 0) / _GIB:.1f}", f"{self.step.seconds:.2f}",
            f"{self.step.tokens_per_s:,.0f}", f"{self.step.mfu:.0%}",
        )  # fmt: skip


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer: the ``best`` layouts, the fastest first, each of other degrees; and why the ``others`` lost.

    ``simplest``: of those as fast as the first within the error of the model of time, the one with the fewest kinds of
    parallelism. ``tight``: the first fits only if the estimate of memory is not too low; where such were not asked for,
    none fits safely. Where not even one may, ``best`` is empty and ``shortage`` says what would fit. ``tried``: layouts
    whose memory was reckoned, and ``fitting`` those of them whose time was.
    """

    model: Transformer
    cluster: Cluster
    best: tuple[Layout, ...]
    simplest: Layout | None
    others: tuple[Lost, ...]
    tried: int
    fitting: int
    tight: bool = False
    shortage: Shortage | None = None

    def rows(self) -> list[tuple[str, ...]]:
        """Of each of the best one, under :data:`HEADINGS`."""
        return [each.row() for each in self.best]


def layouts(
    model: Transformer, cluster: Cluster, global_batch: int, sequence: int = 2048, *, base: Setup = BASE,
    options: Options | None = None, conditions: Conditions | None = None,
) -> Choice:  # fmt: skip
    """The best layouts of ``model`` on ``cluster`` with steps of exactly ``global_batch`` sequences.

    ``base`` is what all have alike: precision, optimizer, attention, offload; what the search varies is ignored in it.

    Raises:
        BadValue: no layout meets the batch exactly, and the nearest ones are offered; or a number is wrong.
    """
    if global_batch < 1 or sequence < 1:
        raise BadValue("the batch", why=f"{global_batch} sequences of {sequence} tokens cannot be")
    alike = msgspec.structs.replace(base, sequence=sequence)
    question = ask(model, cluster, global_batch, alike, options or Options(), conditions or USUAL)
    exact_batch(question)
    if question.options.tight:
        question = question._replace(accepted=_TIGHT)
    seen = search(question)
    ranked = _ranked(question, seen)
    if not ranked and not question.options.tight:
        question = question._replace(accepted=_TIGHT)
        seen = search(question)
        ranked = _ranked(question, seen)
    first = ranked[0] if ranked else None
    return Choice(
        model=model, cluster=cluster,
        best=tuple(_layout(question, each, ranked[0]) for each in _different(ranked, question.options.most)),
        simplest=_layout(question, _simplest(question, ranked), ranked[0]) if ranked else None,
        others=lost(question, seen, first), tried=seen.tried, fitting=seen.fitting,
        tight=first is not None and first.needs.answer is Answer.TIGHT,
        shortage=None if ranked else shortage(question, seen),
    )  # fmt: skip


def _ranked(question: Question, seen: Seen) -> list[Candidate]:
    """Those that may be answered, the fastest first; of equals the simplest."""
    allowed = [each for each in seen.fastest.values() if question.allows(each.shape)]
    return sorted(allowed, key=lambda each: (each.step.seconds, _kinds(each.setup)))


def _different(ranked: list[Candidate], most: int) -> list[Candidate]:
    """The fastest of each shape."""
    shapes: dict[object, Candidate] = {}
    for each in ranked:
        shapes.setdefault(each.shape, each)
    return list(shapes.values())[:most]


def _kinds(run: Setup) -> int:
    """Kinds of parallelism beside data's."""
    return sum(each > 1 for each in (run.tensor, run.pipeline, run.context, run.expert, run.chunks, run.replicas))


def _simplest(question: Question, ranked: list[Candidate]) -> Candidate:
    slowest = ranked[0].step.seconds * (1 + question.options.error)
    return min((each for each in ranked if each.step.seconds <= slowest), key=lambda each: _kinds(each.setup))


def _layout(question: Question, found: Candidate, first: Candidate) -> Layout:
    return Layout(
        setup=found.setup, step=found.step, needs=found.needs, reasons=reasons(question, found),
        behind=1 - found.step.tokens_per_s / first.step.tokens_per_s,
        imbalance=imbalance(question.model, found.setup.pipeline, found.setup.chunks),
    )  # fmt: skip
