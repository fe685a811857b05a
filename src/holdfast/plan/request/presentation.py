"""The view of a plan: its numbers in the terms of the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.causes.memory.gpu_oom_all_ranks import GPU_OOM_ALL_RANKS
from holdfast.causes.memory.host_oom_killed import HOST_OOM_KILLED
from holdfast.core.errors import InvalidValue
from holdfast.core.rank_sets import compress_ranks
from holdfast.core.text import format_duration, pluralize
from holdfast.plan.advice.remedies import SpeedRemedy
from holdfast.plan.advice.shortfall import Shortfall
from holdfast.plan.generate.framework_choice import Framework, choose_framework
from holdfast.plan.layout.reasons import describe_setup, strategy_label
from holdfast.plan.memory.estimate import MemoryEstimate, MemoryFit, RankMemory
from holdfast.plan.render import summary as report
from holdfast.plan.request.command import plan_command
from holdfast.plan.request.host_memory import (
    describe_disk_offload,
    describe_host_memory,
    describe_offload,
)
from holdfast.plan.request.plan_request import GIB, PlannedRun, PlanRequest, estimate_model_memory
from holdfast.plan.request.planning import FitOption, PlanResult, describe_saving
from holdfast.plan.setup import ActivationCheckpointing, OffloadTarget, TrainingSetup
from holdfast.plan.step_time.estimate import StepTime

if TYPE_CHECKING:
    from holdfast.plan.request.config_files import WrittenFiles
    from holdfast.training.heterogeneous.batch_allocation import BatchAllocation

#: By benchmarks/plan_truth_time.py: all rows except collectives and those that rates are fitted to.
TIME_ERROR = (
    "accuracy: half of 111 published times (not used for fitting) within ±3%, 90% within ±14%"
)
_MAX_REMEDIES = 5
_MAX_REJECTED = 14


def plan_view(
    result: PlanResult,
    *,
    with_groups: bool = False,
    with_drawings: bool = False,
    files: WrittenFiles | None = None,
) -> report.PlanView:
    """Return the view for a terminal or page, with process groups and their drawings on request."""
    request, run = result.request, result.run
    accuracy = run.memory.error
    scaling = result.scaling
    groups, drawings = (
        _group_views(run, pictured=with_drawings)
        if (with_groups or with_drawings) and len(result.runs) == 1
        else ((), ())
    )
    groups = groups if with_groups else ()
    return report.PlanView(
        model=request.model.name,
        cluster=request.cluster_text,
        fit=str(run.memory.fit),
        headline=headline(result),
        setup=tuple(_setup_rows(result)),
        bars=tuple(_memory_bars(result)),
        memory_error=f"accuracy: within ±{accuracy:.0%} of most published peaks of reserved memory",
        step=_step_summary(run.step) if run.step else None,
        no_time_reason=run.no_time_reason,
        fit_options=(
            *(_fit_suggestion(item) for item in result.fit_options),
            *_disk_suggestions(run),
        ),
        curve=tuple(
            report.ScalePoint(
                item.gpus,
                item.step.tokens_per_s,
                item.efficiency,
                item.reason,
                _fit_text(request, item.setup),
            )
            for item in scaling.points
        )
        if scaling
        else (),
        curve_note=_curve_note(result),
        remedies=tuple(_speed_suggestions(result)),
        shortfall=tuple(_shortfall_sentences(result.shortfall)) if result.shortfall else (),
        batch=_batch_summary(result.allocation) if result.allocation else None,
        layouts=tuple(_layout_suggestions(result)),
        rejected=tuple(_rejected_alternatives(result))[:_MAX_REJECTED],
        drawings=drawings,
        world_size=run.setup.world_size,
        per_node=run.cluster.per_node,
        groups=groups,
        written=tuple((item.path, item.purpose) for item in files.files) if files else (),
        omitted=files.omitted if files else (),
        **_framework_fields(result),
        simulation=result.simulation_notes,
        warnings=_warnings(result),
    )


def _warnings(result: PlanResult) -> tuple[str, ...]:
    """Return the findings that the headline does not state."""
    stated = (GPU_OOM_ALL_RANKS.name, HOST_OOM_KILLED.name)
    return tuple(finding.message for finding in result.findings if finding.cause not in stated)


def _framework_fields(result: PlanResult) -> dict[str, Any]:
    """Return the FSDP or DeepSpeed recommendation and the reasons for each."""
    request, setup = result.request, result.run.setup
    if len(result.runs) > 1 or not request.model.submodels:
        return {}
    choice = choose_framework(request.model.main_transformer, setup, request.first_cluster)
    names = {Framework.FSDP2: "FSDP2", Framework.DEEPSPEED: "DeepSpeed"}
    margin = ", by a small margin" if choice.is_close else ""
    reasons = tuple(
        report.Suggestion(f"for {names[reason.framework]}", reason.sentence, reason.source)
        for reason in choice.reasons
    )
    other = next(name for framework, name in names.items() if framework is not choice.recommended)
    return {
        "framework": f"{names[choice.recommended]} rather than {other}{margin}",
        "framework_reasons": reasons,
    }


def _group_views(
    run: PlannedRun, *, pictured: bool
) -> tuple[tuple[str, ...], tuple[report.GroupDrawing, ...]]:
    from holdfast.plan.request import process_groups  # noqa: PLC0415 - imports numpy

    groups = process_groups.checked_process_groups(run)
    return tuple(
        process_groups.describe_process_groups(groups, run.cluster.per_node)
    ), process_groups.draw_process_groups(groups) if pictured else ()


def headline(result: PlanResult) -> str:
    """Return the result in one sentence."""
    run, request = result.run, result.request
    memory = run.memory
    margin = (memory.margin or 0) / GIB
    subject = f"{request.model.name} on {request.cluster_text}"
    limit = f"{(memory.gpu_memory or 0) / GIB:.1f} GiB of {run.cluster.gpu.name}"
    difference = f"{abs(margin):.1f} GiB {'free of' if margin >= 0 else 'over'} the {limit}"
    if memory.exceeds_host:
        return f"{subject} does not fit: it needs {describe_host_memory(run)}"
    match memory.fit:
        case MemoryFit.FITS:
            return f"{subject} fits: {difference}"
        case MemoryFit.DOES_NOT_FIT:
            return f"{subject} does not fit" + (f": {difference}" if margin < 0 else "")
    return f"{subject} is tight: {difference}, estimate accurate to ±{memory.error:.0%}"


def _setup_rows(result: PlanResult) -> Iterator[tuple[str, str]]:
    request, setup = result.request, result.run.setup
    note = "" if not request.model.submodels or request.model.is_plain else ", partly frozen"
    yield "model", f"{request.model.name}, {_format_params(request.model.params)} parameters{note}"
    yield "layout", describe_layout(setup)
    if len(result.runs) == 1:
        yield (
            "batch",
            (
                f"{setup.global_batch:,} sequences of {setup.sequence:,} tokens: {setup.data} x "
                f"{setup.micro_batch}"
                f" x {setup.accumulation} (ranks, micro-batch, accumulation)"
            ),
        )
    yield "precision & memory options", describe_memory_options(setup, request.resolved_precision)
    if offloaded := describe_offload(request, result.run) if request.model.submodels else "":
        yield "offloaded states", offloaded
    if request.links_origin:
        yield "links", request.links_origin
    if result.assumed:
        yield "assumed", ", ".join(result.assumed)


def _format_params(params: int) -> str:
    return f"{params / 1e9:,.2f} billion" if params >= 1e9 else f"{params / 1e6:,.1f} million"


def describe_layout(setup: TrainingSetup) -> str:
    """Describe which ranks share what."""
    parts = [
        f"{strategy_label(setup)} over {pluralize(setup.data, 'data-parallel rank')}"
        if setup.data > 1
        else "no replicas"
    ]
    parts += [f"{setup.replicas} replicas"] if setup.replicas > 1 else []
    for name in ("tensor", "context", "expert"):
        if (degree := getattr(setup, name)) > 1:
            parts.append(f"{name} parallel {degree}")
    if setup.pipeline > 1:
        chunks = f", {setup.chunks} chunks each" if setup.chunks > 1 else ""
        parts.append(f"{setup.pipeline} pipeline stages ({setup.schedule}{chunks})")
    return ", ".join(parts)


def describe_memory_options(setup: TrainingSetup, precision: str) -> str:
    """Describe precision and the memory-saving options in use."""
    options = [
        precision,
        setup.optimizer,
        "flash attention" if setup.flash else "attention without flash (stored scores)",
    ]
    options.append(
        "no activation checkpointing"
        if setup.recompute is ActivationCheckpointing.NONE
        else f"activation checkpointing: {setup.recompute}"
    )
    if setup.precision.reduced < setup.precision.gradient:
        options.append("gradients reduced in 16 bits")
    options += [f"offload: {setup.offload}"] if setup.offload is not OffloadTarget.NONE else []
    options += ["compiled"] if setup.compiled else []
    options += [f"loss kernel: {setup.loss}"] if setup.loss != "eager" else []
    return ", ".join(options)


def _memory_bars(result: PlanResult) -> Iterator[report.MemoryBar]:
    if len(result.runs) > 1:
        for run in result.runs:
            yield _memory_bar(run.cluster.gpu.name, run.memory.worst, run.memory)
        return
    memory = result.run.memory
    for rank in memory.stages:
        name = f"stage {rank.stage}" if len(memory.stages) > 1 else "each GPU"
        yield _memory_bar(name, rank, memory)


def _memory_bar(name: str, rank: RankMemory, memory: MemoryEstimate) -> report.MemoryBar:
    return report.MemoryBar(
        name,
        tuple((part, nbytes) for part, nbytes in rank.parts()),
        memory.gpu_memory or 0,
        str(rank.moment),
    )


def _layout_suggestions(result: PlanResult) -> Iterator[report.Suggestion]:
    """Yield the chosen layout, then the fastest ones."""
    if result.choice is None or result.choice.simplest is None:
        return
    chosen, request = result.choice.simplest, result.request
    others = [layout for layout in result.choice.best if layout.setup != chosen.setup]
    for layout in (chosen, *others):
        slower = f", {layout.behind:.1%} slower" if layout.behind else ""
        margin = f"{(layout.memory.margin or 0) / GIB:.1f} GiB left"
        yield report.Suggestion(
            describe_setup(layout.setup),
            f"{layout.step.tokens_per_s:,.0f} tokens/s{slower}, {margin}",
            details=layout.reasons,
            command="" if layout is chosen else plan_command(request, layout.setup),
        )


def _rejected_alternatives(result: PlanResult) -> Iterator[str]:
    if result.choice is not None:
        yield from map(str, result.choice.rejected)


def _step_summary(step: StepTime) -> report.StepSummary:
    spans = [report.TimeSpan("compute", step.compute)]
    spans += [
        report.TimeSpan(part.value, seconds, step.hidden.get(part, 0.0))
        for part, seconds in step.exposed.items()
    ]
    spans += [
        report.TimeSpan(name, seconds)
        for name, seconds in (
            ("pipeline bubble", step.bubble),
            ("optimizer", step.optimizer),
            ("waiting", step.waiting),
        )
        if seconds > 0
    ]
    return report.StepSummary(
        step.seconds,
        tuple(spans),
        step.tokens_per_s,
        step.tokens_per_s_per_gpu,
        step.mfu,
        TIME_ERROR,
    )


def _fit_suggestion(option: FitOption) -> report.Suggestion:
    step, margin = option.run.step, (option.run.memory.margin or 0) / GIB
    speed = f", {step.tokens_per_s:,.0f} tokens/s" if step else ""
    margin_text = f"{margin:.1f} GiB left" if margin >= 0 else f"still {-margin:.1f} GiB short"
    host = describe_offload(option.request, option.run)
    return report.Suggestion(
        option.change,
        f"{describe_saving(option.saved)}, {margin_text}{speed}{host and f', {host}'}",
        f"cost: {option.cost}",
        plan_command(option.request, option.run.setup),
    )


def _disk_suggestions(run: PlannedRun) -> Iterator[report.Suggestion]:
    if run.memory.exceeds_host:
        yield report.Suggestion(
            "offload to NVMe disks (DeepSpeed ZeRO-Infinity)",
            describe_disk_offload(run),
            "speed not predicted",
        )


def _curve_note(result: PlanResult) -> str:
    if result.scaling is None:
        return ""
    scope = "" if result.request.model.is_plain else " (language model only, all of it trained)"
    ends = f"; {result.scaling.ends}" if result.scaling.ends else ""
    return (
        f"efficiency: throughput per GPU relative to the best point{scope}; constant "
        f"{result.scaling.growth}{ends}"
    )


def _speed_suggestions(result: PlanResult) -> Iterator[report.Suggestion]:
    remedies: Sequence[SpeedRemedy] = ()
    if result.shortfall is not None:
        remedies = result.shortfall.remedies
    elif result.scaling is not None:
        remedies = result.scaling.remedies
    for remedy in remedies[:_MAX_REMEDIES]:
        fit = _fit_text(result.request, remedy.setup)
        misfit = (
            ""
            if fit in ("", MemoryFit.FITS)
            else f", but {'is' if fit == MemoryFit.TIGHT else 'it'} {fit}"
        )
        yield report.Suggestion(
            remedy.name, f"{remedy.gain:.2f}x throughput{misfit}", f"cost: {remedy.costs}"
        )


def _fit_text(request: PlanRequest, setup: TrainingSetup) -> str:
    """Return whether another setup fits, which may need another number of GPUs; "" if unknown."""
    try:
        return str(
            estimate_model_memory(
                request.model, setup, request.first_cluster.resized(setup.world_size)
            ).fit
        )
    except InvalidValue:
        return ""


def _shortfall_sentences(shortfall: Shortfall) -> Iterator[str]:
    yield (
        f"time not overlapped per second of compute: {format_duration(shortfall.exposed[0])} at "
        f"the smaller size, {format_duration(shortfall.exposed[1])} at the larger"
    )
    yield f"expected efficiency with the network's nominal rate: {shortfall.expected:.0%}"
    if shortfall.outside_share is None or shortfall.bandwidth is None:
        yield (
            "network bandwidth does not explain it: check for slow ranks, data loading and "
            "host load"
        )
    else:
        share, rate = shortfall.outside_share, shortfall.bandwidth / 1e9
        yield (
            f"explained by {share:.0%} of the nominal network rate: {rate:.1f} GB/s per GPU; "
            "measure with holdfast bench"
        )
    yield shortfall.reason


def _batch_summary(allocation: BatchAllocation) -> report.BatchSummary:
    # imports numpy
    from holdfast.training.heterogeneous.batch_allocation import SyncPoint  # noqa: PLC0415

    equal_ranks: dict[tuple[str, tuple[int, ...], float], list[int]] = {}
    for share in allocation.shares:
        equal_ranks.setdefault((share.kind, share.micro_batches, share.busy_s), []).append(
            share.rank
        )
    shares = tuple(
        report.BatchShare(
            kind,
            ("ranks " if len(ranks) > 1 else "rank ") + compress_ranks(ranks),
            sum(sizes),
            sizes,
            busy,
        )
        for (kind, sizes, busy), ranks in equal_ranks.items()
    )
    count = len(allocation.shares[0].micro_batches)
    schedule = f"every rank runs {count} micro-batches, with a synchronization after each"
    synchronization = (
        schedule
        if allocation.meeting is SyncPoint.MICRO_BATCH
        else "ranks synchronize once per step"
    )
    weighting = (
        "weight each loss by its share (holdfast.loss_weight) to get the gradient of one process"
    )
    return report.BatchSummary(
        allocation.batch,
        allocation.step_s,
        allocation.equal_s,
        shares,
        f"{synchronization}; {weighting}",
    )
