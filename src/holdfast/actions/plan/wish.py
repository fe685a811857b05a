"""What is asked of a plan, and one setup with what it needs of memory and time."""

from __future__ import annotations

import msgspec

from holdfast.actions.plan.model import Model
from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster
from holdfast.plan.memory import Footprint, footprint
from holdfast.plan.rates import Conditions
from holdfast.plan.scaling import Growth
from holdfast.plan.setup import (
    FULL_PRECISION,
    Loss,
    Offload,
    Optimizer,
    Precision,
    Recompute,
    Schedule,
    Setup,
    Strategy,
)
from holdfast.plan.shortfall import Measured
from holdfast.plan.time import Step, step
from holdfast.plan.tower_time import step_of
from holdfast.plan.towers import footprint_of

GIB = 1 << 30
#: By name: what numbers are kept in. Beside "auto", which takes the 16 bits that every GPU has in hardware.
PRECISIONS = {
    "bf16": Precision(),
    "fp16": Precision(),
    "fp8": Precision(),
    "fp32": FULL_PRECISION,
    "bf16-pure": Precision(compute=2, master=0, gradient=2, reduced=2, state=2),
}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for; None is to be chosen.

    ``on``: the cluster in words; ``degrees`` holds those that were given, by their names in a setup; ``sizes``: of a
    curve, two of them from where to where.
    """

    model: Model
    on: str
    parts: tuple[Cluster, ...]
    sequence: int
    batch: int | None = None
    micro_batch: int | None = None
    accumulation: int | None = None
    strategy: Strategy | None = None
    degrees: dict[str, int] = msgspec.field(default_factory=dict)
    schedule: Schedule | None = None
    recompute: Recompute | None = None
    optimizer: Optimizer = Optimizer.ADAMW
    precision: str = "auto"
    offload: Offload = Offload.NONE
    loss: Loss = Loss.EAGER
    flash: bool = True
    compiled: bool = False
    fused_optimizer: bool = False
    bucket_views: bool = False
    reshard: bool = True
    sizes: tuple[int, ...] = ()
    growth: Growth = Growth.WEAK
    measured: tuple[Measured, Measured] | None = None
    #: Where what `holdfast bench` measured of the links comes from, in words.
    links: str = ""
    #: Of a module of the user's own: a step is run on fake tensors, too.
    simulate: bool = False

    @property
    def cluster(self) -> Cluster:
        """The first part, which is all of it where GPUs are alike."""
        return self.parts[0]

    @property
    def gpus(self) -> int:
        """Of all parts."""
        return sum(part.gpus for part in self.parts)

    @property
    def conditions(self) -> Conditions:
        """What the setup does not hold."""
        return Conditions(float8=self.precision == "fp8")

    @property
    def half(self) -> str:
        """The precision by name, ``auto`` resolved by what all GPUs have in hardware."""
        if self.precision != "auto":
            return self.precision
        return "bf16" if all(part.gpu.bf16 for part in self.parts) else "fp16"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One setup on one cluster, with what it needs; ``step`` is None where its time cannot be said (``why``)."""

    setup: Setup
    cluster: Cluster
    footprint: Footprint
    step: Step | None
    why: str = ""


def needs(model: Model, setup: Setup, cluster: Cluster) -> Footprint:
    """What each rank needs of the cluster's GPUs.

    Raises:
        BadValue: a pipeline that the model cannot be cut for.
    """
    memory = int(cluster.gpu.memory_gib * GIB)
    return footprint(model.main, setup, memory) if model.plain else footprint_of(model.towers, setup, memory)


def takes(model: Model, setup: Setup, cluster: Cluster, given: Conditions) -> Step:
    """How long a step takes.

    Raises:
        BadValue: another number of GPUs is needed, a dtype that they do not have, or a pipeline of towers.
    """
    if model.plain:
        return step(model.main, setup, cluster, given)
    return step_of(model.towers, setup, cluster, given)


def run(wish: Wish, setup: Setup) -> Run:
    """The setup on the wish's cluster."""
    there = wish.cluster.resized(setup.world_size) if setup.world_size != wish.cluster.gpus else wish.cluster
    try:
        took, why = takes(wish.model, setup, there, wish.conditions), ""
    except BadValue as error:
        took, why = None, str(error)
    return Run(setup=setup, cluster=there, footprint=needs(wish.model, setup, there), step=took, why=why)
