"""Run a step at two depths and extrapolate to the whole model.

Every part grows by the same bytes per layer at every moment, so two depths suffice. With every
second layer checkpointed this holds for even numbers of layers, hence even depths.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from holdfast.core.errors import InvalidValue
from holdfast.plan.memory.peaks import PeakMoment, TransientMemory
from holdfast.plan.memory.states import ModelStates
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    OptimizerKind,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.simulated_step import SimulatedStep, memory_from_peaks
from holdfast.plan.torch_tracing import training_step
from holdfast.plan.torch_tracing.description import summarize_module
from holdfast.plan.torch_tracing.loading import StepFunction, build_module, convert_user_errors
from holdfast.plan.torch_tracing.repeated_layers import truncate_layers
from holdfast.plan.torch_tracing.tracking import (
    PeakRecorder,
    TorchInternals,
    bytes_by_kind,
    ignore_shape_propagation,
    load_torch_internals,
    make_tracker,
    skip_frozen_parameters,
)

#: Layers of the two runs; deeper models are extrapolated.
DEPTHS = (4, 6)
#: Shards of more ranks are scaled from this many: sharding among thousands takes minutes.
MAX_SHARDS = 256
_USE_FORMULAS = "use the closed formulas, which support it"


class _TrackedStep(NamedTuple):
    """Bytes by kind at each moment, and the persistent bytes between steps."""

    peaks: Mapping[str, Counter[str]]
    persistent: Counter[str]


def simulate_module(
    source: str,
    function: Callable[..., Any],
    setup: TrainingSetup,
    memory: int | None,
    report: Callable[[str], None],
) -> SimulatedStep:
    """Simulate one rank.

    Call it, and import ``function``, within :func:`~.kernels.emulate_gpu_kernels`.

    Raises:
        InvalidValue: as :func:`holdfast.plan.torch_tracing.simulate_step`.
    """
    start = time.monotonic()
    internals = load_torch_internals()  # noqa: SYNC005 - the only process of a fake world
    _check_supported(setup)
    with torch.device("meta"):
        module, _ = build_module(source, function)
    with convert_user_errors(source, "counting its weights"):
        model = summarize_module(module)
    if not model.trained:
        raise InvalidValue("a model without trained parameters", why="there is no step to run")
    path = model.stacks[0].path if model.stacks else None
    layers = model.stacks[0].count if model.stacks else 0
    depths = DEPTHS if layers > DEPTHS[1] else (layers,)
    smaller, share = _reduce_ranks(setup)
    runs = []
    for depth in depths:
        report(
            f"running a step with {depth} of {layers} layers"
            if path is not None
            else "running a step"
        )
        with convert_user_errors(source, "running its step"):
            runs.append(
                _scale_shards(_track_step(internals, source, function, smaller, path, depth), share)
            )
    full_step = runs[0] if len(runs) == 1 else _extrapolate(layers, depths, runs)
    footprint = memory_from_peaks(
        _model_states(full_step), _transient_memory(full_step), setup, memory
    )
    return SimulatedStep(
        memory=footprint,
        model=model,
        layers=layers,
        depths=depths,
        peaks={moment: kinds["Total"] for moment, kinds in full_step.peaks.items()},
        torch=str(torch.__version__),
        duration_s=time.monotonic() - start,
        notes=tuple(_list_notes(setup, path)),
    )


def _check_supported(setup: TrainingSetup) -> None:
    """Reject unsupported setups.

    Raises:
        InvalidValue: the first unsupported property.
    """
    precision, strategy = setup.precision, setup.strategy
    supported_optimizers = (OptimizerKind.SGD, OptimizerKind.MOMENTUM, OptimizerKind.ADAMW)
    supported_precision = (
        precision.compute in (2, 4) and precision.reduced in (2, 4) and precision.master in (0, 4)
    )
    checks = (
        (
            strategy not in (ShardingStrategy.FSDP2, ShardingStrategy.DDP),
            strategy,
            "only FSDP2 and DDP can be simulated",
        ),
        (
            setup.world_size != setup.data,
            "other than data parallelism",
            "how it divides the module is unknown",
        ),
        (setup.expert > 1, "expert parallelism", "the expert modules are unknown"),
        (setup.offload is not OffloadTarget.NONE, "offload", "all fake tensors are on one device"),
        (
            setup.optimizer not in supported_optimizers,
            setup.optimizer,
            "only SGD, momentum and AdamW can be simulated",
        ),
        (not supported_precision, "this precision", "only bf16 and fp32 can be simulated"),
        (
            precision.master and precision.compute == 4,
            "an fp32 copy of fp32 weights",
            "there is none",
        ),
    )
    for is_unsupported, property_name, reason in checks:
        if is_unsupported:
            raise InvalidValue(
                f"a run on fake tensors with {property_name}", why=reason, next_step=_USE_FORMULAS
            )


def _list_notes(setup: TrainingSetup, path: str | None) -> list[str]:
    notes = []
    if setup.loss is not LossKernel.EAGER:
        notes.append(f"the loss is the module's or torch's eager one, not {setup.loss}")
    if setup.compiled:
        notes.append("torch.compile is not simulated")
    if path is None and setup.recompute is not ActivationCheckpointing.NONE:
        notes.append("no activation checkpointing: no stack of equal layers")
    if setup.recompute is ActivationCheckpointing.SELECTIVE:
        notes.append("attention scores are computed as in the module")
    return notes


def _reduce_ranks(setup: TrainingSetup) -> tuple[TrainingSetup, float]:
    """Return the setup with at most the ranks that matter, and the scale of its shards."""
    if setup.strategy is ShardingStrategy.DDP:
        return setup, 1.0
    shards = min(setup.shards, MAX_SHARDS)
    replicas = min(setup.replicas, 2)
    return msgspec.structs.replace(
        setup, data=replicas * shards, replicas=replicas
    ), shards / setup.shards


_SHARDED_KINDS = ("SHARDED_PARAM", "SHARDED_GRAD", "OPT")


def _scale_shards(tracked: _TrackedStep, share: float) -> _TrackedStep:
    """Scale the shards by ``share``."""
    if share == 1.0:
        return tracked

    def scaled(kinds: Counter[str]) -> Counter[str]:
        scaled_kinds = Counter(
            {
                kind: round(size * (share if kind in _SHARDED_KINDS else 1.0))
                for kind, size in kinds.items()
            }
        )
        scaled_kinds["Total"] = sum(size for kind, size in scaled_kinds.items() if kind != "Total")
        return scaled_kinds

    return _TrackedStep(
        {moment: scaled(kinds) for moment, kinds in tracked.peaks.items()},
        scaled(tracked.persistent),
    )


def _track_step(
    internals: TorchInternals,
    source: str,
    function: Callable[..., Any],
    setup: TrainingSetup,
    path: str | None,
    depth: int,
) -> _TrackedStep:
    peaks = PeakRecorder()
    sharded = setup.strategy is ShardingStrategy.FSDP2
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        mesh = stack.enter_context(training_step.fake_process_group(internals, setup))
        stack.enter_context(internals.fake_mode())
        module, step = _build_on_fake_tensors(source, function, depth)
        if path is not None:
            truncate_layers(module, path, depth)
        step = step or training_step.make_default_step(module)
        forward_context = training_step.prepare_module(internals, mesh, module, path, setup)
        training_step.track_moments(module, path, peaks)
        stack.enter_context(ignore_shape_propagation(internals, peaks))
        optimizer = training_step.make_optimizer(module, setup)
        buckets = training_step.make_ddp_buckets(module, setup)
        tracker = _make_tracker(internals, module, optimizer, buckets, peaks, sharded=sharded)
        return _run_tracked(
            tracker,
            optimizer,
            peaks,
            setup,
            lambda: _run_forward(forward_context, step, module, setup),
        )


def _build_on_fake_tensors(
    source: str, function: Callable[..., Any], depth: int
) -> tuple[nn.Module, StepFunction | None]:
    """Build on fake tensors, or on the meta device if building reads values.

    Fake tensors then replace the meta tensors.
    """
    try:
        return build_module(source, function, depth)
    except InvalidValue:
        with unset_fake_temporarily(), torch.device("meta"):
            module, step = build_module(source, function, depth)
        training_step.replace_tensors(
            module, lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype)
        )
        return module, step


def _make_tracker(
    internals: TorchInternals,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    buckets: list[Any],
    peaks: PeakRecorder,
    *,
    sharded: bool,
) -> Any:
    tracker_class = make_tracker(internals, peaks, sharded=sharded)
    if sharded:
        return tracker_class(module, optimizer)
    tracker_instance = tracker_class()
    skip_frozen_parameters(tracker_instance, module)
    tracker_instance.track_external(module, optimizer, *buckets)
    return tracker_instance


def _run_forward(context: Any, step: Any, module: nn.Module, setup: TrainingSetup) -> Any:
    with context:
        return step(module, setup.micro_batch, setup.sequence)


def _run_tracked(
    tracker: Any,
    optimizer: Any,
    peaks: PeakRecorder,
    setup: TrainingSetup,
    forward: Callable[[], Any],
) -> _TrackedStep:
    with tracker:
        training_step.run_step(
            forward, optimizer, peaks, min(setup.accumulation, 2), tracker.reset_mod_stats
        )
        optimizer.zero_grad()
        steady = bytes_by_kind(tracker.get_tracker_snapshot())
    return _TrackedStep(peaks.highest, steady)


def _extrapolate(layers: int, depths: tuple[int, ...], runs: list[_TrackedStep]) -> _TrackedStep:
    """Extrapolate two runs linearly to full depth."""
    first, second = runs
    factor = (layers - depths[0]) / (depths[1] - depths[0])

    def line(one: Counter[str], two: Counter[str]) -> Counter[str]:
        kinds = {*one, *two}
        return Counter(
            {kind: round(one[kind] + factor * (two[kind] - one[kind])) for kind in kinds}
        )

    peaks = {
        moment: line(first.peaks[moment], kinds)
        for moment, kinds in second.peaks.items()
        if moment in first.peaks
    }
    return _TrackedStep(peaks, line(first.persistent, second.persistent))


#: The two trackers' kinds.
_PARAMETERS = ("SHARDED_PARAM", "PARAM", "BUFFER", "INP")
_GRADIENTS = ("SHARDED_GRAD", "GRAD")
_GATHERED = ("UNSHARDED_PARAM", "ALL_GATHER")
_BUFFERS = ("REDUCE_SCATTER", "OTH")
_TEMPORARY = ("TEMP", "UNSHARDED_GRAD")
_MOMENTS = {
    training_step.FORWARD: PeakMoment.LOSS,
    training_step.LOSS: PeakMoment.LOSS,
    training_step.BACKWARD: PeakMoment.BACKWARD,
    training_step.END: PeakMoment.END,
    training_step.STEP: PeakMoment.STEP,
}


def _model_states(full_step: _TrackedStep) -> ModelStates:
    def sum_kinds(kinds: Counter[str], names: tuple[str, ...]) -> int:
        return sum(kinds[name] for name in names)

    step_peak = full_step.peaks[training_step.STEP]
    parameters = sum_kinds(full_step.persistent, _PARAMETERS)
    return ModelStates(
        parameters, 0.0, sum_kinds(step_peak, _GRADIENTS), full_step.persistent["OPT"], 0.0
    )


def _transient_memory(full_step: _TrackedStep) -> dict[PeakMoment, TransientMemory]:
    """Return the transient memory at the peak of each moment."""
    by_moment: dict[PeakMoment, TransientMemory] = {}
    for name, kinds in full_step.peaks.items():
        moment = _MOMENTS[name]
        temporary_states = kinds["OPT"] - full_step.persistent["OPT"]
        passing = TransientMemory(
            moment,
            gradients=sum(kinds[each] for each in _GRADIENTS),
            activations=kinds["ACT"],
            temporary=sum(kinds[each] for each in _TEMPORARY) + temporary_states,
            gathered=sum(kinds[each] for each in _GATHERED),
            buffers=sum(kinds[each] for each in _BUFFERS),
        )
        if moment not in by_moment or passing.total > by_moment[moment].total:
            by_moment[moment] = passing
    return by_moment
