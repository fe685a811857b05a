"""Published times of Megatron, DeepSpeed and of large single runs as models, setups and clusters of the plan.

What a source leaves unsaid stands in the note of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from benchmarks.plan_rows import Row
from holdfast.plan.hardware import Cluster
from holdfast.plan.models import Transformer, known
from holdfast.plan.rates import Conditions, Kernel
from holdfast.plan.setup import Precision, Recompute, Schedule, Setup, Strategy
from holdfast.plan.time import step

_Rows = Iterator[Row]
#: Megatron-LM reduces gradients in fp32 after the last micro-batch; its optimizer's states are not divided.
_MEGATRON = Setup(strategy=Strategy.DDP, flash=False, schedule=Schedule.INTERLEAVED)
#: DeepSpeed as it was then: it gathered weights when they were needed, tensor by tensor.
_DEEPSPEED_2021 = Conditions(prefetch=False, outside_share=0.17)
_80B = msgspec.structs.replace(known("llama2-13b"), name="idefics-80b", layers=97, hidden=8192, heads=64, kv_heads=64,
                               ffn=22016)  # fmt: skip
_2B = msgspec.structs.replace(known("llama2-13b"), name="llama-2b", layers=24, hidden=2560, heads=20, kv_heads=20,
                              ffn=6912)  # fmt: skip


def _replaced(setup: Setup, **more: Any) -> Setup:
    return msgspec.structs.replace(setup, **more)


def _model(params_b: float) -> Transformer:
    return known("gpt3-175b" if params_b < 200 else "gpt-530b")


def operations(model: Transformer, sequences: float, sequence: int) -> float:
    """Of a step with full recomputing, by D. Narayanan et al. (2021), §5.1: 96Bslh²(1 + s/6h + V/16lh)."""
    shape = 1 + sequence / (6 * model.hidden) + model.vocab / (16 * model.layers * model.hidden)
    return 96 * sequences * sequence * model.layers * model.hidden**2 * shape


def _korthikanti(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Table 5: with full recomputing, and with sequence parallelism and selective recomputing."""
    model = known(given["model"].casefold())
    data = given["gpus"] // given["tp"] // given["pp"]
    setup = _replaced(
        _MEGATRON, data=data, tensor=given["tp"], pipeline=given["pp"], chunks=given.get("interleave", 1),
        micro_batch=given["mb"], accumulation=given["gbs"] // data // given["mb"], sequence=given["seq"],
    )  # fmt: skip
    for key, parallel, recompute in (
        ("iter_s_full_recompute", False, Recompute.FULL), ("iter_s_seq_selective", True, Recompute.SELECTIVE),
    ):  # fmt: skip
        got = step(model, _replaced(setup, sequence_parallel=parallel, recompute=recompute),
                   Cluster.of(given["gpu"], given["gpus"]))  # fmt: skip
        yield Row(row, f"{model.name} {key}", expected[key], got.seconds, "s", kind="Megatron")


