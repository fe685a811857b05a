"""How a model is trained: on how many ranks, how it is divided among them, in what precision, with what optimizer."""

from __future__ import annotations

from enum import StrEnum
from math import prod

import msgspec

from holdfast.errors import BadValue


class Strategy(StrEnum):
    """What the data-parallel ranks keep of a model: each all of it, or each a share."""

    DDP = "ddp"
    ZERO1 = "zero1"
    ZERO2 = "zero2"
    ZERO3 = "zero3"
    FSDP2 = "fsdp2"
    FSDP1 = "fsdp1"


class Recompute(StrEnum):
    """Which activations are thrown away and computed again in backward (activation checkpointing).

    ``SELECTIVE`` is attention's scores, softmax and dropout (V. Korthikanti et al., "Reducing Activation Recomputation
    in Large Transformer Models", 2022); ``OPERATIONS`` keeps every second matrix product and attention, as torchtitan's
    "selective op" does; ``SECOND_LAYER`` is every second layer whole; ``FULL`` keeps the input of each layer.
    """

    NONE = "none"
    SELECTIVE = "selective"
    OPERATIONS = "operations"
    SECOND_LAYER = "second-layer"
    FULL = "full"


class Schedule(StrEnum):
    """In which order a pipeline's stages take micro-batches."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE = "zero-bubble"


class Optimizer(StrEnum):
    """What is kept for each weight beside it."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAMW = "adamw"
    ADAMW_8BIT = "adamw-8bit"
    ADAFACTOR = "adafactor"
    MUON = "muon"


class Loss(StrEnum):
    """How cross-entropy is computed: its copies of the logits are much of a peak where vocabularies are large.

    ``EAGER``: in fp32, op by op; ``COMPILED``: by a compiler, which keeps the logits alone; ``FUSED``: a kernel that
    writes their gradient over them (flash-attn's); ``CHUNKED``: some tokens at a time, with the head (Liger's).
    """

    EAGER = "eager"
    COMPILED = "compiled"
    FUSED = "fused"
    CHUNKED = "chunked"


class Offload(StrEnum):
    """What stands in the host's memory instead of the GPU's."""

    NONE = "none"
    OPTIMIZER = "optimizer"
    PARAMETERS = "parameters"


class Precision(msgspec.Struct, frozen=True):
    """Bytes of one number, by what it is for.

    ``compute``: weights as they are multiplied; ``master``: their copy for the optimizer (0: there is none besides);
    ``gradient`` as it is kept, ``reduced`` as it goes over the wire; ``state``: each of the optimizer's.
    """

    compute: int = 2
    master: int = 4
    gradient: int = 4
    reduced: int = 4
    state: int = 4


#: fp32 everywhere.
FULL_PRECISION = Precision(compute=4, master=0, gradient=4, reduced=4, state=4)


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A run: degrees of parallelism, batch and memory-saving measures. Degrees multiply to the world size.

    ``data`` ranks have batches of their own: ``replicas`` times as many as share one copy of the model
    (``data // replicas`` ranks are one group of shards; HSDP where both are more than 1). ``tensor``, ``pipeline`` and
    ``context`` divide what one batch needs; ``expert`` ranks are taken from those of ``data`` and ``context``.
    ``micro_batch`` sequences of ``sequence`` tokens go through a data-parallel rank at a time, ``accumulation`` times a
    step. ``chunks``: pieces of the model a pipeline rank has (virtual stages).
    """

    strategy: Strategy = Strategy.FSDP2
    data: int = 1
    replicas: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    sequence_parallel: bool = True
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1
    micro_batch: int = 1
    accumulation: int = 1
    sequence: int = 2048
    recompute: Recompute = Recompute.NONE
    flash: bool = True
    compiled: bool = False
    precision: Precision = Precision()
    optimizer: Optimizer = Optimizer.ADAMW
    offload: Offload = Offload.NONE
    #: FSDP and ZeRO-3: parameters are gathered again for backward.
    reshard: bool = True
    loss: Loss = Loss.EAGER
    #: Its masks are kept for backward.
    dropout: bool = False
    #: RMS norms in one kernel; otherwise they keep copies in fp32. Layer norms always are.
    fused_norms: bool = True
    #: DDP's ``gradient_as_bucket_view``: otherwise its buckets are a second copy of the gradients.
    bucket_views: bool = False
    #: torch's ``fused=True``: its kernel needs no numbers besides; ``foreach`` makes one for each weight.
    fused_optimizer: bool = False
    #: Tokens that an expert's rank may get, as a multiple of an equal share.
    capacity: float = 1.0

    def __post_init__(self) -> None:
        for name in ("data", "replicas", "tensor", "pipeline", "context", "expert", "chunks"):
            if getattr(self, name) < 1:
                raise BadValue(f"the degree {name}", why=f"{getattr(self, name)} is less than 1")
        for name in ("micro_batch", "accumulation", "sequence"):
            if getattr(self, name) < 1:
                raise BadValue(name, why=f"{getattr(self, name)} is less than 1")
        if self.data % self.replicas:
            raise BadValue("the number of replicas", why=f"{self.replicas} does not divide {self.data}, that of data")
        if self.offload is Offload.PARAMETERS and not self.shards_parameters:
            raise BadValue("offload of parameters", why=f"{self.strategy} keeps them whole on each GPU")
        if not 0 < self.capacity < float("inf"):
            raise BadValue(f"a capacity of {self.capacity}", why="it has to be above 0")
        ranks = self.data * self.context
        if ranks % self.expert:
            raise BadValue("the degree expert", why=f"{self.expert} does not divide {ranks}, those of data and context")

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return prod((self.data, self.tensor, self.pipeline, self.context))

    @property
    def shards(self) -> int:
        """Ranks among which one copy of a stage's weights is divided, beside tensor parallelism; context ranks too."""
        return self.data // self.replicas * self.context

    @property
    def shards_parameters(self) -> bool:
        """A data-parallel rank keeps a share of the parameters alone."""
        return self.strategy in (Strategy.ZERO3, Strategy.FSDP1, Strategy.FSDP2)

    @property
    def global_batch(self) -> int:
        """Sequences a step, of all ranks."""
        return self.data * self.micro_batch * self.accumulation

    @property
    def tokens_a_step(self) -> int:
        """Of all ranks."""
        return self.global_batch * self.sequence
