"""Errors of the predicted step times: rows for ``python -m benchmarks.plan_truth TRUTH.json``.

Each row of truth becomes a model, a setup, a cluster and conditions. Facts missing in a source are
assumed, and the note of the row states them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import combinations
from typing import Any

import msgspec

from benchmarks import plan_truth_megatron as megatron
from benchmarks.plan_rows import Row
from holdfast.plan.gpus import find_gpu
from holdfast.plan.hardware import Cluster, LinkRates
from holdfast.plan.models import Transformer, get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
    PipelineSchedule,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.step_time import communication
from holdfast.plan.step_time.communication import CollectiveKind, PlacedGroup
from holdfast.plan.step_time.estimate import estimate_step_time
from holdfast.plan.step_time.rates import AttentionKernel, Conditions

#: Reasons of rows that are more than 30 % off.
REASONS: dict[str, str] = {
    "T082": "DeepSpeed of 2021 gathers more slowly on more ranks; the model uses one share of the "
    "network for all sizes",
    "T103": "the source itself calculates 29 s from operations and bytes and measured 49, "
    "without a reason",
    "T126": "4 nodes: 0.01 GB/s, rounded to one digit, would be 6 ms for 32 KiB; no other "
    "published figure is as slow",
    "T216": "slower than all similar rows (4,096 tokens: 1.4 times as fast, and 1 % off); "
    "tensors fill 70 of 80 GiB",
    "T276": "390 GB for 4,096 tokens: the network would be at a seventh of its rate, unlike in "
    "all similar rows",
}

_RECOMPUTE = {
    "none": ActivationCheckpointing.NONE,
    "full": ActivationCheckpointing.FULL,
    "selective-op": ActivationCheckpointing.OPERATIONS,
    "selective-op (config default)": ActivationCheckpointing.OPERATIONS,
    "selective": ActivationCheckpointing.SECOND_LAYER,
    "selective-layer": ActivationCheckpointing.SECOND_LAYER,
}
#: Models missing in the plan's tables.
_MODELS = {
    "llama2-34b": msgspec.structs.replace(
        get_known_model("llama2-70b"), name="llama2-34b", layers=48, ffn=22016, hidden=8192
    ),
    "llama-7b": msgspec.structs.replace(get_known_model("llama2-7b"), name="llama-7b"),
    "llama-13b": msgspec.structs.replace(get_known_model("llama2-13b"), name="llama-13b"),
}
#: PURE stores and reduces gradients in bf16; DEFAULT reduces in fp32 (composer,
#: trainer/mosaic_fsdp_utils.py).
_PURE = Precision(compute=2, master=4, gradient=4, reduced=2, state=4)


def rows(truth: list[dict[str, Any]]) -> Iterator[Row]:
    """Yield the comparisons of all rows with a time or throughput."""
    tables = 0
    for each in truth:
        given, expected = each["input"], each["expected"]
        if "mosaicml" in each["source"]:
            for row in _mosaic(each["id"], given, expected):
                # The rates are fitted to every second row of these tables: 1st, 3rd, …
                yield replace(
                    row, kind=f"FSDP1, MosaicML, {'held back' if tables % 2 else 'fitted'}"
                )
                tables += 1
        elif "torchtitan" in each["source"] or "fms-fsdp" in each["source"]:
            yield from _torch(each["id"], given, expected)
        elif each["kind"] == "comm":
            yield from _collective(each["id"], given, expected)
        else:
            yield from megatron.rows(each["id"], each["source"], given, expected)


# ---- MosaicML's tables


def _mosaic(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Row]:
    if "tokens_per_s_per_gpu" in expected:
        got = estimate_step_time(*mosaic(given))
        what = f"{given['model']} {given['world']} {given['gpu']} {given['seq']}"
        yield Row(
            row,
            what,
            expected["tokens_per_s_per_gpu"],
            got.tokens_per_s_per_gpu,
            "tok/s",
            kind="FSDP1, MosaicML",
        )


def mosaic(given: Mapping[str, Any]) -> tuple[Transformer, TrainingSetup, Cluster, Conditions]:
    """Return a run of FSDP1 in composer: ALiBi has no positions; 1600 Gbit/s between A100 nodes."""
    model = msgspec.structs.replace(get_known_model(given["model"]), positions=given["seq"])
    setup = TrainingSetup(
        strategy=ShardingStrategy.FSDP1,
        data=given["world"],
        micro_batch=given["local_bs"],
        accumulation=given["grad_accum"],
        sequence=given["seq"],
        recompute=_RECOMPUTE[given["ac"]],
        reshard="SHARD_GRAD_OP" not in given["strategy"],
        precision=_PURE if given["mp_mode"] == "PURE" else Precision(),
    )
    cluster = Cluster.from_gpus(given["gpu"], given["world"])
    return (
        model,
        setup,
        cluster,
        Conditions(kernel=AttentionKernel.FLASH1, float8="fp8" in given["precision"]),
    )


# ---- torchtitan and fms-fsdp


def _torch(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Row]:
    wanted = [key for key in expected if key.startswith("tokens_per_s_per_gpu")]
    for key in wanted:
        conditions = Conditions(
            float8="float8" in given.get("mode", ""),
            balanced=False,
            tensor_overlap="async" in key or "async" in given.get("mode", ""),
        )
        got = estimate_step_time(*torch_native(given), conditions)
        what = (
            f"{given['model']} {given['world']} {given['gpu']} {given['strategy']} "
            f"{given.get('mode', '')}"
        )
        yield Row(
            row, what, expected[key], got.tokens_per_s_per_gpu, "tok/s", kind="FSDP and more, torch"
        )


def torch_native(given: Mapping[str, Any]) -> tuple[Transformer, TrainingSetup, Cluster]:
    """Return a run of FSDP2 with the row's degrees; pipelines have micro-batches of one."""
    model = _MODELS.get(given["model"]) or get_known_model(given["model"])
    tensor, context, pipeline = (given.get(key, 1) for key in ("tp", "cp", "pp"))
    batch = given["local_bs"]
    mode = given.get("mode", "")
    setup = TrainingSetup(
        data=given["world"] // (tensor * context * pipeline),
        tensor=tensor,
        context=context,
        pipeline=pipeline,
        micro_batch=1 if pipeline > 1 else batch,
        accumulation=batch if pipeline > 1 else 1,
        sequence=given["seq"],
        recompute=_RECOMPUTE[given["ac"]],
        compiled="compile" in mode,
        schedule=PipelineSchedule.ONE_F_ONE_B,
        reshard=pipeline == 1,
        fused_norms="fused" in given.get("norm", "") and "unfused" not in given["norm"],
        precision=Precision(reduced=2) if given["strategy"] == "FSDP" else Precision(),
    )
    cluster = Cluster.from_gpus(given["gpu"], given["world"])
    if "node_internode_gbps" in given:
        outside = given["node_internode_gbps"] / 8 / 8 * 1e9
        cluster = msgspec.structs.replace(
            cluster, links=msgspec.structs.replace(cluster.links, inter_node=outside)
        )
    return model, setup, cluster


