"""The plan request, and one setup with its memory and step time."""

from __future__ import annotations

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.advice.scaling import ScalingMode
from holdfast.plan.advice.shortfall import MeasuredThroughput
from holdfast.plan.hardware import Cluster
from holdfast.plan.memory.estimate import MemoryEstimate, estimate_memory
from holdfast.plan.request.plan_model import PlanModel
from holdfast.plan.setup import (
    FP32_PRECISION,
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    OptimizerKind,
    PipelineSchedule,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.step_time.estimate import StepTime, estimate_step_time
from holdfast.plan.step_time.rates import Conditions
from holdfast.plan.step_time.submodel_time import estimate_submodels_step_time
from holdfast.plan.submodels import estimate_submodels_memory

GIB = 1 << 30
#: Number formats by precision name; "auto" selects the 16-bit dtype that every GPU supports.
PRECISIONS = {
    "bf16": Precision(),
    "fp16": Precision(),
    "fp8": Precision(),
    "fp32": FP32_PRECISION,
    "bf16-pure": Precision(compute=2, master=0, gradient=2, reduced=2, state=2),
}


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to plan; None means: choose it.

    ``cluster_text``: the cluster as written. ``degrees``: the given parallelism degrees by their
    setup names. ``gpu_counts``: sizes of a scaling curve; two mean from … to.
    """

    model: PlanModel
    cluster_text: str
    clusters: tuple[Cluster, ...]
    sequence: int
    batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    strategy: ShardingStrategy | None = None
    degrees: dict[str, int] = msgspec.field(default_factory=dict)
    schedule: PipelineSchedule | None = None
    recompute: ActivationCheckpointing | None = None
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    precision: str = "auto"
    offload: OffloadTarget = OffloadTarget.NONE
    loss: LossKernel = LossKernel.EAGER
    flash: bool = True
    compiled: bool = False
    fused_optimizer: bool = False
    bucket_views: bool = False
    reshard: bool = True
    #: Gradients are reduced in the 16-bit compute dtype.
    reduce_16_bits: bool = False
    #: Context ranks have equal shares of the causal mask; torchtitan's published runs do not.
    balanced: bool = False
    async_tensor: bool = False
    fused_norms: bool = True
    gpu_counts: tuple[int, ...] = ()
    scaling_mode: ScalingMode = ScalingMode.WEAK
    measured: tuple[MeasuredThroughput, MeasuredThroughput] | None = None
    #: Description of the `holdfast bench` measurement of the links.
    links_origin: str = ""
    #: Also run a step of the user's module on fake tensors.
    simulate: bool = False

    @property
    def first_cluster(self) -> Cluster:
        """Return the first cluster, which is the only one if all GPUs are alike."""
        return self.clusters[0]

    @property
    def gpus(self) -> int:
        """Return the number of GPUs of all clusters."""
        return sum(cluster.gpus for cluster in self.clusters)

    @property
    def conditions(self) -> Conditions:
        """Return the run conditions that the setup lacks."""
        return Conditions(
            float8=self.precision == "fp8",
            balanced=self.balanced,
            tensor_overlap=self.async_tensor,
        )

    @property
    def number_formats(self) -> Precision:
        """Return the bytes per number by purpose."""
        formats = PRECISIONS[self.resolved_precision]
        is_reduced = self.reduce_16_bits and formats.compute < formats.reduced
        return msgspec.structs.replace(formats, reduced=2) if is_reduced else formats

    @property
    def resolved_precision(self) -> str:
        """Return the precision by name; ``auto`` is resolved by what all GPUs support."""
        if self.precision != "auto":
            return self.precision
        return "bf16" if all(cluster.gpu.bf16 for cluster in self.clusters) else "fp16"


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One setup on one cluster with its memory and step time.

    ``step`` is None if the step time is unknown (``no_time_reason``).
    """

    setup: TrainingSetup
    cluster: Cluster
    memory: MemoryEstimate
    step: StepTime | None
    no_time_reason: str = ""


def estimate_model_memory(
    model: PlanModel, setup: TrainingSetup, cluster: Cluster
) -> MemoryEstimate:
    """Return the memory each rank needs on the cluster's GPUs.

    Raises:
        InvalidValue: the model cannot be split into the pipeline.
    """
    limits = int(cluster.gpu.memory_gib * GIB), cluster.host_memory_per_rank
    return (
        estimate_memory(model.main_transformer, setup, *limits)
        if model.is_plain
        else estimate_submodels_memory(model.submodels, setup, *limits)
    )


def estimate_model_step_time(
    model: PlanModel, setup: TrainingSetup, cluster: Cluster, conditions: Conditions
) -> StepTime:
    """Return the step time.

    Raises:
        InvalidValue: wrong number of GPUs, unsupported dtype, or a pipeline of submodels.
    """
    if model.is_plain:
        return estimate_step_time(model.main_transformer, setup, cluster, conditions)
    return estimate_submodels_step_time(model.submodels, setup, cluster, conditions)


def evaluate_setup(request: PlanRequest, setup: TrainingSetup) -> PlannedRun:
    """Evaluate the setup on the request's cluster, resized to its world size."""
    cluster = (
        request.first_cluster.resized(setup.world_size)
        if setup.world_size != request.first_cluster.gpus
        else request.first_cluster
    )
    try:
        step, no_time_reason = (
            estimate_model_step_time(request.model, setup, cluster, request.conditions),
            "",
        )
    except InvalidValue as error:
        step, no_time_reason = None, str(error)
    return PlannedRun(
        setup=setup,
        cluster=cluster,
        memory=estimate_model_memory(request.model, setup, cluster),
        step=step,
        no_time_reason=no_time_reason,
    )
