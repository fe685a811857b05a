"""How a model is trained: ranks, sharding, precision and optimizer."""

from __future__ import annotations

from enum import StrEnum
from math import prod

import msgspec

from holdfast.core.errors import InvalidValue


class ShardingStrategy(StrEnum):
    """How data-parallel ranks store a model: fully, or a shard each."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    FSDP2 = "fsdp2"
    FSDP1 = "fsdp1"


class ActivationCheckpointing(StrEnum):
    """Which activations are dropped in forward and recomputed in backward.

    ``SELECTIVE``: attention's scores, softmax and dropout (V. Korthikanti et al., "Reducing
    Activation Recomputation in Large Transformer Models", 2022). ``OPERATIONS`` saves every second
    matrix product and attention, as torchtitan's "selective op" does. ``SECOND_LAYER``: every
    second layer entirely. ``FULL`` saves only the input of each layer.
    """

    NONE = "none"
    SELECTIVE = "selective"
    OPERATIONS = "operations"
    SECOND_LAYER = "second-layer"
    FULL = "full"


class PipelineSchedule(StrEnum):
    """The order in which pipeline stages process micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"


class OptimizerKind(StrEnum):
    """The optimizer, which determines the states per weight."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    ADAFACTOR = "adafactor"
    MUON = "muon"


class LossKernel(StrEnum):
    """How cross-entropy is computed.

    With large vocabularies its copies of the logits dominate the peak. ``EAGER``: in fp32, op by
    op. ``COMPILED``: by a compiler, which keeps only the logits. ``FUSED``: a kernel that writes
    the gradient over the logits (flash-attn's). ``CHUNKED``: some tokens at a time, including the
    head (Liger's).
    """

    EAGER = "eager"
    COMPILED = "compiled"
    FUSED = "fused"
    CHUNKED = "chunked"


class OffloadTarget(StrEnum):
    """What is stored in host memory instead of GPU memory."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"


class Precision(msgspec.Struct, frozen=True):
    """Bytes per number, by purpose.

    ``compute``: weights in matrix products; ``master``: their copy for the optimizer (0: none);
    ``gradient``: gradients as stored; ``reduced``: gradients as communicated; ``state``: each
    optimizer state.
    """

    compute: int = 2
    master: int = 4
    gradient: int = 4
    reduced: int = 4
    state: int = 4


#: fp32 everywhere.
FP32_PRECISION = Precision(compute=4, master=0, gradient=4, reduced=4, state=4)


class TrainingSetup(msgspec.Struct, frozen=True, kw_only=True):
    """A run: degrees of parallelism, batch and memory options. Degrees multiply to the world size.

    ``data`` ranks have different batches; ``replicas`` copies of the model exist among them (``data
    // replicas`` ranks form one group of shards; HSDP if both are more than 1). ``tensor``,
    ``pipeline`` and ``context`` divide one batch; ``expert`` ranks are taken from those of ``data``
    and ``context``. A data-parallel rank processes ``micro_batch`` sequences of ``sequence`` tokens
    at a time, ``accumulation`` times per step. ``chunks``: model chunks per pipeline rank (virtual
    stages).
    """

    strategy: ShardingStrategy = ShardingStrategy.FSDP2
    data: int = 1
    replicas: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = True
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    chunks: int = 1
    micro_batch: int = 1
    accumulation: int = 1
    sequence: int = 2048
    recompute: ActivationCheckpointing = ActivationCheckpointing.NONE
    flash: bool = True
    compiled: bool = False
    precision: Precision = Precision()
    optimizer: OptimizerKind = OptimizerKind.ADAMW
    offload: OffloadTarget = OffloadTarget.NONE
    #: FSDP and ZeRO-3: parameters are gathered again for backward.
    reshard: bool = True
    loss: LossKernel = LossKernel.EAGER
    #: Dropout's masks are saved for backward.
    dropout: bool = False
    #: RMS norms in one kernel; otherwise they save fp32 copies. Layer norms are always fused.
    fused_norms: bool = True
    #: DDP's ``gradient_as_bucket_view``: otherwise its buckets are a second copy of the gradients.
    bucket_views: bool = False
    #: torch's ``fused=True`` needs no temporaries; ``foreach`` allocates one number per weight.
    fused_optimizer: bool = False
    #: Tokens per expert rank, as a multiple of an equal share.
    capacity: float = 1.0

    def __post_init__(self) -> None:
        for name in ("data", "replicas", "tensor", "pipeline", "context", "expert", "chunks"):
            if getattr(self, name) < 1:
                raise InvalidValue(
                    f"the degree {name}", why=f"{getattr(self, name)} is less than 1"
                )
        for name in ("micro_batch", "accumulation", "sequence"):
            if getattr(self, name) < 1:
                raise InvalidValue(name, why=f"{getattr(self, name)} is less than 1")
        if self.data % self.replicas:
            raise InvalidValue(
                "the number of replicas",
                why=f"{self.replicas} does not divide the data degree {self.data}",
            )
        if self.offload is OffloadTarget.PARAMETERS and not self.shards_parameters:
            raise InvalidValue(
                "offload of parameters", why=f"{self.strategy} does not shard parameters"
            )
        if not 0 < self.capacity < float("inf"):
            raise InvalidValue(f"a capacity of {self.capacity}", why="must be above 0")
        ranks = self.data * self.context
        if ranks % self.expert:
            raise InvalidValue(
                "the degree expert",
                why=f"{self.expert} does not divide the {ranks} data and context ranks",
            )

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return prod((self.data, self.tensor, self.pipeline, self.context))

    @property
    def shards(self) -> int:
        """Return the ranks that shard one copy of a stage's weights, context ranks included.

        Tensor parallelism divides the weights further.
        """
        return self.data // self.replicas * self.context

    @property
    def shards_parameters(self) -> bool:
        """Return whether each data-parallel rank keeps only a shard of the parameters."""
        return self.strategy in (
            ShardingStrategy.ZERO3,
            ShardingStrategy.FSDP1,
            ShardingStrategy.FSDP2,
        )

    @property
    def global_batch(self) -> int:
        """Return the sequences per step of all ranks."""
        return self.data * self.micro_batch * self.accumulation

    @property
    def tokens_per_step(self) -> int:
        """Return the tokens per step of all ranks."""
        return self.global_batch * self.sequence
