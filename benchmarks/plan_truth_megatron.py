"""Published times of Megatron, DeepSpeed and large single runs, compared with the plan.

Facts missing in a source are assumed, and the note of the row states them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from benchmarks.plan_rows import Row
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer, get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
    PipelineSchedule,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)
from holdfast.plan.step_time.estimate import estimate_step_time
from holdfast.plan.step_time.rates import AttentionKernel, Conditions

_Rows = Iterator[Row]
#: Megatron-LM reduces gradients in fp32 after the last micro-batch; its optimizer states are not
#: sharded.
_MEGATRON = TrainingSetup(
    strategy=ShardingStrategy.DDP, flash=False, schedule=PipelineSchedule.INTERLEAVED
)
#: DeepSpeed of that time gathered weights on demand, tensor by tensor.
_DEEPSPEED_2021 = Conditions(prefetch=False, outside_share=0.17)
_80B = msgspec.structs.replace(
    get_known_model("llama2-13b"),
    name="idefics-80b",
    layers=97,
    hidden=8192,
    heads=64,
    kv_heads=64,
    ffn=22016,
)
_2B = msgspec.structs.replace(
    get_known_model("llama2-13b"),
    name="llama-2b",
    layers=24,
    hidden=2560,
    heads=20,
    kv_heads=20,
    ffn=6912,
)


def _replaced(setup: TrainingSetup, **more: Any) -> TrainingSetup:
    return msgspec.structs.replace(setup, **more)


def _model(params_b: float) -> Transformer:
    return get_known_model("gpt3-175b" if params_b < 200 else "gpt-530b")


def operations(model: Transformer, sequences: float, sequence: int) -> float:
    """Return the FLOPs of a fully recomputed step: 96Bslh²(1 + s/6h + V/16lh).

    Source: D. Narayanan et al. (2021), §5.1.
    """
    shape = 1 + sequence / (6 * model.hidden) + model.vocab / (16 * model.layers * model.hidden)
    return 96 * sequences * sequence * model.layers * model.hidden**2 * shape


def _korthikanti(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Compare table 5: full, and sequence-parallel with selective recomputation."""
    model = get_known_model(given["model"].casefold())
    data = given["gpus"] // given["tp"] // given["pp"]
    setup = _replaced(
        _MEGATRON,
        data=data,
        tensor=given["tp"],
        pipeline=given["pp"],
        chunks=given.get("interleave", 1),
        micro_batch=given["mb"],
        accumulation=given["gbs"] // data // given["mb"],
        sequence=given["seq"],
    )
    for key, parallel, recompute in (
        ("iter_s_full_recompute", False, ActivationCheckpointing.FULL),
        ("iter_s_seq_selective", True, ActivationCheckpointing.SELECTIVE),
    ):
        got = estimate_step_time(
            model,
            _replaced(setup, sequence_parallel=parallel, recompute=recompute),
            Cluster.from_gpus(given["gpu"], given["gpus"]),
        )
        yield Row(row, f"{model.name} {key}", expected[key], got.seconds, "s", kind="Megatron")


