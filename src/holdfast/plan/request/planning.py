"""Plan a run before it starts: memory, step time, and better alternatives.

Given degrees of parallelism select one setup; GPUs of several kinds get unequal batch shares.
Options that are omitted (micro-batch, activation checkpointing) are chosen so that the step is fast
and fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from holdfast.core import verdicts
from holdfast.core.errors import InvalidValue
from holdfast.core.exit_status import status_of_findings
from holdfast.core.findings import Finding, Remedy, Verdict
from holdfast.plan import rules
from holdfast.plan.advice.fitting import FittingChange, FittingChanges, find_fitting_changes
from holdfast.plan.advice.scaling import ScalingSweep, gpu_counts, sweep_gpu_counts
from holdfast.plan.advice.shortfall import Shortfall, explain_shortfall
from holdfast.plan.layout.solver import LayoutChoice
from holdfast.plan.layout.space import LayoutOptions
from holdfast.plan.memory.estimate import MemoryFit
from holdfast.plan.request import layout_search, module
from holdfast.plan.request.command import plan_command
from holdfast.plan.request.host_memory import assumed_host_memory, describe_offload
from holdfast.plan.request.model import select_trained_parts
from holdfast.plan.request.plan_request import (
    GIB,
    PlannedRun,
    PlanRequest,
    estimate_model_memory,
    evaluate_setup,
)
from holdfast.plan.request.setup import choose_run
from holdfast.plan.setup import TrainingSetup

if TYPE_CHECKING:
    from holdfast.training.heterogeneous.batch_allocation import BatchAllocation

QUESTION = "does it fit, and how fast is it?"
#: Suggest no more than this many times the available GPUs.
_MAX_GPU_FACTOR = 8


class FitOption(msgspec.Struct, frozen=True, kw_only=True):
    """A change that makes a run fit, or helps most if nothing does; ``saved`` is in bytes."""

    change: str
    cost: str
    saved: int
    run: PlannedRun
    request: PlanRequest


class PlanResult(msgspec.Struct, frozen=True, kw_only=True):
    """The plan. ``runs``: one, or one for each kind of GPU; ``assumed``: defaults and choices.

    ``fit_options`` make the run fit if it does not surely fit.
    """

    request: PlanRequest
    runs: tuple[PlannedRun, ...]
    findings: tuple[Finding, ...]
    verdict: Verdict
    assumed: tuple[str, ...] = ()
    fit_options: tuple[FitOption, ...] = ()
    allocation: BatchAllocation | None = None
    choice: LayoutChoice | None = None
    scaling: ScalingSweep | None = None
    shortfall: Shortfall | None = None
    #: Results of the run on fake tensors.
    simulation_notes: tuple[str, ...] = ()

    @property
    def run(self) -> PlannedRun:
        """Return the deciding run: the one with the smallest memory margin."""
        return tightest_run(self.runs)

    @property
    def exit_status(self) -> int:
        """Return 0 if the run fits, possibly tightly, else 1."""
        return status_of_findings(self.findings)


def tightest_run(runs: tuple[PlannedRun, ...]) -> PlannedRun:
    """Return the run with the smallest memory margin."""
    return min(runs, key=lambda run: run.memory.margin or 0)


def make_plan(request: PlanRequest, report: Callable[[str], None] | None = None) -> PlanResult:
    """Plan the request; ``report`` receives the current activity while a user's module is run.

    Raises:
        MissingExtra: a module must be run, and torch is not installed.
        InvalidValue: a batch that cannot be met, degrees that do not multiply to the GPUs, or an
            unsupported combination.
    """
    if not request.model.submodels:
        return _plan_module(request, report)
    runs, allotment, choice = _plan_runs(request)
    run = tightest_run(runs)
    fit_options: tuple[FitOption, ...] = ()
    if choice is not None and choice.shortage is not None:
        fit_options = tuple(_fit_options(request, choice.shortage.changes))
    elif run.memory.fit is not MemoryFit.FITS:
        ways = find_fitting_changes(
            lambda setup: estimate_model_memory(request.model, setup, run.cluster), run.setup
        )
        fit_options = tuple(_fit_options(request, ways))
    if run.memory.fit is MemoryFit.DOES_NOT_FIT and len(runs) == 1:
        fit_options += tuple(_adapter_options(request, run))
    findings = tuple(rules.judge_plan(_plan_facts(request, run, fit_options)))
    return PlanResult(
        request=request,
        runs=runs,
        findings=findings,
        verdict=verdicts.host_verdict(findings, (), QUESTION),
        assumed=tuple(_list_assumptions(request, run)),
        fit_options=fit_options,
        allocation=allotment,
        choice=choice,
        scaling=_sweep_scaling(request, run.setup),
        shortfall=_explain_measured(request, run.setup),
        simulation_notes=_simulation_notes(request, run, report) if request.simulate else (),
    )


def _plan_module(request: PlanRequest, report: Callable[[str], None] | None) -> PlanResult:
    """Plan a module of unknown architecture: memory from a run on fake tensors only."""
    if request.gpu_counts or request.measured:
        raise InvalidValue(
            f"a scaling curve of {request.model.name}",
            why="its step time is unknown",
            next_step="plan a known transformer of similar size",
        )
    run, simulated = module.plan_unknown_module(request, report)
    findings = tuple(rules.judge_plan(_plan_facts(request, run, ())))
    return PlanResult(
        request=request,
        runs=(run,),
        findings=findings,
        verdict=verdicts.host_verdict(findings, (), QUESTION),
        assumed=tuple(_list_assumptions(request, run)),
        simulation_notes=module.compare_simulation(run, simulated),
    )


def _simulation_notes(
    request: PlanRequest, run: PlannedRun, report: Callable[[str], None] | None
) -> tuple[str, ...]:

    if not request.model.source:
        raise InvalidValue(
            "--simulate",
            why="only a user's module can be run",
            next_step="pass FILE.py:FUNCTION as the model",
        )
    try:
        return module.compare_simulation(run, module.simulate_request(request, run.setup, report))
    except InvalidValue as error:  # the formulas' result remains valid
        return (str(error),)


def _plan_runs(
    request: PlanRequest,
) -> tuple[tuple[PlannedRun, ...], BatchAllocation | None, LayoutChoice | None]:
    if layout_search.needs_layout_search(request):
        best, choice = layout_search.search_layout(request)
        return (best,), None, choice
    if len(request.clusters) == 1:
        return (choose_run(request),), None, None
    from holdfast.plan.request.mixed import plan_mixed_cluster  # noqa: PLC0415 - imports numpy

    return *plan_mixed_cluster(request), None


def _fit_options(request: PlanRequest, ways: FittingChanges) -> Iterator[FitOption]:
    """Yield changes that suffice alone; if there are none, all changes together."""
    single = [change for change in ways.single if _is_possible(request, change.setup)]
    for change in single:
        yield FitOption(
            change=change.what,
            cost=change.cost,
            saved=change.saved,
            run=_evaluate_change(request, change),
            request=request,
        )
    combined = [change for change in ways.combined if _is_possible(request, change.setup)]
    if combined and not single:
        costs = dict.fromkeys(
            change.cost for change in combined if not change.cost.startswith("none")
        )
        yield FitOption(
            change=", and ".join(change.what for change in combined),
            cost="; ".join(costs) or "negligible",
            saved=sum(change.saved for change in combined),
            run=_evaluate_change(request, combined[-1]),
            request=request,
        )


def _is_possible(request: PlanRequest, setup: TrainingSetup) -> bool:
    """Return whether the GPUs of the setup are available, or few enough to suggest."""
    if len(request.clusters) == 1:
        return setup.world_size <= _MAX_GPU_FACTOR * request.gpus
    return setup.world_size == setup.data == request.gpus


def _evaluate_change(request: PlanRequest, change: FittingChange) -> PlannedRun:
    if len(request.clusters) == 1:
        return evaluate_setup(request, change.setup)
    return PlannedRun(
        setup=change.setup, cluster=request.first_cluster, memory=change.memory, step=None
    )


def _adapter_options(request: PlanRequest, run: PlannedRun) -> Iterator[FitOption]:
    """Yield training with adapters only and without pipeline stages, if that suffices."""
    setup = _without_pipeline(run.setup)
    if request.model.submodels[-1].lora is not None or setup is None:
        return
    for option, change in (
        (("16", False), "train LoRA adapters only (rank 16)"),
        (("16", True), "train adapters only, over 4-bit weights (QLoRA)"),
    ):
        adapted = replace(
            request, model=select_trained_parts(request.model, lora=option[0], quantized=option[1])
        )
        run_with_adapters = evaluate_setup(adapted, setup)
        if run_with_adapters.memory.fit is MemoryFit.FITS:
            saved = run.memory.worst.total - run_with_adapters.memory.worst.total
            yield FitOption(
                change=change if setup == run.setup else f"{change}, without pipeline stages",
                cost="only the adapters are trained",
                saved=saved,
                run=run_with_adapters,
                request=adapted,
            )
            return


def _without_pipeline(setup: TrainingSetup) -> TrainingSetup | None:
    """Return the setup with data-parallel ranks for its stages, or None if the batch differs."""
    if setup.accumulation % setup.pipeline:
        return None
    return replace(
        setup,
        data=setup.data * setup.pipeline,
        accumulation=setup.accumulation // setup.pipeline,
        pipeline=1,
        chunks=1,
    )


# ---- findings and assumptions


def _plan_facts(
    request: PlanRequest, run: PlannedRun, fixes: tuple[FitOption, ...]
) -> rules.PlanFacts:
    return rules.PlanFacts(
        name=request.model.name,
        setup=run.setup,
        clusters=request.clusters,
        worst_cluster=run.cluster,
        memory=run.memory,
        precision=request.resolved_precision,
        remedies=tuple(_remedies(fixes)),
    )


def _remedies(fixes: tuple[FitOption, ...]) -> Iterator[Remedy]:
    for option in fixes:
        if option.run.memory.fit is not MemoryFit.FITS:
            continue
        speed = f", {option.run.step.tokens_per_s:,.0f} tokens/s" if option.run.step else ""
        host = describe_offload(option.request, option.run)
        text = (
            f"{option.change[0].upper()}{option.change[1:]}: {describe_saving(option.saved)}"
            f"{speed}{host and f', {host}'}; cost: {option.cost}."
        )
        yield Remedy(text=text, command=plan_command(option.request, option.run.setup))


def describe_saving(saved: int) -> str:
    """Return the change of a GPU's memory, in GiB."""
    return f"{abs(saved) / GIB:.1f} GiB {'less' if saved >= 0 else 'more'}"


