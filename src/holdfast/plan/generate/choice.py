"""FSDP or DeepSpeed: what speaks for each, by the hardware, the model and what is used already.

Neither is better in general, so each reason is for one of them, has a weight and names where its fact comes from; what
is recommended is only their sum. ``measured here``: in two processes on CPU, torch 2.13 and DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from holdfast.plan.gpus import Dtype
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import Offload, Optimizer, Setup, Strategy

#: Times as fast as the network a node's own links are, from which sharding over all ranks is felt.
_SLOW = 8
#: Bytes of a parameter that a rank trains with Adam in mixed precision: ZeRO, section 3.1.
_STATES = 16
_GIB = 1 << 30
#: Share of a GPU that states may take, where activations need the rest.
_FOR_STATES = 0.6
#: Bytes of fp32.
_FULL = 4


class Framework(StrEnum):
    """Between which to choose."""

    FSDP2 = "fsdp2"
    DEEPSPEED = "deepspeed"


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """What neither the setup nor the cluster says. ``nvme``: states may go to local disks; ``used``: what is there.

    ``used`` is one of transformers, accelerate, lightning, torchtitan, megatron-deepspeed, or empty. ``resized``: the
    job is to go on with another number of GPUs. ``host_bytes``: memory of each host, 0 where it is not known.
    """

    nvme: bool = False
    used: str = ""
    resized: bool = False
    host_bytes: int = 0


class Reason(msgspec.Struct, frozen=True):
    """A sentence that speaks ``for_`` one; ``weight`` 3 where the other cannot do it, 1 where it is taste."""

    for_: Framework
    weight: int
    sentence: str
    source: str


class Choice(msgspec.Struct, frozen=True):
    """The one that more speaks for; ``close`` where it is a matter of taste. ``reasons`` the weightiest first."""

    recommended: Framework
    close: bool
    reasons: tuple[Reason, ...]

    def speaking_for(self, framework: Framework) -> tuple[Reason, ...]:
        """Those of one; neither is ever empty."""
        return tuple(reason for reason in self.reasons if reason.for_ is framework)


def choose(model: Transformer, setup: Setup, cluster: Cluster, wishes: Wishes | None = None) -> Choice:
    """What to take, and why."""
    asked = wishes or Wishes()
    found = [
        *_always(),
        *_of_offload(model, setup, cluster, asked),
        *_of_precision(setup, cluster),
        *_of_links(model, setup, cluster),
        *_of_parallelism(setup),
        *_of_surroundings(setup, asked),
    ]
    sums = {each: sum(reason.weight for reason in found if reason.for_ is each) for each in Framework}
    difference = sums[Framework.FSDP2] - sums[Framework.DEEPSPEED]
    best = Framework.DEEPSPEED if difference < 0 else Framework.FSDP2
    return Choice(best, abs(difference) <= 1, tuple(sorted(found, key=lambda reason: -reason.weight)))


def _fsdp(weight: int, sentence: str, source: str) -> Reason:
    return Reason(Framework.FSDP2, weight, sentence, source)


def _deepspeed(weight: int, sentence: str, source: str) -> Reason:
    return Reason(Framework.DEEPSPEED, weight, sentence, source)


def _always() -> Iterator[Reason]:
    yield _fsdp(
        1,
        "it is in torch itself: nothing is installed or compiled besides, and what is sharded is a DTensor that all of "
        "torch understands",
        "torch/distributed/fsdp/_fully_shard",
    )
    yield _deepspeed(
        1,
        "loop, accumulation, clipping, loss scale and schedule come with it, and one JSON says them all; with FSDP2 "
        "they are code of one's own",
        "deepspeed/runtime/config.py",
    )


def _of_offload(model: Transformer, setup: Setup, cluster: Cluster, asked: Wishes) -> Iterator[Reason]:
    states = model.params * _STATES
    host = asked.host_bytes * cluster.nodes
    if asked.nvme or (setup.offload is not Offload.NONE and host and states > host):
        yield _deepspeed(
            3,
            "states that fit neither GPUs nor hosts can go to NVMe, which FSDP2 cannot",
            "S. Rajbhandari et al., ZeRO-Infinity (2021); torch's CPUOffloadPolicy knows the host alone",
        )
    if setup.offload is Offload.OPTIMIZER:
        yield _deepspeed(
            2,
            "the optimizer alone can be offloaded, or a share of it, with an Adam written for CPUs (5 to 7 times "
            "torch's, by its authors); FSDP2 offloads weights with it and steps by torch",
            "deepspeed/ops/adam/cpu_adam.py; torch/distributed/fsdp/_fully_shard/_fsdp_api.py, CPUOffloadPolicy",
        )
    elif setup.offload is Offload.PARAMETERS:
        yield _deepspeed(
            1,
            "weights in the host's memory are fetched ahead by buckets that can be tuned",
            "deepspeed/runtime/zero/offload_config.py",
        )


def _of_precision(setup: Setup, cluster: Cluster) -> Iterator[Reason]:
    if cluster.gpu.half is Dtype.FP16 and setup.precision.compute < _FULL:
        yield _deepspeed(
            2,
            f"{cluster.gpu.name} has no bf16 in hardware, and fp16 needs a loss scale: DeepSpeed has one built in, "
            "with patience and a floor; with FSDP2 it is torch.amp.GradScaler in the loop",
            "deepspeed/runtime/precision_config.py; compute capability below 8.0",
        )
    if setup.precision.compute < setup.precision.master:
        yield _deepspeed(
            1,
            "an fp32 copy of 16-bit weights is made unasked; under FSDP2 a model loaded in bf16 has none (2.8 % of the "
            "weights changed in one Adam step at 1e-5, against 92 to 96 %)",
            "measured here; huggingface/accelerate#2624",
        )
        yield _fsdp(
            1,
            "the fp32 weights are the only copy and 16 bits are made as they are gathered; gradients can be reduced in "
            "fp32 by one word",
            "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, MixedPrecisionPolicy",
        )
    if not setup.precision.master and setup.precision.compute < 4:
        yield _fsdp(1, "weights without an fp32 copy need no switch: load them in bf16", "as above")


def _of_links(model: Transformer, setup: Setup, cluster: Cluster) -> Iterator[Reason]:
    if cluster.nodes < 2 or cluster.links.inside < _SLOW * cluster.links.outside:
        return
    times = f"{cluster.links.inside / cluster.links.outside:.0f}"
    share = model.params * _STATES / (setup.tensor * setup.pipeline * cluster.per_node)
    if share < _FOR_STATES * cluster.gpu.memory_gib * _GIB:
        yield _fsdp(
            2,
            f"a node's links are {times} times as fast as its network, and one node can hold all states "
            f"({share / _GIB:.0f} GiB a GPU): HSDP gathers weights inside nodes and sends gradients alone between "
            "them; DeepSpeed 0.19 removed MiCS, which did that",
            "torch's mesh of (replicate, shard); deepspeed/runtime/config.py, _REMOVED_ZERO_CONFIG_KEYS",
        )
    else:
        yield _deepspeed(
            2,
            f"a node's links are {times} times as fast as its network, and one node cannot hold all states: ZeRO++ "
            "gathers from a second copy inside the node (hpZ) and sends quantized weights and gradients; FSDP2 has the "
            "first of the three (reshard_after_forward=<GPUs of a node>)",
            "G. Wang et al., ZeRO++ (2023)",
        )


def _of_parallelism(setup: Setup) -> Iterator[Reason]:
    kinds = [name for name in ("tensor", "pipeline", "context", "expert") if getattr(setup, name) > 1]
    if kinds:
        yield _fsdp(
            2,
            f"{' and '.join(kinds)} parallelism are axes of one mesh with it, and checkpoints know them",
            "torchtitan (W. Liang et al., 2024); torch.distributed.device_mesh",
        )
    if setup.pipeline > 1:
        yield _deepspeed(
            1, "its PipelineModule cuts a list of layers by itself; torch wants stages", "deepspeed/runtime/pipe"
        )
    if setup.strategy in (Strategy.ZERO1, Strategy.ZERO2):
        yield _deepspeed(
            1,
            "ZeRO-1 and 2 keep the 16-bit weights whole from step to step; FSDP2's nearest "
            "(reshard_after_forward=False) gathers them once each forward",
            "S. Rajbhandari et al., ZeRO (2019), section 5; torch's fully_shard",
        )


def _of_surroundings(setup: Setup, asked: Wishes) -> Iterator[Reason]:
    used = asked.used.casefold()
    if setup.compiled:
        yield _fsdp(
            2,
            "torch.compile goes with it layer by layer, as torchtitan does in production; ZeRO-3's hooks are kept "
            "out of compiled graphs, which break there, unless DeepCompile is on",
            "torchtitan/models/llama3/parallelize.py; deepspeed/runtime/zero/parameter_offload.py",
        )
    if setup.optimizer is Optimizer.MUON:
        yield _deepspeed(
            1, "it has Muon for sharded weights; torch.optim.Muon takes whole matrices", "deepspeed/runtime/engine.py"
        )
    if setup.optimizer is Optimizer.ADAMW_8BIT:
        yield _fsdp(1, "torchao's 8-bit AdamW works on its DTensors", "torchao/optim")
    if asked.resized:
        yield _fsdp(
            2,
            "its checkpoints load on another number of ranks (8 of 8 tried); DeepSpeed's universal form does "
            "between some stages (10 of 18 tried)",
            "measured here; deepspeedai/DeepSpeed#3810, #7546",
        )
    if used == "torchtitan":
        yield _fsdp(3, "torchtitan has nothing else", "torchtitan/models/llama3/parallelize.py")
    elif used == "megatron-deepspeed":
        yield _deepspeed(3, "Megatron-DeepSpeed has nothing else", "github.com/deepspeedai/Megatron-DeepSpeed")
    elif used in ("transformers", "accelerate", "lightning"):
        yield _deepspeed(
            1, f"{used} drives it for longer, with more published configurations", f"{used}'s documentation"
        )
        yield _fsdp(1, f"{used} drives FSDP2, too", f"{used}'s documentation")
