"""How far the plan's memory is off published figures: rows for ``python -m benchmarks.plan_truth TRUTH.json``.

What a source leaves unsaid is assumed and said in the row's note. The allocator's factor alone was fitted, on the rows
of ``holdfast.plan.reserve.FITTED_ON``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from benchmarks.plan_rows import Row
from holdfast.errors import HoldfastError
from holdfast.plan.activations import in_flight, layer
from holdfast.plan.gpus import gpu
from holdfast.plan.memory import Answer, footprint
from holdfast.plan.models import Transformer, known
from holdfast.plan.reserve import FITTED_ON
from holdfast.plan.setup import Loss, Offload, Optimizer, Precision, Recompute, Schedule, Setup, Strategy
from holdfast.plan.states import Sizes, held, owned, sizes

GIB = 1 << 30
MIB = 1 << 20
#: Why a row is more than 30 % off.
REASONS: dict[str, str] = {}

_RECOMPUTE = {
    "none": Recompute.NONE, "full": Recompute.FULL, "selective-op": Recompute.OPERATIONS, "op": Recompute.OPERATIONS,
    "selective-layer": Recompute.SECOND_LAYER, "layer2": Recompute.SECOND_LAYER, "selective": Recompute.SECOND_LAYER,
}  # fmt: skip
_SIMULATED = {"8b": "llama3.1-8b", "13b_l2": "llama2-13b", "70b_l2": "llama2-70b", "70b": "llama3.1-70b"}
_FP32_ADAM = Precision(compute=2, master=4, gradient=2, reduced=2, state=4)
Input = Mapping[str, Any]
Case = Mapping[str, Any]


def rows(truth: list[Case]) -> Iterator[Row]:
    """Each figure of memory, and each word on what fits; rows of another kind are passed over."""
    for case in truth:
        try:
            yield from _judged(case)
        except (HoldfastError, KeyError, ValueError) as error:
            yield Row(case["id"], f"not understood: {error!r}", 1.0, 1.0, "", kind="memory: not understood")


def _judged(case: Case) -> Iterator[Row]:
    kind, expected = case["kind"], case["expected"]
    if "peak_reserved_gib" in expected:
        yield from _published(case)
    elif kind == "memory (simulated)":
        yield from _simulated(case)
    elif kind in ("memory", "memory-ratio"):
        yield from _formulas(case)
    if expected.get("fits") is not None:
        yield from _feasible(case)


# ---- runs


def model(given: Input) -> Transformer:
    """By its name, or by its sizes in GPT's form; an MPT has as many learned positions as its sequence is long."""
    name = str(given["model"])
    try:
        found = known(_SIMULATED.get(name, name))
    except HoldfastError:
        hidden, heads = given["hidden"], given["heads"]
        found = msgspec.structs.replace(known("gpt3-175b"), name=name, layers=given["layers"], hidden=hidden,
                                        heads=heads, kv_heads=heads, head_width=hidden // heads, ffn=4 * hidden,
                                        vocab=51200, positions=given.get("seq", 2048))  # fmt: skip
    return msgspec.structs.replace(found, positions=given["seq"]) if name.startswith("mpt") else found


def setup(case: Case) -> Setup:
    """Of a run of torchtitan or llm-foundry.

    torchtitan takes as many micro-batches as there are stages and keeps parameters gathered in a pipeline; it compiled
    its loss from 2025 on, and norms had no kernel of their own unless it says so.
    """
    given = case["input"]
    degrees = {way.lower(): int(count) for count, way in _degrees(str(given["strategy"]))}
    stages = degrees.get("pp", 1)
    mosaic = "mosaicml" in case["source"]
    compiled = "compile" in given.get("mode", "")
    eager = Loss.COMPILED if compiled and re.search(r"_2025|_2026|2025-|2026-", case["source"]) else Loss.EAGER
    parts = degrees.get("tp", 1) * stages * degrees.get("cp", 1)
    return Setup(
        strategy=Strategy.FSDP1 if mosaic else Strategy.FSDP2,
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
        schedule=Schedule.INTERLEAVED if "nterleaved" in given.get("mode", "") else Schedule.ONE_F_ONE_B,
        chunks=2 if "nterleaved" in given.get("mode", "") else 1,
        loss=Loss.FUSED if mosaic else eager,
        fused_norms="fused_rmsnorm" in given.get("norm", ""),
    )


def _degrees(strategy: str) -> list[tuple[str, str]]:
    """``FSDP2 4 x CP 2 x TP 8`` as pairs; "FSDP2 1D" has none."""
    return [(count, way) for way, count in re.findall(r"\b(CP|TP|PP) (\d+)", strategy)]


def _memory(given: Input) -> int:
    name = str(given.get("gpu", "")).replace("_", " ")
    return int(GIB * (given.get("gpu_mem_gib") or gpu(name).memory_gib))


