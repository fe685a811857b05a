"""A training run in no framework's words: what every configuration is written from, and read into."""

from __future__ import annotations

from enum import IntEnum, StrEnum

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.setup import Offload, Optimizer, Recompute, Schedule, Setup, Strategy


class Sharded(IntEnum):
    """What data-parallel ranks divide among them; the numbers are ZeRO's stages."""

    NOTHING = 0
    OPTIMIZER = 1
    GRADIENTS = 2
    PARAMETERS = 3


class Half(StrEnum):
    """In what a model is computed."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Place(StrEnum):
    """Where states stand."""

    GPU = "none"
    CPU = "cpu"
    NVME = "nvme"


class Offloaded(msgspec.Struct, frozen=True):
    """Where one kind of states stands; ``path`` of NVMe, ``pinned``: in page-locked memory."""

    device: Place = Place.GPU
    path: str = ""
    pinned: bool = True


class Descent(msgspec.Struct, frozen=True, kw_only=True):
    """The optimizer's values. ``name`` is torch's class; ``momentum`` is SGD's."""

    name: str = "AdamW"
    lr: float = 3e-4
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    momentum: float = 0.0


class Curve(StrEnum):
    """What the learning rate does after its warm-up."""

    NONE = "none"
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Rise(StrEnum):
    """How it rises until then."""

    LINEAR = "linear"
    LOG = "log"


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """The learning rate over steps, counted as DeepSpeed does: its first two steps are at the start.

    ``start`` and ``end`` are shares of the highest rate. ``NONE``: there is no schedule, and no warm-up either.
    """

    curve: Curve = Curve.NONE
    warmup_steps: int = 0
    total_steps: int = 0
    rise: Rise = Rise.LINEAR
    start: float = 0.0
    end: float = 0.0


class Scaler(msgspec.Struct, frozen=True):
    """fp16's loss scale: ``fixed`` unless 0, else from 2 ** ``power``, doubled each ``window`` good steps."""

    fixed: float = 0.0
    power: int = 16
    window: int = 1000


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """A run. ``ranks``: data-parallel ones, 0 where a configuration leaves it to the launch.

    ``replicas`` groups of ``ranks // replicas`` hold one copy of what is sharded (HSDP). ``kept_among``: parameters
    stay gathered in groups of so many ranks between forward and backward (hpZ; 0: they are not). ``batch`` of all ranks
    and ``micro_batch`` of one: 0 where not said. ``master``: the optimizer steps on an fp32 copy of 16-bit weights.
    ``reduced``: in what gradients go over the wire. ``autocast``: torch's, over weights in fp32.
    """

    sharded: Sharded = Sharded.PARAMETERS
    ranks: int = 0
    replicas: int = 1
    kept_among: int = 0
    micro_batch: int = 0
    accumulation: int = 1
    sequence: int = 0
    half: Half = Half.BF16
    master: bool = True
    reduced: Half = Half.FP32
    autocast: Half = Half.FP32
    scaler: Scaler = Scaler()
    clipping: float = 1.0
    descent: Descent | None = Descent()
    schedule: Rates = Rates()
    optimizer_on: Offloaded = Offloaded()
    parameters_on: Offloaded = Offloaded()
    recompute: Recompute = Recompute.NONE
    recomputed_on_cpu: bool = False
    compiled: bool = False
    #: All weights are gathered into one file when the model is saved.
    whole_save: bool = False
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    pipeline_schedule: Schedule = Schedule.ONE_F_ONE_B
    #: Of ``plan.models``, where it is one of those.
    model: str = ""

    def __post_init__(self) -> None:
        if self.ranks and self.ranks % self.replicas:
            raise BadValue("the number of replicas", why=f"{self.replicas} does not divide {self.ranks} ranks")

    @property
    def shards(self) -> int:
        """Ranks that share one copy; 0 where the number of ranks is not said."""
        return self.ranks // self.replicas

    @property
    def batch(self) -> int:
        """Sequences a step, of all ranks; 0 where that is not said."""
        return self.ranks * self.micro_batch * self.accumulation


_SHARDED = {
    Strategy.DDP: Sharded.NOTHING,
    Strategy.ZERO1: Sharded.OPTIMIZER,
    Strategy.ZERO2: Sharded.GRADIENTS,
    Strategy.ZERO3: Sharded.PARAMETERS,
    Strategy.FSDP1: Sharded.PARAMETERS,
    Strategy.FSDP2: Sharded.PARAMETERS,
}
#: bitsandbytes' or torchao's: neither torch.optim nor DeepSpeed's JSON has it.
EIGHT_BITS = "AdamW in 8 bits"
_OPTIMIZERS = {Optimizer.SGD: "SGD", Optimizer.MOMENTUM: "SGD", Optimizer.ADAMW: "AdamW",
               Optimizer.ADAMW_8BIT: EIGHT_BITS, Optimizer.ADAFACTOR: "Adafactor", Optimizer.MUON: "Muon"}  # fmt: skip
_FULL, _USUAL_MOMENTUM = 4, 0.9


class Training(msgspec.Struct, frozen=True, kw_only=True):
    """What a setup does not say. ``half``: which 16 bits, where it computes in 16 (bf16 from Ampere on)."""

    half: Half = Half.BF16
    descent: Descent = Descent()
    schedule: Rates = Rates()
    clipping: float = 1.0
    scaler: Scaler = Scaler()
    whole_save: bool = True
    #: Its name in ``plan.models``.
    model: str = ""
    #: Where NVMe is mounted; states that are offloaded then go there.
    nvme: str = ""


def recipe(setup: Setup, training: Training | None = None) -> Recipe:
    """What ``setup`` means to a framework.

    Raises:
        BadValue: 16-bit computation in fp32.
    """
    given = training or Training()
    form = setup.precision
    short = form.compute < _FULL
    if short and given.half is Half.FP32:
        raise BadValue("half", why="the setup computes in 16 bits, so it has to be bf16 or fp16")
    sharded = _SHARDED[setup.strategy]
    if sharded is Sharded.PARAMETERS and setup.strategy is not Strategy.ZERO3 and not setup.reshard:
        sharded = Sharded.GRADIENTS
    name = _OPTIMIZERS[setup.optimizer]
    momentum = given.descent.momentum or (_USUAL_MOMENTUM if setup.optimizer is Optimizer.MOMENTUM else 0.0)
    device = Place.NVME if given.nvme else Place.CPU
    away = Offloaded(device, given.nvme)
    half = given.half if short else Half.FP32
    return Recipe(
        sharded=sharded, ranks=setup.data, replicas=setup.replicas, micro_batch=setup.micro_batch,
        accumulation=setup.accumulation, sequence=setup.sequence, half=half, master=not short or bool(form.master),
        reduced=half if form.reduced < _FULL else Half.FP32, clipping=given.clipping,
        descent=msgspec.structs.replace(given.descent, name=name, momentum=momentum), schedule=given.schedule,
        scaler=given.scaler, recompute=setup.recompute, compiled=setup.compiled, whole_save=given.whole_save,
        optimizer_on=Offloaded() if setup.offload is Offload.NONE else away,
        parameters_on=away if setup.offload is Offload.PARAMETERS else Offloaded(),
        tensor=setup.tensor, pipeline=setup.pipeline, context=setup.context, expert=setup.expert,
        pipeline_schedule=setup.schedule, model=given.model.casefold(),
    )  # fmt: skip
