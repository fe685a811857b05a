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
from click import ClickException

from benchmarks import plan_truth_megatron as megatron
from benchmarks.plan_door import ask_plan
from benchmarks.plan_rows import Row
from holdfast.core.errors import HoldfastError
from holdfast.plan.gpus import find_gpu
from holdfast.plan.hardware import Cluster, LinkRates
from holdfast.plan.models import Transformer, get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
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
#: Options of models missing in the plan's tables.
_MODELS: dict[str, tuple[object, ...]] = {
    "llama2-34b": (
        *("--layers", 48, "--hidden", 8192, "--heads", 64, "--kv-heads", 8),
        *("--ffn", 22016, "--vocab", 32000),
    ),
    "llama-7b": ("llama2-7b",),
    "llama-13b": ("llama2-13b",),
}
#: PURE stores and reduces gradients in bf16; DEFAULT reduces in fp32 (composer,
#: trainer/mosaic_fsdp_utils.py).
_PURE = Precision(compute=2, master=4, gradient=4, reduced=2, state=4)


def rows(truth: list[dict[str, Any]]) -> Iterator[Row]:
    """Yield the comparisons of all rows with a time or throughput; state what was refused."""
    tables = 0
    for each in truth:
        try:
            found = list(_case_rows(each))
        except (HoldfastError, KeyError, ValueError, ClickException) as error:
            yield Row(each["id"], f"refused: {error}", 1.0, 1.0, "", kind="time: refused")
            continue
        for row in found:
            if "mosaicml" in each["source"]:
                # The rates are fitted to every second row of these tables: 1st, 3rd, …
                yield replace(row, kind=f"{row.kind}, {'held back' if tables % 2 else 'fitted'}")
                tables += 1
            else:
                yield row


def _case_rows(case: Mapping[str, Any]) -> Iterator[Row]:
    given, expected, source = case["input"], case["expected"], case["source"]
    if "mosaicml" in source:
        yield from _mosaic(case["id"], given, expected)
    elif "torchtitan" in source or "fms-fsdp" in source:
        yield from _torch(case["id"], given, expected)
    elif case["kind"] == "comm":
        yield from _collective(case["id"], given, expected)
    else:
        yield from megatron.rows(case["id"], source, given, expected)


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
        overlap = "async" in key or "async" in given.get("mode", "")
        step = ask_plan(*torch_options(given), *(["--async-tensor"] if overlap else [])).step
        if step is None:
            continue
        what = (
            f"{given['model']} {given['world']} {given['gpu']} {given['strategy']} "
            f"{given.get('mode', '')}"
        )
        yield Row(
            row,
            what,
            expected[key],
            step.tokens_per_s_per_gpu,
            "tok/s",
            kind="FSDP and more, torch",
        )


def torch_options(given: Mapping[str, Any]) -> list[object]:
    """Return the options of a run of FSDP2; pipelines have micro-batches of one."""
    tensor, context, pipeline = (given.get(key, 1) for key in ("tp", "cp", "pp"))
    batch, mode, norm = given["local_bs"], given.get("mode", ""), given.get("norm", "")
    network = f" @ {given['node_internode_gbps']} Gbit/s" if "node_internode_gbps" in given else ""
    flags = {
        "--compiled": "compile" in mode,
        "--no-reshard": pipeline > 1,
        "--unfused-norms": "fused" not in norm or "unfused" in norm,
    }
    return [
        *_MODELS.get(given["model"], (given["model"],)),
        *("--on", f"{given['world']} x {given['gpu']}{network}"),
        *("--tensor", tensor, "--context", context, "--pipeline", pipeline),
        *("--micro-batch", 1 if pipeline > 1 else batch),
        *("--accumulation", batch if pipeline > 1 else 1),
        *("--sequence", given["seq"], "--strategy", "fsdp2"),
        *("--recompute", _RECOMPUTE[given["ac"]]),
        *("--precision", "fp8" if "float8" in mode else "bf16"),
        *("--reduce", "16-bit" if given["strategy"] == "FSDP" else "fp32"),
        *(flag for flag, is_set in flags.items() if is_set),
    ]


# ---- collectives


def _collective(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> Iterator[Row]:
    known = ("A100", "H200", "B200", "MI300X")
    name = next((each for each in known if each in given["node"]), given["node"])
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