def _published(case: Case) -> Iterator[Row]:
    expected = case["expected"]
    given, run = case["input"], setup(case)
    worst = footprint(model(given), run).worst
    note = "fitted on" if case["id"] in FITTED_ON else "held back"
    yield Row(
        case["id"], f"{given['model']} {given['strategy']} {given['ac']}: peak reserved", expected["peak_reserved_gib"],
        worst.reserved / GIB, "GiB", note, "memory: published peak",
    )  # fmt: skip


def _feasible(case: Case) -> Iterator[Row]:
    """Right where it is not said to fit what does not, nor not to fit what does."""
    given, fits = case["input"], case["expected"]["fits"]
    found = footprint(model(given), setup(case), _memory(given))
    wrong = Answer.DOES_NOT_FIT if fits else Answer.FITS
    got = float(fits) if found.answer is not wrong else float(not fits)
    left = (found.margin or 0) / GIB
    what = f"{given['model']} x{given['world']} {given['local_bs']}x{given['seq']} {given['ac']}: fits"
    yield Row(case["id"], what, float(fits), got, "", f"{found.answer}, {left:+.1f} GiB", "memory: fits")


def _simulated(case: Case) -> Iterator[Row]:
    given, expected = case["input"], case["expected"]
    run = Setup(data=given["world"], micro_batch=given["bs"], sequence=given["seq"], recompute=_RECOMPUTE[given["ac"]],
                reshard=bool(given.get("reshard", 1)), fused_norms=bool(given.get("fused_norm_rope")))  # fmt: skip
    worst = footprint(model(given), run).worst
    what, kind = f"{given['model']} x{given['world']} {given['ac']}: ", "memory: simulated tensors"
    yield Row(case["id"], what + "peak", expected["tracker_peak_gib"], worst.tensors / GIB, "GiB", "", kind)
    if "steady_gib" in expected:
        steady = (worst.parameters + worst.optimizer) / GIB
        yield Row(case["id"], what + "between steps", expected["steady_gib"], steady, "GiB", "", kind)


# ---- formulas of papers and other tools


def _plain(params: float, largest: float = 0.0) -> Sizes:
    """A model of which only the number of parameters is known."""
    return Sizes(1, round(params - largest), 0, 0, 0, round(largest), 0, 0, tied=True)


def states(params: float, strategy: Strategy, ranks: int, form: Precision, offload: Offload = Offload.NONE) -> float:
    """Bytes that a rank holds on its GPU."""
    run = Setup(strategy=strategy, data=ranks, precision=form, offload=offload)
    return held(owned(_plain(params), run, 0), run).all


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
        strategy = Strategy.DDP if name == "baseline" else Strategy(name)
        got = states(given["params_b"] * 1e9, strategy, given["dp"], _FP32_ADAM) / 1e9
        what = f"{given['params_b']} B, {given['dp']} ranks: {name}"
        yield Row(case["id"], what, expected, got, "GB", "", "memory: states in papers")


def _estimators(case: Case) -> Iterator[Row]:
    """DeepSpeed's, as deepspeed/runtime/zero/{stage3,stage_1_and_2}.py define them: gradients are there twice.

    On the GPU: our states with gradients of 2 and 4 bytes; what it adds for the largest layer; on the host its rule,
    which is no count: it takes half as much again for buffers.
    """
    given = case["input"]
    third, largest, params = "3" in given["estimator"], given.get("largest_layer", 0), given["params"]
    ranks = given["gpus_per_node"] * given["nodes"]
    strategy = Strategy.ZERO3 if third else Strategy.ZERO2
    form = Precision(compute=2, master=4, gradient=4 if third else 6, state=4)
    for name, expected in case["expected"].items():
        ways = name.split()[0].split("/")
        offload = Offload.NONE if ways[-1].endswith("none") else Offload.OPTIMIZER
        if ways[0].endswith("cpu") and len(ways) > 1:
            offload = Offload.PARAMETERS
        on_gpu = states(params, strategy, ranks, form, offload) + (4 * largest if third else 0)
        if "gpu" in expected:
            yield Row(
                case["id"], f"estimator, {name}: GPU", expected["gpu"], on_gpu / GIB, "GiB", "", "memory: estimators"
            )
        if "cpu" in expected:
            host = _their_host(params, largest, given["gpus_per_node"], given["nodes"], offload, third=third,
                               sharded="zero_init=0" not in name)  # fmt: skip
            yield Row(case["id"], f"estimator, {name}: host", expected["cpu"], host / GIB, "GiB", "its rule",
                      "memory: estimators")  # fmt: skip


