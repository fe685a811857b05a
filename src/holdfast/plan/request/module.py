"""Plan a user's module: count its parameters, and run a step on fake tensors if requested.

If a transformer is recognized in the module, all formulas apply. Otherwise memory comes from the
run on fake tensors, and the step time is unknown.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.core.errors import InvalidValue
from holdfast.plan.model_counts import ModuleSummary
from holdfast.plan.request.plan_model import PlanModel
from holdfast.plan.request.plan_request import GIB, PlannedRun, PlanRequest
from holdfast.plan.request.setup import batch_splits, build_setup, count_data_ranks
from holdfast.plan.setup import ActivationCheckpointing, TrainingSetup
from holdfast.plan.simulated_step import SimulatedStep, find_differences
from holdfast.plan.submodels import Submodel
from holdfast.plan.torch_tracing import describe_module, simulate_step

#: Receives the current activity, as tracing takes seconds.
ReportProgress = Callable[[str], None]

_NO_TIME_REASON = "the step time of a module that is not a transformer is unknown"


def model_from_module(text: str, report: ReportProgress | None = None) -> PlanModel:
    """Return the module that the function builds as a model, as a transformer if it is recognized.

    Raises:
        MissingExtra: torch is not installed.
        InvalidValue: the module cannot be loaded or built.
    """
    module = describe_module(text, report=report)
    submodels: tuple[Submodel, ...] = ()
    assumed = module.unknown
    if module.transformer is not None and module.trained == module.params:
        submodels = (Submodel(model=module.transformer),)
        assumed = (f"{_describe_shape(module)} (recognized in the module)",)
    return PlanModel(
        name=module.name,
        arguments=(text,),
        submodels=submodels,
        assumed=assumed,
        source=text,
        summary=module,
    )


def _describe_shape(module: ModuleSummary) -> str:
    shape = module.transformer
    return (
        f"{shape.layers} layers, hidden size {shape.hidden}, {shape.heads} heads" if shape else ""
    )


def simulate_request(
    request: PlanRequest, setup: TrainingSetup, report: ReportProgress | None = None
) -> SimulatedStep:
    """Run a step of the module on fake tensors.

    Raises:
        MissingExtra, InvalidValue: the step cannot be run, or not with this setup.
    """
    return simulate_step(
        request.model.source, setup, int(request.first_cluster.gpu.memory_gib * GIB), report=report
    )


def plan_unknown_module(
    request: PlanRequest, report: ReportProgress | None = None
) -> tuple[PlannedRun, SimulatedStep]:
    """Plan a module of unknown architecture in the given setup.

    Nothing is chosen, as each attempt takes seconds.

    Raises:
        MissingExtra, InvalidValue: as above, or GPUs of several kinds.
    """
    if len(request.clusters) > 1:
        raise InvalidValue(
            f"{request.model.name} on GPUs of several kinds",
            why="its speed on each GPU kind is unknown",
            next_step="measure it with holdfast.probe_speed",
        )
    data = count_data_ranks(request)
    micro_batch, accumulation = batch_splits(request, data)[0]
    setup = build_setup(
        request, data, micro_batch, accumulation, request.recompute or ActivationCheckpointing.NONE
    )
    simulated = simulate_request(request, setup, report)
    return PlannedRun(
        setup=setup,
        cluster=request.first_cluster,
        memory=simulated.memory,
        step=None,
        no_time_reason=_NO_TIME_REASON,
    ), simulated


def compare_simulation(one: PlannedRun, simulated: SimulatedStep) -> tuple[str, ...]:
    """Return sentences that compare the run on fake tensors with the formulas."""
    formula, rank = one.memory.worst, simulated.memory.worst
    layers = ""
    if simulated.depths and simulated.depths[0] != simulated.layers:
        layers = (
            ", extrapolated from runs of "
            f"{' and '.join(map(str, sorted(set(simulated.depths))))} of {simulated.layers} layers"
        )
    summary = (
        f"the module, run on fake tensors in {simulated.duration_s:.0f} s (torch "
        f"{simulated.torch}){layers}"
    )
    sentences = [f"{summary}: {rank.tensors / GIB:.2f} GiB of tensors at the peak"]
    if one.memory is not simulated.memory:
        sentences.append(f"formulas: {formula.tensors / GIB:.2f} GiB")
        sentences += [
            f"difference in {difference.part}: formulas {difference.formula / GIB:.2f} GiB, "
            f"run {difference.simulated / GIB:.2f} GiB"
            for difference in find_differences(formula, rank)
        ]
    return (*sentences, *simulated.notes)
