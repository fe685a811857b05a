"""A training run independent of frameworks: the source and target of every configuration."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.setup import (
    ActivationCheckpointing,
    OffloadTarget,
    OptimizerKind,
    PipelineSchedule,
    ShardingStrategy,
    TrainingSetup,
)


class ShardedStates(IntEnum):
    """What data-parallel ranks shard; the numbers are ZeRO's stages."""

    NOTHING = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


class ComputeDtype(StrEnum):
    """The dtype of computation."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class StateDevice(StrEnum):
    """The device of model states."""

    GPU = "none"
    CPU = "cpu"
    NVME = "nvme"


class OffloadPlacement(msgspec.Struct, frozen=True):
    """The device of one kind of states; ``path``: of NVMe, ``pinned``: in page-locked memory."""

    device: StateDevice = StateDevice.GPU
    path: str = ""
    pinned: bool = True


class OptimizerValues(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer. ``name``: torch's class; ``momentum``: of SGD."""

    name: str = "AdamW"
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.0


class LrDecay(StrEnum):
    """The learning rate after its warm-up."""

    NONE = "none"
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class LrWarmup(StrEnum):
    """The shape of the warm-up."""

    LINEAR = "linear"
    LOG = "log"


class LrSchedule(
    msgspec.Struct, frozen=True, kw_only=True, rename={"decay": "curve", "warmup": "rise"}
):
    """The learning rate over steps.

    Steps are counted as in DeepSpeed: the first two steps use the initial rate. ``start`` and
    ``end`` are shares of the highest rate. ``NONE``: no schedule and no warm-up.
    """

    decay: LrDecay = LrDecay.NONE
    warmup_steps: int = 0
    total_steps: int = 0
    warmup: LrWarmup = LrWarmup.LINEAR
    start: float = 0.0
    end: float = 0.0


class LossScaler(msgspec.Struct, frozen=True):
    """fp16's loss scale.

    It is ``fixed`` unless 0, else 2 ** ``power``, doubled after ``window`` steps without overflow.
    """

    fixed: float = 0.0
    power: int = 16
    window: int = 1000


#: Keys of ``--json``, which scripts outside of this repository read.
_JSON_KEYS = {
    "sharded_states": "sharded",
    "gather_group": "kept_among",
    "compute_dtype": "half",
    "reduce_dtype": "reduced",
    "autocast_dtype": "autocast",
    "optimizer": "descent",
    "optimizer_placement": "optimizer_on",
    "parameter_placement": "parameters_on",
    "offload_activations": "recomputed_on_cpu",
    "gather_on_save": "whole_save",
}