def _list_assumptions(request: PlanRequest, run: PlannedRun) -> Iterator[str]:
    setup = run.setup
    criterion = "smallest" if run.memory.fit is MemoryFit.DOES_NOT_FIT else "fastest that fits"
    yield from request.model.assumed
    yield from assumed_host_memory(request, run)
    if request.batch is None and len(request.clusters) == 1:
        yield f"global batch {setup.global_batch:,}"
    if layout_search.needs_layout_search(request):
        yield "layout: " + (
            criterion
            if run.memory.fit is MemoryFit.DOES_NOT_FIT
            else f"simplest within {LayoutOptions().simplest_within:.0%} of the fastest that fits"
        )
    elif not request.model.submodels:
        yield (
            "one micro-batch per step"
            if setup.accumulation == 1
            else f"micro-batches of {setup.micro_batch}"
        )
    elif request.recompute is None or (request.batch is not None and request.micro_batch is None):
        yield f"micro-batch and activation checkpointing: {criterion}"
    if request.precision == "auto":
        yield f"{request.resolved_precision} with fp32 master weights: supported by all GPUs"


def _sweep_scaling(request: PlanRequest, setup: TrainingSetup) -> ScalingSweep | None:
    if not request.gpu_counts:
        return None
    _require_one_gpu_kind(request, "--scale")
    if len(request.gpu_counts) == 2:  # from … to
        counts = [
            count
            for count in gpu_counts(setup, request.gpu_counts[1])
            if count >= request.gpu_counts[0]
        ]
        counts = sorted({request.gpu_counts[0], *counts})
    else:
        counts = list(request.gpu_counts)
    return sweep_gpu_counts(
        request.model.main_transformer,
        setup,
        request.first_cluster,
        counts,
        request.scaling_mode,
        request.conditions,
    )


def _explain_measured(request: PlanRequest, setup: TrainingSetup) -> Shortfall | None:
    if request.measured is None:
        return None
    _require_one_gpu_kind(request, "--measured")
    return explain_shortfall(
        request.model.main_transformer,
        setup,
        request.first_cluster,
        request.measured,
        request.scaling_mode,
        request.conditions,
    )


def _require_one_gpu_kind(request: PlanRequest, option: str) -> None:
    if len(request.clusters) > 1:
        raise InvalidValue(
            option, why="scaling needs GPUs of one kind", next_step="use one kind of GPU with --on"
        )
