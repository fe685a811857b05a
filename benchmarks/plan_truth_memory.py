"""Errors of the predicted memory: rows for ``python -m benchmarks.plan_truth TRUTH.json``.

Facts missing in a source are assumed, and the note of the row states them. Only the allocator's
factor was fitted, to the rows of ``holdfast.plan.memory.reserve.FITTED_ON``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from benchmarks.plan_rows import Row
from holdfast.core.errors import HoldfastError
from holdfast.plan.gpus import find_gpu
from holdfast.plan.memory.activations import layer_activations, micro_batches_in_flight
from holdfast.plan.memory.estimate import MemoryFit, estimate_memory
from holdfast.plan.memory.reserve import FITTED_ON
from holdfast.plan.memory.states import (
    ParameterCounts,
    count_parameters,
    model_states,
    stage_parameters,
)
from holdfast.plan.models import Transformer, get_known_model
from holdfast.plan.setup import (
    ActivationCheckpointing,
    LossKernel,
    OffloadTarget,
    OptimizerKind,
    PipelineSchedule,
    Precision,
    ShardingStrategy,
    TrainingSetup,
)

GIB = 1 << 30
MIB = 1 << 20
#: Reasons of rows that are more than 30 % off.
REASONS: dict[str, str] = {}

_RECOMPUTE = {
    "none": ActivationCheckpointing.NONE,
    "full": ActivationCheckpointing.FULL,
    "selective-op": ActivationCheckpointing.OPERATIONS,
    "op": ActivationCheckpointing.OPERATIONS,
    "selective-layer": ActivationCheckpointing.SECOND_LAYER,
    "layer2": ActivationCheckpointing.SECOND_LAYER,
    "selective": ActivationCheckpointing.SECOND_LAYER,
}
_SIMULATED = {
    "8b": "llama3.1-8b",
    "13b_l2": "llama2-13b",
    "70b_l2": "llama2-70b",
    "70b": "llama3.1-70b",
}
_FP32_ADAM = Precision(compute=2, master=4, gradient=2, reduced=2, state=4)
Input = Mapping[str, Any]
Case = Mapping[str, Any]


def rows(truth: list[Case]) -> Iterator[Row]:
    """Yield each figure of memory and each statement whether a run fits; skip other rows."""
    for case in truth:
        try:
            yield from _case_rows(case)
        except (HoldfastError, KeyError, ValueError) as error:
            yield Row(
                case["id"], f"not supported: {error!r}", 1.0, 1.0, "", kind="memory: not supported"
            )


def _case_rows(case: Case) -> Iterator[Row]:
    kind, expected = case["kind"], case["expected"]
    if "peak_reserved_gib" in expected:
        yield from _published(case)
    elif kind == "memory (simulated)":
        yield from _simulated(case)
    elif kind in ("memory", "memory-ratio"):
        yield from _formulas(case)
    if expected.get("fits") is not None:
        yield from _fit_row(case)


# ---- runs


def model(given: Input) -> Transformer:
    """Return the model by name, or a GPT by its sizes; an MPT has one position per token."""
    name = str(given["model"])
    try:
        found = get_known_model(_SIMULATED.get(name, name))
    except HoldfastError:
        hidden, heads = given["hidden"], given["heads"]
        found = msgspec.structs.replace(
            get_known_model("gpt3-175b"),
            name=name,
            layers=given["layers"],
            hidden=hidden,
            heads=heads,
            kv_heads=heads,
            head_width=hidden // heads,
            ffn=4 * hidden,
            vocab=51200,
            positions=given.get("seq", 2048),
        )
    return (
        msgspec.structs.replace(found, positions=given["seq"]) if name.startswith("mpt") else found
    )


def setup(case: Case) -> TrainingSetup:
    """Return the setup of a run of torchtitan or llm-foundry.

    In a pipeline, torchtitan uses one micro-batch per stage and keeps parameters gathered. It
    compiles its loss since 2025; norms are unfused unless the row states otherwise.
    """
    given = case["input"]
    degrees = {kind.lower(): int(count) for count, kind in _degrees(str(given["strategy"]))}
    stages = degrees.get("pp", 1)
    mosaic = "mosaicml" in case["source"]
    compiled = "compile" in given.get("mode", "")
    eager = (
        LossKernel.COMPILED
        if compiled and re.search(r"_2025|_2026|2025-|2026-", case["source"])
        else LossKernel.EAGER
    )
    parts = degrees.get("tp", 1) * stages * degrees.get("cp", 1)
    return TrainingSetup(
        strategy=ShardingStrategy.FSDP1 if mosaic else ShardingStrategy.FSDP2,
        data=given["world"] // parts,
        tensor=degrees.get("tp", 1),
        pipeline=stages,
        context=degrees.get("cp", 1),
        micro_batch=max(1, given["local_bs"] // stages),
        accumulation=stages if stages > 1 else given.get("grad_accum", 1),
        sequence=given["seq"],
        recompute=_RECOMPUTE[given["ac"].split()[0]],
        compiled=compiled,
        precision=Precision(reduced=2) if mosaic else Precision(),
        reshard=stages == 1 and "SHARD_GRAD_OP" not in given["strategy"],
        schedule=PipelineSchedule.INTERLEAVED
        if "nterleaved" in given.get("mode", "")
        else PipelineSchedule.ONE_F_ONE_B,
        chunks=2 if "nterleaved" in given.get("mode", "") else 1,
        loss=LossKernel.FUSED if mosaic else eager,
        fused_norms="fused_rmsnorm" in given.get("norm", ""),
    )


def _degrees(strategy: str) -> list[tuple[str, str]]:
    """Parse ``FSDP2 4 x CP 2 x TP 8`` into pairs; "FSDP2 1D" has none."""
    return [(count, kind) for kind, count in re.findall(r"\b(CP|TP|PP) (\d+)", strategy)]


def _memory(given: Input) -> int:
    name = str(given.get("gpu", "")).replace("_", " ")
    return int(GIB * (given.get("gpu_mem_gib") or find_gpu(name).memory_gib))


def _published(case: Case) -> Iterator[Row]:
    expected = case["expected"]
    given, run = case["input"], setup(case)
    worst = estimate_memory(model(given), run).worst
    note = "fitted on" if case["id"] in FITTED_ON else "held back"
    yield Row(
        case["id"],
        f"{given['model']} {given['strategy']} {given['ac']}: peak reserved",
        expected["peak_reserved_gib"],
        worst.reserved / GIB,
        "GiB",
        note,
        "memory: published peak",
    )


def _fit_row(case: Case) -> Iterator[Row]:
    """Compare whether it fits; a prediction of "tight" is right in both cases."""
    given, fits = case["input"], case["expected"]["fits"]
    found = estimate_memory(model(given), setup(case), _memory(given))
    wrong = MemoryFit.DOES_NOT_FIT if fits else MemoryFit.FITS
    got = float(fits) if found.fit is not wrong else float(not fits)
    left = (found.margin or 0) / GIB
    what = (
        f"{given['model']} x{given['world']} {given['local_bs']}x{given['seq']} {given['ac']}: fits"
    )
    yield Row(
        case["id"], what, float(fits), got, "", f"{found.fit}, {left:+.1f} GiB", "memory: fits"
    )


def _simulated(case: Case) -> Iterator[Row]:
    given, expected = case["input"], case["expected"]
    run = TrainingSetup(
        data=given["world"],
        micro_batch=given["bs"],
        sequence=given["seq"],
        recompute=_RECOMPUTE[given["ac"]],
        reshard=bool(given.get("reshard", 1)),
        fused_norms=bool(given.get("fused_norm_rope")),
    )
    worst = estimate_memory(model(given), run).worst
    what, kind = f"{given['model']} x{given['world']} {given['ac']}: ", "memory: simulated tensors"
    yield Row(
        case["id"],
        what + "peak",
        expected["tracker_peak_gib"],
        worst.tensors / GIB,
        "GiB",
        "",
        kind,
    )
    if "steady_gib" in expected:
        steady = (worst.parameters + worst.optimizer) / GIB
        yield Row(
            case["id"], what + "between steps", expected["steady_gib"], steady, "GiB", "", kind
        )


# ---- formulas of papers and other tools


def _counts_of(params: float, largest: float = 0.0) -> ParameterCounts:
    """Return the counts of a model with only a known number of parameters."""
    return ParameterCounts(1, round(params - largest), 0, 0, 0, round(largest), 0, 0, tied=True)


def states(
    params: float,
    strategy: ShardingStrategy,
    ranks: int,
    form: Precision,
    offload: OffloadTarget = OffloadTarget.NONE,
) -> float:
    """Return the bytes of model states on a rank's GPU."""
    run = TrainingSetup(strategy=strategy, data=ranks, precision=form, offload=offload)
    return model_states(stage_parameters(_counts_of(params), run, 0), run).total