# ---- collectives


def _collective(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Row]:
    name = next(each for each in ("A100", "H200", "B200", "MI300X") if each in given["node"])
    links = LinkRates.for_gpu(find_gpu(name))
    if "off" in given["collective"]:
        links = msgspec.structs.replace(links, bus=0.0)
    collective = CollectiveKind(given["collective"].split()[0])
    for key, value in expected.items():
        if key.startswith("busbw_gbps"):
            nodes = 4 if "4nodes" in key else 1 if "1node" in key else given.get("nodes", 1)
            group = PlacedGroup(given.get("ranks", 8) if "ranks" in given else 8 * nodes, 8)
            took = communication.collective_time(collective, given["bytes"], group, links)
            got = communication.bus_factor(collective, group.ranks) * given["bytes"] / took / 1e9
            what = f"{given['collective']} {given['bytes'] >> 10} KiB, {nodes} x {given['node']}"
            yield Row(row, what, value, got, "GB/s", kind="collectives")


def count_ordered_pairs(found: list[Row]) -> tuple[int, int]:
    """Return the pairs predicted in the right order, and all pairs.

    A pair has one model and source, and published figures that differ by at least 5 %.
    """
    right = pairs = 0
    for one, other in combinations(found, 2):
        alike = one.kind.split(",")[0] == other.kind.split(",")[0] and one.unit == other.unit
        apart = one.expected / other.expected
        if alike and one.what.split()[0] == other.what.split()[0] and not 1 / 1.05 < apart < 1.05:
            pairs += 1
            right += (apart > 1) == (one.got > other.got)
    return right, pairs
