"""What is shown of a plan: its numbers in the words of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.actions.plan.command import command
from holdfast.actions.plan.planning import Fix, Planned
from holdfast.actions.plan.wish import GIB, Run, Wish, needs
from holdfast.errors import BadValue
from holdfast.plan.generate.choice import Framework, choose
from holdfast.plan.layout_reasons import described, strategy
from holdfast.plan.memory import Answer, Footprint, Rank
from holdfast.plan.remedies import Remedy
from holdfast.plan.setup import Offload, Recompute, Setup
from holdfast.plan.shortfall import Shortfall
from holdfast.plan.time import Step
from holdfast.report import plan as report
from holdfast.report.ranksets import compress_ranks
from holdfast.report.text import duration, plural

if TYPE_CHECKING:
    from holdfast.actions.plan.files import Files
    from holdfast.plan.batches import Allotment

#: By benchmarks/plan_truth_time.py: all rows but collectives and those that rates are fitted to.
TIME_ERROR = (
    "of 111 published times that no rate was fitted to, half are within 3 % of this model, nine of ten within 14 %"
)
_MOST_REMEDIES = 5
_MOST_LOSERS = 14


def shown(
    planned: Planned, *, grouped: bool = False, pictured: bool = False, files: Files | None = None
) -> report.Shown:  # fmt: skip
    """For a terminal or a page; ``grouped``: with process groups, ``pictured``: as drawings."""
    wish, one = planned.wish, planned.run
    error = one.footprint.error
    curve = planned.curve
    groups, drawn = _groups(one, pictured=pictured) if (grouped or pictured) and len(planned.runs) == 1 else ((), ())
    groups = groups if grouped else ()
    return report.Shown(
        model=wish.model.name, cluster=wish.on, answer=str(one.footprint.answer), headline=headline(planned),
        setup=tuple(_setup(planned)), bars=tuple(_bars(planned)),
        memory_error=f"of what is reserved, most published peaks are within {error:.0%} of what this says",
        speed=_speed(one.step) if one.step else None,
        no_speed=one.why, fixes=tuple(_fix(each) for each in planned.fixes),
        curve=tuple(
            report.Point(each.gpus, each.step.tokens_per_s, each.efficiency, each.reason, _room(wish, each.setup))
            for each in curve.points
        ) if curve else (),
        curve_note=_curve_note(planned), remedies=tuple(_remedies(planned)),
        shortfall=tuple(_shortfall(planned.shortfall)) if planned.shortfall else (),
        dealt=_dealt(planned.allotment) if planned.allotment else None,
        layouts=tuple(_layouts(planned)), losers=tuple(_losers(planned))[:_MOST_LOSERS],
        drawn=drawn, world=one.setup.world_size, per_node=one.cluster.per_node, groups=groups,
        written=tuple((each.path, each.purpose) for each in files.kept) if files else (),
        unsaid=files.unsaid if files else (), **_framework(planned),
        seen=planned.seen,
        traps=tuple(claim.message for claim in planned.findings if claim.cause != "gpu-oom-all-ranks"),
    )  # fmt: skip


def _framework(planned: Planned) -> dict[str, Any]:
    """FSDP or DeepSpeed, with what speaks for each."""
    wish, setup = planned.wish, planned.run.setup
    if len(planned.runs) > 1 or not wish.model.towers:
        return {}
    found = choose(wish.model.main, setup, wish.cluster)
    names = {Framework.FSDP2: "FSDP2", Framework.DEEPSPEED: "DeepSpeed"}
    close = ", but it is a matter of taste" if found.close else ""
    speaking = tuple(
        report.Choice(f"for {names[each.for_]}", each.sentence, each.source) for each in found.reasons
    )  # fmt: skip
    other = next(name for framework, name in names.items() if framework is not found.recommended)
    return {"framework": f"{names[found.recommended]} rather than {other}{close}", "speaking": speaking}


def _groups(one: Run, *, pictured: bool) -> tuple[tuple[str, ...], tuple[report.Drawn, ...]]:
    from holdfast.actions.plan import groups as plan_groups  # noqa: PLC0415 - numpy is for those who ask for groups

    found = plan_groups.made(one)
    return tuple(plan_groups.lines(found, one.cluster.per_node)), plan_groups.drawn(found) if pictured else ()


def headline(planned: Planned) -> str:
    """The answer in a sentence."""
    one, wish = planned.run, planned.wish
    found = one.footprint
    left = (found.margin or 0) / GIB
    where = f"{wish.model.name} on {wish.on}"
    room = f"of {(found.memory or 0) / GIB:.1f} GiB on {one.cluster.gpu.name}"
    if found.answer is Answer.FITS:
        return f"{where} fits, with {left:.1f} GiB to spare {room}"
    if found.answer is Answer.DOES_NOT_FIT:
        return f"{where} does not fit: {-left:.1f} GiB too few {room}" if left < 0 else f"{where} does not fit"
    short = f"{left:.1f} GiB left" if left >= 0 else f"{-left:.1f} GiB too few"
    return f"{where} is tight: {short} {room}, and the estimate may be {found.error:.0%} off"


def _setup(planned: Planned) -> Iterator[tuple[str, str]]:
    wish, setup = planned.wish, planned.run.setup
    learned = "" if not wish.model.towers or wish.model.plain else ", of which some are frozen"
    yield "model", f"{wish.model.name}, {_count(wish.model.params)} parameters{learned}"
    yield "layout", layout(setup)
    if len(planned.runs) == 1:
        yield (
            "batch",
            (
                f"{setup.global_batch:,} sequences of {setup.sequence:,} tokens: {setup.data} x {setup.micro_batch}"
                f" x {setup.accumulation} (ranks, micro-batch, accumulation)"
            ),
        )
    yield "saving", saving(setup, wish.half)
    if wish.links:
        yield "links", wish.links
    if planned.assumed:
        yield "not said", ", ".join(planned.assumed)


def _count(params: int) -> str:
    return f"{params / 1e9:,.2f} billion" if params >= 1e9 else f"{params / 1e6:,.1f} million"


def layout(setup: Setup) -> str:
    """Who shares what, in words."""
    words = [f"{strategy(setup)} over {plural(setup.data, 'data-parallel rank')}" if setup.data > 1 else "no replicas"]
    words += [f"{setup.replicas} replicas"] if setup.replicas > 1 else []
    for name in ("tensor", "context", "expert"):
        if (degree := getattr(setup, name)) > 1:
            words.append(f"{name} parallel {degree}")
    if setup.pipeline > 1:
        chunks = f", {setup.chunks} chunks each" if setup.chunks > 1 else ""
        words.append(f"{setup.pipeline} pipeline stages ({setup.schedule}{chunks})")
    return ", ".join(words)


def saving(setup: Setup, half: str) -> str:
    """What of memory-saving is done, and precision."""
    words = [half, setup.optimizer, "flash attention" if setup.flash else "attention with scores stored"]
    words.append("nothing recomputed" if setup.recompute is Recompute.NONE else f"recomputed: {setup.recompute}")
    words += [f"{setup.offload} offloaded"] if setup.offload is not Offload.NONE else []
    words += ["compiled"] if setup.compiled else []
    words += [f"loss {setup.loss}"] if setup.loss != "eager" else []
    return ", ".join(words)


def _bars(planned: Planned) -> Iterator[report.Bar]:
    if len(planned.runs) > 1:
        for run in planned.runs:
            yield _bar(run.cluster.gpu.name, run.footprint.worst, run.footprint)
        return
    found = planned.run.footprint
    for rank in found.stages:
        name = f"stage {rank.stage}" if len(found.stages) > 1 else "each GPU"
        yield _bar(name, rank, found)


def _bar(name: str, rank: Rank, found: Footprint) -> report.Bar:
    return report.Bar(name, tuple((part, nbytes) for part, nbytes in rank.rows()), found.memory or 0, str(rank.moment))


def _layouts(planned: Planned) -> Iterator[report.Choice]:
    """The first three, and the simplest where that is not among them."""
    if planned.choice is None:
        return
    choice, wish = planned.choice, planned.wish
    for each in choice.best:
        behind = f", {each.behind:.1%} behind" if each.behind else ""
        left = f"{(each.needs.margin or 0) / GIB:.1f} GiB left"
        yield report.Choice(described(each.setup), f"{each.step.tokens_per_s:,.0f} tokens/s{behind}, {left}",
                            more=each.reasons, command=command(wish, each.setup) if each.behind else "")  # fmt: skip


def _losers(planned: Planned) -> Iterator[str]:
    if planned.choice is not None:
        yield from map(str, planned.choice.others)


def _speed(step: Step) -> report.Speed:
    spans = [report.Span("computing", step.compute)]
    spans += [report.Span(part.value, seconds, step.hidden.get(part, 0.0)) for part, seconds in step.exposed.items()]
    spans += [report.Span(name, seconds) for name, seconds in (("pipeline bubble", step.bubble), ("optimizer",
              step.optimizer), ("waiting", step.waiting)) if seconds > 0]  # fmt: skip
    return report.Speed(step.seconds, tuple(spans), step.tokens_per_s, step.tokens_per_s_per_gpu, step.mfu, TIME_ERROR)


def _fix(fix: Fix) -> report.Choice:
    step, left = fix.run.step, (fix.run.footprint.margin or 0) / GIB
    speed = f", {step.tokens_per_s:,.0f} tokens/s" if step else ""
    room = f"{left:.1f} GiB left" if left >= 0 else f"still {-left:.1f} GiB too few"
    return report.Choice(fix.what, f"{fix.saved / GIB:.1f} GiB less, {room}{speed}", f"costs {fix.cost}",
                         command(fix.wish, fix.run.setup))  # fmt: skip


def _curve_note(planned: Planned) -> str:
    if planned.curve is None:
        return ""
    alone = "" if planned.wish.model.plain else " (of the language model alone, as if all of it were trained)"
    ends = f"; {planned.curve.ends}" if planned.curve.ends else ""
    return f"throughput a GPU beside the best of the curve{alone}; the same {planned.curve.growth}{ends}"


def _remedies(planned: Planned) -> Iterator[report.Choice]:
    every: Sequence[Remedy] = ()
    if planned.shortfall is not None:
        every = planned.shortfall.remedies
    elif planned.curve is not None:
        every = planned.curve.remedies
    for each in every[:_MOST_REMEDIES]:
        room = _room(planned.wish, each.setup)
        lacks = "" if room in ("", Answer.FITS) else f", and {'is' if room == Answer.TIGHT else 'then it'} {room}"
        yield report.Choice(each.name, f"{each.gain:.2f} times the throughput{lacks}", f"costs {each.costs}")


def _room(wish: Wish, setup: Setup) -> str:
    """Whether it fits with another setup, which may have another number of GPUs; "" where that cannot be said."""
    try:
        return str(needs(wish.model, setup, wish.cluster.resized(setup.world_size)).answer)
    except BadValue:
        return ""


def _shortfall(found: Shortfall) -> Iterator[str]:
    yield (f"not hidden, for each second of computing: {duration(found.exposed[0])}, then {duration(found.exposed[1])}")
    yield f"with the network as tabled, efficiency would be {found.expected:.0%}"
    if found.outside_share is None or found.bandwidth is None:
        yield "no share of the network explains it: look for a slow rank, for data, for the host"
    else:
        share, rate = found.outside_share, found.bandwidth / 1e9
        yield f"{share:.0%} of the network's rate explain it: {rate:.1f} GB/s a GPU; measure it with holdfast bench"
    yield found.reason


def _dealt(found: Allotment) -> report.Dealt:
    from holdfast.plan.batches import Meeting  # noqa: PLC0415 - numpy is for those who have several kinds of GPU

    alike: dict[tuple[str, tuple[int, ...], float], list[int]] = {}
    for share in found.shares:
        alike.setdefault((share.kind, share.micro_batches, share.busy_s), []).append(share.rank)
    shares = tuple(
        report.Share(kind, ("ranks " if len(ranks) > 1 else "rank ") + compress_ranks(ranks), sum(sizes), sizes, busy)
        for (kind, sizes, busy), ranks in alike.items()
    )
    count = len(found.shares[0].micro_batches)
    each = f"every rank makes {count} micro-batches, as all meet at each"
    meet = each if found.meeting is Meeting.MICRO_BATCH else "ranks meet once a step"
    weight = "each loss is weighted by its share (holdfast.loss_weight), so that the gradient is that of one process"
    return report.Dealt(found.batch, found.step_s, found.equal_s, shares, f"{meet}; {weight}")