def _formulas(case: Case) -> Iterator[Row]:
    given = case["input"]
    if "params_b" in given and "dp" in given:
        yield from _zero(case)
    elif "estimator" in given:
        yield from _estimators(case)
    elif "tool" in given:
        yield from _accelerate(case)
    elif "tp" in given:
        yield from _korthikanti(case)


def _zero(case: Case) -> Iterator[Row]:
    given = case["input"]
    for name, expected in case["expected"].items():
        strategy = ShardingStrategy.DDP if name == "baseline" else ShardingStrategy(name)
        got = states(given["params_b"] * 1e9, strategy, given["dp"], _FP32_ADAM) / 1e9
        what = f"{given['params_b']} B, {given['dp']} ranks: {name}"
        yield Row(case["id"], what, expected, got, "GB", "", "memory: states in papers")


def _estimators(case: Case) -> Iterator[Row]:
    """Compare DeepSpeed's estimators (deepspeed/runtime/zero/{stage3,stage_1_and_2}.py).

    They count gradients twice. On the GPU: our states with gradients of 2 and 4 bytes, plus their
    addition for the largest layer. On the host: their rule, which adds half for buffers.
    """
    given = case["input"]
    stage3, largest, params = (
        "3" in given["estimator"],
        given.get("largest_layer", 0),
        given["params"],
    )
    ranks = given["gpus_per_node"] * given["nodes"]
    strategy = ShardingStrategy.ZERO3 if stage3 else ShardingStrategy.ZERO2
    form = Precision(compute=2, master=4, gradient=4 if stage3 else 6, state=4)
    for name, expected in case["expected"].items():
        targets = name.split()[0].split("/")
        offload = OffloadTarget.NONE if targets[-1].endswith("none") else OffloadTarget.OPTIMIZER
        if targets[0].endswith("cpu") and len(targets) > 1:
            offload = OffloadTarget.PARAMETERS
        on_gpu = states(params, strategy, ranks, form, offload) + (4 * largest if stage3 else 0)
        if "gpu" in expected:
            yield Row(
                case["id"],
                f"estimator, {name}: GPU",
                expected["gpu"],
                on_gpu / GIB,
                "GiB",
                "",
                "memory: estimators",
            )
        if "cpu" in expected:
            host = _deepspeed_host_bytes(
                params,
                largest,
                given["gpus_per_node"],
                given["nodes"],
                offload,
                stage3=stage3,
                sharded="zero_init=0" not in name,
            )
            yield Row(
                case["id"],
                f"estimator, {name}: host",
                expected["cpu"],
                host / GIB,
                "GiB",
                "DeepSpeed's rule",
                "memory: estimators",
            )


