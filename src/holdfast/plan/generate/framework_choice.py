"""Choose between FSDP and DeepSpeed by hardware, model and libraries in use.

Neither is better in general: each reason supports one of them, has a weight and cites its source;
the recommendation is their sum. ``measured here``: in two processes on CPU, torch 2.13 and
DeepSpeed 0.19.8.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec

from holdfast.plan.gpus import GpuDtype
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer
from holdfast.plan.setup import OffloadTarget, OptimizerKind, ShardingStrategy, TrainingSetup

#: Sharding over all ranks is slow if a node's links are this many times faster than the network.
_SLOW_NETWORK_FACTOR = 8
#: Bytes of states per parameter with Adam in mixed precision: ZeRO, section 3.1.
_STATE_BYTES_PER_PARAM = 16
_GIB = 1 << 30
#: Share of a GPU's memory for states; activations need the rest.
_MAX_STATE_SHARE = 0.6
#: Bytes of fp32.
_FP32_BYTES = 4


class Framework(StrEnum):
    """The frameworks to choose from."""

    FSDP2 = "fsdp2"
    DEEPSPEED = "deepspeed"


class FrameworkNeeds(msgspec.Struct, frozen=True, kw_only=True):
    """Facts outside of setup and cluster. ``allows_nvme``: states may be stored on local disks.

    ``used_library``: transformers, accelerate, lightning, torchtitan, megatron-deepspeed, or empty.
    ``changes_gpu_count``: the job will continue with another number of GPUs. ``host_bytes``: memory
    of each host, 0 if unknown.
    """

    allows_nvme: bool = False
    used_library: str = ""
    changes_gpu_count: bool = False
    host_bytes: int = 0


class FrameworkReason(msgspec.Struct, frozen=True):
    """A reason for one framework.

    ``weight`` 3: the other framework lacks the feature; 1: a matter of taste.
    """

    framework: Framework
    weight: int
    sentence: str
    source: str


class FrameworkChoice(msgspec.Struct, frozen=True):
    """The framework with more weight; ``is_close``: by a small margin.

    ``reasons``: heaviest first.
    """

    recommended: Framework
    is_close: bool
    reasons: tuple[FrameworkReason, ...]


def choose_framework(
    model: Transformer, setup: TrainingSetup, cluster: Cluster, needs: FrameworkNeeds | None = None
) -> FrameworkChoice:
    """Return the recommended framework and the reasons."""
    needs = needs or FrameworkNeeds()
    reasons = [
        *_general_reasons(),
        *_offload_reasons(model, setup, cluster, needs),
        *_precision_reasons(setup, cluster),
        *_link_reasons(model, setup, cluster),
        *_parallelism_reasons(setup),
        *_ecosystem_reasons(setup, needs),
    ]
    weights = {
        framework: sum(reason.weight for reason in reasons if reason.framework is framework)
        for framework in Framework
    }
    difference = weights[Framework.FSDP2] - weights[Framework.DEEPSPEED]
    best = Framework.DEEPSPEED if difference < 0 else Framework.FSDP2
    return FrameworkChoice(
        best, abs(difference) <= 1, tuple(sorted(reasons, key=lambda reason: -reason.weight))
    )


def _fsdp(weight: int, sentence: str, source: str) -> FrameworkReason:
    return FrameworkReason(Framework.FSDP2, weight, sentence, source)


def _deepspeed(weight: int, sentence: str, source: str) -> FrameworkReason:
    return FrameworkReason(Framework.DEEPSPEED, weight, sentence, source)


def _general_reasons() -> Iterator[FrameworkReason]:
    yield _fsdp(
        1,
        "part of torch: no other package to install or compile, and shards are DTensors, which all "
        "of torch supports",
        "torch/distributed/fsdp/_fully_shard",
    )
    yield _deepspeed(
        1,
        "includes loop, accumulation, clipping, loss scaling and schedule, configured in one JSON; "
        "with FSDP2 they are user code",
        "deepspeed/runtime/config.py",
    )


def _offload_reasons(
    model: Transformer, setup: TrainingSetup, cluster: Cluster, needs: FrameworkNeeds
) -> Iterator[FrameworkReason]:
    states = model.params * _STATE_BYTES_PER_PARAM
    host = needs.host_bytes * cluster.nodes
    if needs.allows_nvme or (setup.offload is not OffloadTarget.NONE and host and states > host):
        yield _deepspeed(
            3,
            "can offload states that fit neither GPUs nor hosts to NVMe; FSDP2 cannot",
            "S. Rajbhandari et al., ZeRO-Infinity (2021); torch's CPUOffloadPolicy supports "
            "only host memory",
        )
    if setup.offload is OffloadTarget.OPTIMIZER:
        yield _deepspeed(
            2,
            "can offload only the optimizer, or a share of it, with an Adam optimized for CPUs (5 "
            "to 7 times faster than torch's, by its authors); FSDP2 also offloads weights and uses "
            "torch's optimizer",
            "deepspeed/ops/adam/cpu_adam.py; torch/distributed/fsdp/_fully_shard/_fsdp_api.py, "
            "CPUOffloadPolicy",
        )
    elif setup.offload is OffloadTarget.PARAMETERS:
        yield _deepspeed(
            1,
            "prefetches offloaded weights in tunable buckets",
            "deepspeed/runtime/zero/offload_config.py",
        )


def _precision_reasons(setup: TrainingSetup, cluster: Cluster) -> Iterator[FrameworkReason]:
    if cluster.gpu.half_dtype is GpuDtype.FP16 and setup.precision.compute < _FP32_BYTES:
        yield _deepspeed(
            2,
            f"{cluster.gpu.name} has no hardware support for bf16, and fp16 needs loss scaling: "
            "DeepSpeed includes it, "
            "with hysteresis and a minimum; with FSDP2, add torch.amp.GradScaler to the loop",
            "deepspeed/runtime/precision_config.py; compute capability below 8.0",
        )
    if setup.precision.compute < setup.precision.master:
        yield _deepspeed(
            1,
            "creates an fp32 copy of 16-bit weights automatically; under FSDP2 a model loaded "
            "in bf16 has none (2.8 % of the "
            "weights changed in one Adam step at 1e-5, against 92 to 96 %)",
            "measured here; huggingface/accelerate#2624",
        )
        yield _fsdp(
            1,
            "stores only fp32 weights and casts them as they are gathered; gradients can be "
            "reduced in fp32 by one setting",
            "torch/distributed/fsdp/_fully_shard/_fsdp_api.py, MixedPrecisionPolicy",
        )
    if not setup.precision.master and setup.precision.compute < 4:
        yield _fsdp(
            1, "training without an fp32 copy needs no setting: load weights in bf16", "as above"
        )


def _link_reasons(
    model: Transformer, setup: TrainingSetup, cluster: Cluster
) -> Iterator[FrameworkReason]:
    if (
        cluster.nodes < 2
        or cluster.links.intra_node < _SLOW_NETWORK_FACTOR * cluster.links.inter_node
    ):
        return
    ratio = f"{cluster.links.intra_node / cluster.links.inter_node:.0f}"
    state_bytes = (
        model.params * _STATE_BYTES_PER_PARAM / (setup.tensor * setup.pipeline * cluster.per_node)
    )
    if state_bytes < _MAX_STATE_SHARE * cluster.gpu.memory_gib * _GIB:
        yield _fsdp(
            2,
            f"a node's links are {ratio} times faster than its network, and one node can hold all "
            f"states ({state_bytes / _GIB:.0f} GiB per GPU): HSDP gathers weights within nodes and "
            "sends only gradients between them; DeepSpeed 0.19 removed MiCS, its counterpart",
            "torch's mesh of (replicate, shard); deepspeed/runtime/config.py, "
            "_REMOVED_ZERO_CONFIG_KEYS",
        )
    else:
        yield _deepspeed(
            2,
            f"a node's links are {ratio} times faster than its network, and one node cannot hold "
            "all states: ZeRO++ gathers from a second copy within the node (hpZ) and sends "
            "quantized weights and gradients; FSDP2 has only the first of the three "
            "(reshard_after_forward=<GPUs of a node>)",
            "G. Wang et al., ZeRO++ (2023)",
        )


def _parallelism_reasons(setup: TrainingSetup) -> Iterator[FrameworkReason]:
    kinds = [
        name for name in ("tensor", "pipeline", "context", "expert") if getattr(setup, name) > 1
    ]
    if kinds:
        yield _fsdp(
            2,
            f"{' and '.join(kinds)} parallelism are axes of one mesh, and checkpoints include them",
            "torchtitan (W. Liang et al., 2024); torch.distributed.device_mesh",
        )
    if setup.pipeline > 1:
        yield _deepspeed(
            1,
            "its PipelineModule splits a list of layers automatically; torch needs explicit stages",
            "deepspeed/runtime/pipe",
        )
    if setup.strategy in (ShardingStrategy.ZERO1, ShardingStrategy.ZERO2):
        yield _deepspeed(
            1,
            "ZeRO-1 and 2 keep unsharded 16-bit weights between steps; FSDP2's closest setting "
            "(reshard_after_forward=False) gathers them in each forward",
            "S. Rajbhandari et al., ZeRO (2019), section 5; torch's fully_shard",
        )


def _ecosystem_reasons(setup: TrainingSetup, needs: FrameworkNeeds) -> Iterator[FrameworkReason]:
    library = needs.used_library.casefold()
    if setup.compiled:
        yield _fsdp(
            2,
            "supports torch.compile per layer, as torchtitan uses in production; ZeRO-3's hooks "
            "are excluded from compiled graphs, which break there, unless DeepCompile is on",
            "torchtitan/models/llama3/parallelize.py; deepspeed/runtime/zero/parameter_offload.py",
        )
    if setup.optimizer is OptimizerKind.MUON:
        yield _deepspeed(
            1,
            "supports Muon on sharded weights; torch.optim.Muon needs unsharded matrices",
            "deepspeed/runtime/engine.py",
        )
    if setup.optimizer is OptimizerKind.ADAMW_8BIT:
        yield _fsdp(1, "torchao's 8-bit AdamW supports its DTensors", "torchao/optim")
    if needs.changes_gpu_count:
        yield _fsdp(
            2,
            "its checkpoints load on another number of ranks (8 of 8 tests); DeepSpeed's universal "
            "format does between some stages (10 of 18 tests)",
            "measured here; deepspeedai/DeepSpeed#3810, #7546",
        )
    if library == "torchtitan":
        yield _fsdp(3, "torchtitan supports only FSDP2", "torchtitan/models/llama3/parallelize.py")
    elif library == "megatron-deepspeed":
        yield _deepspeed(
            3,
            "Megatron-DeepSpeed supports only DeepSpeed",
            "github.com/deepspeedai/Megatron-DeepSpeed",
        )
    elif library in ("transformers", "accelerate", "lightning"):
        yield _deepspeed(
            1,
            f"{library} has supported it for longer, with more published configurations",
            f"{library}'s documentation",
        )
        yield _fsdp(1, f"{library} also supports FSDP2", f"{library}'s documentation")