def _utilization(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """The abstract's: 2,240 GPUs, the degrees and the batch of table 5 for each of 8 replicas."""
    model = known("gpt-530b")
    setup = _replaced(_MEGATRON, data=8, tensor=8, pipeline=35, chunks=3, accumulation=280)
    for key, parallel, recompute in (
        ("mfu_pct_full_recompute", False, Recompute.FULL), ("mfu_pct_selective", True, Recompute.SELECTIVE),
    ):  # fmt: skip
        got = step(model, _replaced(setup, sequence_parallel=parallel, recompute=recompute),
                   Cluster.of(given["gpu"], given["gpus"]))  # fmt: skip
        needed = operations(model, 2240, 2048) * 0.75 / got.seconds / given["gpus"] / 312e12
        yield Row(row, f"{model.name} {key}", expected[key], 100 * needed, "%", "degrees as in table 5", "Megatron")


def _narayanan(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Table 2: pipeline and tensor parallelism beside ZeRO-3."""
    model, gpus, micro = _model(given["params_b"]), given["gpus"], given["micro_batch"]
    common = {"micro_batch": micro, "sequence": given["seq"], "recompute": Recompute.FULL}
    if given["strategy"] == "PTD":
        data = gpus // given["model_parallel"]
        setup = _replaced(
            _MEGATRON, data=data, tensor=8, pipeline=given["model_parallel"] // 8, sequence_parallel=False,
            chunks=2 if model.name == "gpt3-175b" else 3, accumulation=given["global_batch"] // data // micro, **common,
        )  # fmt: skip
        got = step(model, setup, Cluster.of("A100-80G", gpus))
    else:
        setup = _replaced(_MEGATRON, strategy=Strategy.ZERO3, data=gpus, precision=Precision(reduced=2),
                          accumulation=given["global_batch"] // gpus // micro, **common)  # fmt: skip
        got = step(model, setup, Cluster.of("A100-80G", gpus), _DEEPSPEED_2021)
    tflops = operations(model, given["global_batch"], given["seq"]) / got.seconds / gpus / 1e12
    kind = "Megatron" if given["strategy"] == "PTD" else "DeepSpeed"
    yield Row(row, f"{model.name} {given['strategy']} {gpus}", expected["tflops_per_gpu"], tflops, "TFLOP/s", kind=kind)


def _mt_nlg(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    data = given["gpus"] // given["tp"] // given["pp"]
    setup = _replaced(
        _MEGATRON, data=data, tensor=8, pipeline=35, schedule=Schedule.ONE_F_ONE_B, sequence_parallel=False,
        accumulation=given["global_batch"] // data, recompute=Recompute.FULL,
    )  # fmt: skip
    got = step(known("gpt-530b"), setup, Cluster.of("A100-80G", given["gpus"]))
    yield Row(row, given["model"], expected["iter_s"], got.seconds, "s", "micro-batches of 1", "Megatron")


def _llama3(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Table 4. FSDP does not gather again for backward; nothing is computed again (§3.3.2)."""
    model, degrees = known("llama3.1-405b"), given["tp"] * given["cp"] * given["pp"]
    data = given["gpus"] // degrees
    setup = Setup(
        data=data, tensor=given["tp"], context=given["cp"], pipeline=given["pp"], sequence=given["seq"], reshard=False,
        schedule=Schedule.INTERLEAVED, chunks=8,
        accumulation=given["tokens_per_batch_m"] * 2**20 // given["seq"] // data,
    )  # fmt: skip
    got = step(model, setup, Cluster.of("H100-80G", given["gpus"]), Conditions(kernel=Kernel.FLASH3))
    tflops = model.flops_a_token(8192) * got.tokens_per_s_per_gpu / 1e12
    if given["seq"] > 8192:
        tflops = model.flops_a_token(given["seq"], causal=True) * got.tokens_per_s_per_gpu / 1e12
    what = f"{model.name} {given['gpus']} cp {given['cp']}"
    yield Row(row, what, expected["tflops_per_gpu"], tflops, "TFLOP/s", "8 chunks a stage, one layer each", "Llama 3")


def _llama(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Table 15. Of 7 and 13 B the paper tells neither GPUs nor batch."""
    model = known("llama2-7b" if given["model"] == "LLaMA-7B" else "llama2-13b")
    setup = Setup(data=256, micro_batch=4, accumulation=2, sequence=2048, recompute=Recompute.OPERATIONS)
    got = step(model, setup, Cluster.of("A100-80G", 256))
    hours = given["tokens_t"] * 1e12 / got.tokens_per_s_per_gpu / 3600
    yield Row(row, given["model"], expected["gpu_hours"], hours, "h", "256 GPUs, batches of 4 M tokens", "LLaMA")


def _idefics(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    cluster = Cluster.of("A100-80G", given["gpus"])
    outside = given["internode_gbps"] / 8 / 8 * 1e9
    cluster = msgspec.structs.replace(cluster, links=msgspec.structs.replace(cluster.links, outside=outside))
    setup = Setup(strategy=Strategy.ZERO3, data=512, micro_batch=7, sequence=1024, recompute=Recompute.FULL,
                  precision=Precision(reduced=2))  # fmt: skip
    got = step(_80B, setup, cluster, Conditions(prefetch=False))
    yield Row(row, given["model"], expected["iter_s"], got.seconds, "s", "one micro-batch; LLaMA's layers", "DeepSpeed")


def _oumi(row: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """GCP's a2-highgpu-8g: 100 Gbit/s a node. Which of two is faster, and how much."""
    cluster = Cluster.of("A100-40G", given["gpus"])
    cluster = msgspec.structs.replace(cluster, links=msgspec.structs.replace(cluster.links, outside=12.5e9 / 8))
    full = Setup(data=32, micro_batch=4, sequence=2048)
    hybrid = _replaced(full, replicas=4)
    ratio = step(_2B, hybrid, cluster).tokens_per_s / step(_2B, full, cluster).tokens_per_s
    published = expected["hybrid_shard_samples_per_s"] / expected["full_shard_samples_per_s"]
    yield Row(row, "HSDP by FSDP, 4 nodes", published, ratio, "times", "4 sequences of 2048 a GPU", "HSDP")


def rows(row: str, source: str, given: Mapping[str, Any], expected: Mapping[str, Any]) -> _Rows:
    """Those of one row of truth, by its source; none where it says no time."""
    for mark, case in _SOURCES:
        if mark in source:
            yield from case(row, given, expected)
            return


_SOURCES: tuple[tuple[str, Callable[[str, Mapping[str, Any], Mapping[str, Any]], _Rows]], ...] = (
    ("2205.05198 abstract", _utilization), ("Table 5", _korthikanti), ("2104.04473", _narayanan),
    ("2201.11990", _mt_nlg), ("2407.21783", _llama3), ("2302.13971", _llama), ("model-parallelism", _idefics),
    ("oumi", _oumi),
)  # fmt: skip