def _their_host(
    params: float, largest: float, per_node: int, nodes: int, offload: Offload, *, third: bool, sharded: bool
) -> float:
    each = {Offload.NONE: 0, Offload.OPTIMIZER: 16, Offload.PARAMETERS: 18}[offload]
    if not third:
        return 1.5 * params * (max(4 * per_node * nodes, 16) if each else 4 * per_node)
    if not each:
        return 1.5 * 4 * per_node * (largest if sharded else params)
    return 1.5 * params * (each / nodes if sharded else max(4 * per_node, each / nodes))


#: Parameters and largest part of models of which accelerate's page speaks: bert-base-cased by its config.json; IDEFICS
#: 80B as LLaMA 65B, 20 layers of cross attention of LLaMA's size (whose keys and values come from images 1280 wide),
#: and an image tower of 632 M (huggingface.co/HuggingFaceM4/idefics-80b, config.json); ResNet-50 with its running
#: statistics (torchvision).
_LLAMA_65B = msgspec.structs.replace(known("llama2-70b"), name="llama-65b", kv_heads=64, ffn=22016)
_BERT = msgspec.structs.replace(known("gpt2"), name="bert-base-cased", vocab=28996, positions=512 + 2)
_CROSS = _LLAMA_65B.layer_params - 2 * 8192 * (8192 - 1280)
_KNOWN_SIZES: Mapping[str, tuple[int, int]] = {
    "bert-base-cased": (_BERT.params + 768 * 769, 28996 * 768),
    "HuggingFaceM4/idefics-80b-instruct": (_LLAMA_65B.params + 20 * _CROSS + 632_000_000, _LLAMA_65B.layer_params),
    "timm/resnet50.a1_in1k": (25_557_032 + 53_173, 512 * 512 * 9),
}
_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "int4": 0.5}
_UNITS = {"KB": 1 << 10, "MB": MIB, "GB": GIB, "TB": 1 << 40}


def _accelerate(case: Case) -> Iterator[Row]:
    """Weights, the largest part, and Adam with everything in the same type (accelerate/commands/estimate.py)."""
    given = case["input"]
    params, largest = _KNOWN_SIZES[given["model"]]
    for dtype, expected in case["expected"].items():
        number = _BYTES[dtype]
        whole = int(number) or 1
        form = Precision(compute=whole, master=0, gradient=whole, reduced=whole, state=whole)
        trained = states(params, Strategy.DDP, 1, form)
        got = {"largest": largest * number, "total": params * number, "adam": trained}
        for name, text in expected.items():
            value, unit = str(text).split()
            yield Row(case["id"], f"{given['model'].split('/')[-1]} {dtype}: {name}", float(value),
                      got[name] / _UNITS[unit], unit, "", "memory: estimators")  # fmt: skip


_KORTHIKANTI: Mapping[str, Callable[[Setup], Setup]] = {
    "activations_tp_only_gib": lambda run: run,
    "activations_sp_selective_gib": lambda run: msgspec.structs.replace(
        run, sequence_parallel=True, recompute=Recompute.SELECTIVE
    ),
    "sequence_parallel": lambda run: msgspec.structs.replace(run, sequence_parallel=True),
    "selective": lambda run: msgspec.structs.replace(run, recompute=Recompute.SELECTIVE),
    "seq+selective": lambda run: msgspec.structs.replace(
        run, sequence_parallel=True, recompute=Recompute.SELECTIVE
    ),
    "full_recompute": lambda run: msgspec.structs.replace(run, recompute=Recompute.FULL),
}  # fmt: skip


def _korthikanti(case: Case) -> Iterator[Row]:
    given = case["input"]
    chunks = given.get("interleave", 1)
    form = model(given)
    plain = Setup(
        strategy=Strategy.DDP, tensor=given["tp"], pipeline=given["pp"], sequence=given["seq"], flash=False,
        dropout=True, micro_batch=given["mb"], accumulation=given["gbs"] // given["mb"], sequence_parallel=False,
        schedule=Schedule.INTERLEAVED if chunks > 1 else Schedule.ONE_F_ONE_B, chunks=chunks, optimizer=Optimizer.ADAMW,
    )  # fmt: skip

    def activations(run: Setup) -> float:
        return in_flight(run, 0) * layer(form, run).of(form.layers // run.pipeline)

    for name, expected in case["expected"].items():
        what = f"{given['model']}: {name}"
        if name in _KORTHIKANTI:
            got = activations(_KORTHIKANTI[name](plain))
            ratio = case["kind"] == "memory-ratio"
            yield Row(case["id"], what, expected, got / activations(plain) * 100 if ratio else got / GIB,
                      "%" if ratio else "GiB", "", "memory: activations in papers")  # fmt: skip
        elif name == "param_grad_optimizer_gib":
            got = held(owned(sizes(form), plain, 0), plain).all / GIB
            yield Row(case["id"], what, expected, got, "GiB", "theirs is without the embedding",
                      "memory: states in papers")  # fmt: skip