def _deepspeed_host_bytes(
    params: float,
    largest: float,
    per_node: int,
    nodes: int,
    offload: OffloadTarget,
    *,
    stage3: bool,
    sharded: bool,
) -> float:
    each = {OffloadTarget.NONE: 0, OffloadTarget.OPTIMIZER: 16, OffloadTarget.PARAMETERS: 18}[
        offload
    ]
    if not stage3:
        return 1.5 * params * (max(4 * per_node * nodes, 16) if each else 4 * per_node)
    if not each:
        return 1.5 * 4 * per_node * (largest if sharded else params)
    return 1.5 * params * (each / nodes if sharded else max(4 * per_node, each / nodes))


#: Parameters and largest layer of the models on Accelerate's page: bert-base-cased by its
#: config.json; IDEFICS 80B as LLaMA 65B, 20 layers of cross attention of LLaMA's size (with keys
#: and values from images of width 1280), and a vision model of 632 M
#: (huggingface.co/HuggingFaceM4/idefics-80b, config.json); ResNet-50 with its running statistics
#: (torchvision).
_LLAMA_65B = msgspec.structs.replace(
    get_known_model("llama2-70b"), name="llama-65b", kv_heads=64, ffn=22016
)
_BERT = msgspec.structs.replace(
    get_known_model("gpt2"), name="bert-base-cased", vocab=28996, positions=512 + 2
)
_CROSS = _LLAMA_65B.layer_params - 2 * 8192 * (8192 - 1280)
_KNOWN_SIZES: Mapping[str, tuple[int, int]] = {
    "bert-base-cased": (_BERT.params + 768 * 769, 28996 * 768),
    "HuggingFaceM4/idefics-80b-instruct": (
        _LLAMA_65B.params + 20 * _CROSS + 632_000_000,
        _LLAMA_65B.layer_params,
    ),
    "timm/resnet50.a1_in1k": (25_557_032 + 53_173, 512 * 512 * 9),
}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int4": 0.5}
_UNITS = {"KB": 1 << 10, "MB": MIB, "GB": GIB, "TB": 1 << 40}