class Recipe(msgspec.Struct, frozen=True, kw_only=True, rename=_JSON_KEYS):
    """A run. ``ranks``: data-parallel ranks, 0 if left to the launch; ``hosts``: their number.

    ``replicas`` copies of the model among the ranks (HSDP). ``gather_group``: parameters stay
    gathered in groups of this many ranks between forward and backward (hpZ; 0: off).
    ``micro_batch``: 0 if unknown. ``master``: the optimizer updates an fp32 copy of 16-bit weights.
    ``reduce_dtype``: of communicated gradients. ``autocast_dtype``: torch's autocast over fp32
    weights.
    """

    sharded_states: ShardedStates = ShardedStates.PARAMETERS
    ranks: int = 0
    hosts: int = 1
    replicas: int = 1
    gather_group: int = 0
    micro_batch: int = 0
    accumulation: int = 1
    sequence: int = 0
    compute_dtype: ComputeDtype = ComputeDtype.BF16
    master: bool = True
    reduce_dtype: ComputeDtype = ComputeDtype.FP32
    autocast_dtype: ComputeDtype = ComputeDtype.FP32
    scaler: LossScaler = LossScaler()
    clipping: float = 1.0
    optimizer: OptimizerValues | None = OptimizerValues()
    schedule: LrSchedule = LrSchedule()
    optimizer_placement: OffloadPlacement = OffloadPlacement()
    parameter_placement: OffloadPlacement = OffloadPlacement()
    recompute: ActivationCheckpointing = ActivationCheckpointing.NONE
    offload_activations: bool = False
    compiled: bool = False
    #: All weights are gathered into one file on save.
    gather_on_save: bool = False
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    pipeline_schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    #: A name of ``plan.models``, or empty.
    model: str = ""

    def __post_init__(self) -> None:
        if self.ranks and self.ranks % self.replicas:
            raise InvalidValue(
                "the number of replicas", why=f"{self.replicas} does not divide {self.ranks} ranks"
            )

    @property
    def shards(self) -> int:
        """Return the ranks that share one copy; 0 if the ranks are unknown."""
        return self.ranks // self.replicas

    @property
    def world_size(self) -> int:
        """Return all ranks; 0 if unknown."""
        return self.ranks * self.tensor * self.pipeline * self.context

    @property
    def torchrun(self) -> str:
        """Return the command that starts all ranks, to be entered on each host."""
        per_host = str(self.world_size // self.hosts) if self.world_size else "N"
        if self.hosts == 1:
            return f"torchrun --nproc-per-node {per_host}"
        return (
            f"torchrun --nnodes {self.hosts} --nproc-per-node {per_host} "
            "--rdzv-backend c10d --rdzv-endpoint HOST:29500"
        )

    @property
    def batch(self) -> int:
        """Return the sequences per step of all ranks; 0 if unknown."""
        return self.ranks * self.micro_batch * self.accumulation


_SHARDED = {
    ShardingStrategy.DDP: ShardedStates.NOTHING,
    ShardingStrategy.ZERO1: ShardedStates.OPTIMIZER,
    ShardingStrategy.ZERO2: ShardedStates.GRADIENTS,
    ShardingStrategy.ZERO3: ShardedStates.PARAMETERS,
    ShardingStrategy.FSDP1: ShardedStates.PARAMETERS,
    ShardingStrategy.FSDP2: ShardedStates.PARAMETERS,
}
#: Of bitsandbytes or torchao: neither torch.optim nor DeepSpeed's JSON has it.
EIGHT_BITS = "AdamW in 8 bits"
_OPTIMIZERS = {
    OptimizerKind.SGD: "SGD",
    OptimizerKind.MOMENTUM: "SGD",
    OptimizerKind.ADAMW: "AdamW",
    OptimizerKind.ADAMW_8BIT: EIGHT_BITS,
    OptimizerKind.ADAFACTOR: "Adafactor",
    OptimizerKind.MUON: "Muon",
}
_FP32_BYTES, _DEFAULT_MOMENTUM = 4, 0.9


class TrainingValues(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a setup lacks. ``compute_dtype``: the 16-bit dtype, if the setup uses one."""

    compute_dtype: ComputeDtype = ComputeDtype.BF16
    optimizer: OptimizerValues = OptimizerValues()
    schedule: LrSchedule = LrSchedule()
    clipping: float = 1.0
    scaler: LossScaler = LossScaler()
    gather_on_save: bool = True
    #: Its name in ``plan.models``.
    model: str = ""
    #: Mount point of NVMe for offloaded states.
    nvme_path: str = ""
    hosts: int = 1


def build_recipe(setup: TrainingSetup, training: TrainingValues | None = None) -> Recipe:
    """Convert ``setup`` to a recipe.

    Raises:
        InvalidValue: fp32 as the 16-bit dtype.
    """
    values = training or TrainingValues()
    precision = setup.precision
    is_half = precision.compute < _FP32_BYTES
    if is_half and values.compute_dtype is ComputeDtype.FP32:
        raise InvalidValue("half", why="the setup computes in 16 bits: use bf16 or fp16")
    sharded = _SHARDED[setup.strategy]
    if (
        sharded is ShardedStates.PARAMETERS
        and setup.strategy is not ShardingStrategy.ZERO3
        and not setup.reshard
    ):
        sharded = ShardedStates.GRADIENTS
    name = _OPTIMIZERS[setup.optimizer]
    momentum = values.optimizer.momentum or (
        _DEFAULT_MOMENTUM if setup.optimizer is OptimizerKind.MOMENTUM else 0.0
    )
    device = StateDevice.NVME if values.nvme_path else StateDevice.CPU
    placement = OffloadPlacement(device, values.nvme_path)
    dtype = values.compute_dtype if is_half else ComputeDtype.FP32
    return Recipe(
        sharded_states=sharded,
        ranks=setup.data,
        hosts=values.hosts,
        replicas=setup.replicas,
        micro_batch=setup.micro_batch,
        accumulation=setup.accumulation,
        sequence=setup.sequence,
        compute_dtype=dtype,
        master=not is_half or bool(precision.master),
        reduce_dtype=dtype if precision.reduced < _FP32_BYTES else ComputeDtype.FP32,
        clipping=values.clipping,
        optimizer=msgspec.structs.replace(values.optimizer, name=name, momentum=momentum),
        schedule=values.schedule,
        scaler=values.scaler,
        recompute=setup.recompute,
        compiled=setup.compiled,
        gather_on_save=values.gather_on_save,
        optimizer_placement=OffloadPlacement()
        if setup.offload is OffloadTarget.NONE
        else placement,
        parameter_placement=placement
        if setup.offload is OffloadTarget.PARAMETERS
        else OffloadPlacement(),
        tensor=setup.tensor,
        pipeline=setup.pipeline,
        context=setup.context,
        expert=setup.expert,
        pipeline_schedule=setup.schedule,
        model=values.model.casefold(),
    )