def _utilization(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Compare the abstract: 2,240 GPUs; degrees and batch of table 5 in each of 8 replicas."""
    model = get_known_model("gpt-530b")
    setup = _replaced(_MEGATRON, data=8, tensor=8, pipeline=35, chunks=3, accumulation=280)
    for key, parallel, recompute in (
        ("mfu_pct_full_recompute", False, ActivationCheckpointing.FULL),
        ("mfu_pct_selective", True, ActivationCheckpointing.SELECTIVE),
    ):
        got = estimate_step_time(
            model,
            _replaced(setup, sequence_parallel=parallel, recompute=recompute),
            Cluster.from_gpus(given["gpu"], given["gpus"]),
        )
        needed = operations(model, 2240, 2048) * 0.75 / got.seconds / given["gpus"] / 312e12
        yield Row(
            row,
            f"{model.name} {key}",
            expected[key],
            100 * needed,
            "%",
            "degrees as in table 5",
            "Megatron",
        )


def _narayanan(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Compare table 2: pipeline and tensor parallelism, and ZeRO-3."""
    model, gpus, micro = _model(given["params_b"]), given["gpus"], given["micro_batch"]
    common = {
        "micro_batch": micro,
        "sequence": given["seq"],
        "recompute": ActivationCheckpointing.FULL,
    }
    if given["strategy"] == "PTD":
        data = gpus // given["model_parallel"]
        setup = _replaced(
            _MEGATRON,
            data=data,
            tensor=8,
            pipeline=given["model_parallel"] // 8,
            sequence_parallel=False,
            chunks=2 if model.name == "gpt3-175b" else 3,
            accumulation=given["global_batch"] // data // micro,
            **common,
        )
        got = estimate_step_time(model, setup, Cluster.from_gpus("A100-80G", gpus))
    else:
        setup = _replaced(
            _MEGATRON,
            strategy=ShardingStrategy.ZERO3,
            data=gpus,
            precision=Precision(reduced=2),
            accumulation=given["global_batch"] // gpus // micro,
            **common,
        )
        got = estimate_step_time(model, setup, Cluster.from_gpus("A100-80G", gpus), _DEEPSPEED_2021)
    tflops = operations(model, given["global_batch"], given["seq"]) / got.seconds / gpus / 1e12
    kind = "Megatron" if given["strategy"] == "PTD" else "DeepSpeed"
    yield Row(
        row,
        f"{model.name} {given['strategy']} {gpus}",
        expected["tflops_per_gpu"],
        tflops,
        "TFLOP/s",
        kind=kind,
    )


def _mt_nlg(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    data = given["gpus"] // given["tp"] // given["pp"]
    setup = _replaced(
        _MEGATRON,
        data=data,
        tensor=8,
        pipeline=35,
        schedule=PipelineSchedule.ONE_F_ONE_B,
        sequence_parallel=False,
        accumulation=given["global_batch"] // data,
        recompute=ActivationCheckpointing.FULL,
    )
    got = estimate_step_time(
        get_known_model("gpt-530b"), setup, Cluster.from_gpus("A100-80G", given["gpus"])
    )
    yield Row(
        row, given["model"], expected["iter_s"], got.seconds, "s", "micro-batches of 1", "Megatron"
    )


def _llama3(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Compare table 4: weights stay gathered for backward, no recomputation (§3.3.2)."""
    model, degrees = get_known_model("llama3.1-405b"), given["tp"] * given["cp"] * given["pp"]
    data = given["gpus"] // degrees
    setup = TrainingSetup(
        data=data,
        tensor=given["tp"],
        context=given["cp"],
        pipeline=given["pp"],
        sequence=given["seq"],
        reshard=False,
        schedule=PipelineSchedule.INTERLEAVED,
        chunks=8,
        accumulation=given["tokens_per_batch_m"] * 2**20 // given["seq"] // data,
    )
    got = estimate_step_time(
        model,
        setup,
        Cluster.from_gpus("H100-80G", given["gpus"]),
        Conditions(kernel=AttentionKernel.FLASH3),
    )
    tflops = model.flops_per_token(8192) * got.tokens_per_s_per_gpu / 1e12
    if given["seq"] > 8192:
        tflops = model.flops_per_token(given["seq"], causal=True) * got.tokens_per_s_per_gpu / 1e12
    what = f"{model.name} {given['gpus']} cp {given['cp']}"
    yield Row(
        row,
        what,
        expected["tflops_per_gpu"],
        tflops,
        "TFLOP/s",
        "8 chunks per stage, one layer each",
        "Llama 3",
    )


def _llama(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Compare table 15; for 7 and 13 B the paper states neither GPUs nor batch."""
    model = get_known_model("llama2-7b" if given["model"] == "LLaMA-7B" else "llama2-13b")
    setup = TrainingSetup(
        data=256,
        micro_batch=4,
        accumulation=2,
        sequence=2048,
        recompute=ActivationCheckpointing.OPERATIONS,
    )
    got = estimate_step_time(model, setup, Cluster.from_gpus("A100-80G", 256))
    hours = given["tokens_t"] * 1e12 / got.tokens_per_s_per_gpu / 3600
    yield Row(
        row,
        given["model"],
        expected["gpu_hours"],
        hours,
        "h",
        "256 GPUs, batches of 4 M tokens",
        "LLaMA",
    )


def _idefics(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    cluster = Cluster.from_gpus("A100-80G", given["gpus"])
    outside = given["internode_gbps"] / 8 / 8 * 1e9
    cluster = msgspec.structs.replace(
        cluster, links=msgspec.structs.replace(cluster.links, inter_node=outside)
    )
    setup = TrainingSetup(
        strategy=ShardingStrategy.ZERO3,
        data=512,
        micro_batch=7,
        sequence=1024,
        recompute=ActivationCheckpointing.FULL,
        precision=Precision(reduced=2),
    )
    got = estimate_step_time(_80B, setup, cluster, Conditions(prefetch=False))
    yield Row(
        row,
        given["model"],
        expected["iter_s"],
        got.seconds,
        "s",
        "one micro-batch; LLaMA's layers",
        "DeepSpeed",
    )


def _oumi(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Compare the ratio of HSDP and FSDP on GCP's a2-highgpu-8g: 100 Gbit/s per node."""
    cluster = Cluster.from_gpus("A100-40G", given["gpus"])
    cluster = msgspec.structs.replace(
        cluster, links=msgspec.structs.replace(cluster.links, inter_node=12.5e9 / 8)
    )
    full = TrainingSetup(data=32, micro_batch=4, sequence=2048)
    hybrid = _replaced(full, replicas=4)
    ratio = (
        estimate_step_time(_2B, hybrid, cluster).tokens_per_s
        / estimate_step_time(_2B, full, cluster).tokens_per_s
    )
    published = expected["hybrid_shard_samples_per_s"] / expected["full_shard_samples_per_s"]
    yield Row(
        row,
        "HSDP by FSDP, 4 nodes",
        published,
        ratio,
        "times",
        "4 sequences of 2048 per GPU",
        "HSDP",
    )


def rows(row: str, source: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Yield the comparisons of one row of truth, by its source; none without a time."""
    for mark, case in _SOURCES:
        if mark in source:
            yield from case(row, given, expected)
            return


_SOURCES: tuple[tuple[str, Callable[[str, Mapping[str, Any], Mapping[str, Any]], _Rows]], ...] = (
    ("2205.05198 abstract", _utilization),
    ("Table 5", _korthikanti),
    ("2104.04473", _narayanan),
    ("2201.11990", _mt_nlg),
    ("2407.21783", _llama3),
    ("2302.13971", _llama),
    ("model-parallelism", _idefics),
    ("oumi", _oumi),
)