def _accelerate(case: Case) -> Iterator[Row]:
    """Compare weights, largest layer, and Adam in one dtype (accelerate/commands/estimate.py)."""
    given = case["input"]
    params, largest = _KNOWN_SIZES[given["model"]]
    for dtype, expected in case["expected"].items():
        number = _BYTES[dtype]
        whole = int(number) or 1
        form = Precision(compute=whole, master=0, gradient=whole, reduced=whole, state=whole)
        trained = states(params, ShardingStrategy.DDP, 1, form)
        got = {"largest": largest * number, "total": params * number, "adam": trained}
        for name, text in expected.items():
            value, unit = str(text).split()
            yield Row(
                case["id"],
                f"{given['model'].split('/')[-1]} {dtype}: {name}",
                float(value),
                got[name] / _UNITS[unit],
                unit,
                "",
                "memory: estimators",
            )


_KORTHIKANTI: Mapping[str, Callable[[TrainingSetup], TrainingSetup]] = {
    "activations_tp_only_gib": lambda run: run,
    "activations_sp_selective_gib": lambda run: msgspec.structs.replace(
        run, sequence_parallel=True, recompute=ActivationCheckpointing.SELECTIVE
    ),
    "sequence_parallel": lambda run: msgspec.structs.replace(run, sequence_parallel=True),
    "selective": lambda run: msgspec.structs.replace(
        run, recompute=ActivationCheckpointing.SELECTIVE
    ),
    "seq+selective": lambda run: msgspec.structs.replace(
        run, sequence_parallel=True, recompute=ActivationCheckpointing.SELECTIVE
    ),
    "full_recompute": lambda run: msgspec.structs.replace(
        run, recompute=ActivationCheckpointing.FULL
    ),
}


def _korthikanti(case: Case) -> Iterator[Row]:
    given = case["input"]
    chunks = given.get("interleave", 1)
    form = model(given)
    plain = TrainingSetup(
        strategy=ShardingStrategy.DDP,
        tensor=given["tp"],
        pipeline=given["pp"],
        sequence=given["seq"],
        flash=False,
        dropout=True,
        micro_batch=given["mb"],
        accumulation=given["gbs"] // given["mb"],
        sequence_parallel=False,
        schedule=PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B,
        chunks=chunks,
        optimizer=OptimizerKind.ADAMW,
    )

    def activations(run: TrainingSetup) -> float:
        return micro_batches_in_flight(run, 0) * layer_activations(form, run).total_saved(
            form.layers // run.pipeline
        )

    for name, expected in case["expected"].items():
        what = f"{given['model']}: {name}"
        if name in _KORTHIKANTI:
            got = activations(_KORTHIKANTI[name](plain))
            ratio = case["kind"] == "memory-ratio"
            yield Row(
                case["id"],
                what,
                expected,
                got / activations(plain) * 100 if ratio else got / GIB,
                "%" if ratio else "GiB",
                "",
                "memory: activations in papers",
            )
        elif name == "param_grad_optimizer_gib":
            got = (
                model_states(stage_parameters(count_parameters(form), plain, 0), plain).total / GIB
            )
            yield Row(
                case["id"],
                what,
                expected,
                got,
                "GiB",
                "published without the embedding",
                "memory: states in papers",
            )
