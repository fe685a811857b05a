"""FSDP2's settings as data (``fsdp2.json``): written from a recipe, and read into one. The code is made from them.

FSDP2 has no configuration file of its own; the places below are those of its arguments and of the loop around it
(torch 2.13: torch/distributed/fsdp/_fully_shard/_fully_shard.py and _fsdp_api.py).
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from holdfast.plan.generate.fields import Fields, nested
from holdfast.plan.generate.fsdp2_code import code
from holdfast.plan.generate.recipe import (
    Curve,
    Descent,
    Half,
    Offloaded,
    Place,
    Rates,
    Recipe,
    Rise,
    Scaler,
    Sharded,
)  # fmt: skip
from holdfast.plan.generate.written import File, Loss, Written
from holdfast.plan.setup import Recompute

NAME, SCRIPT = "fsdp2.json", "train_fsdp2.py"
DTYPES = {Half.FP32: "float32", Half.BF16: "bfloat16", Half.FP16: "float16"}
_HALVES = {name: half for half, name in DTYPES.items()}
_CURVES = {each.value: each for each in Curve}
_RISES = {each.value: each for each in Rise}
_RECOMPUTE = {each.value: each for each in Recompute}
_PLACES = {"none": Place.GPU, "cpu": Place.CPU}
#: Every setting there is.
KNOWN = (
    "framework", "mesh.replicate", "mesh.shard", "model.dtype", "fully_shard.reshard_after_forward",
    "fully_shard.param_dtype", "fully_shard.reduce_dtype", "fully_shard.offload", "fully_shard.pin_memory",
    "batch.all", "batch.micro", "batch.accumulation", "batch.sync_every_micro_batch", "batch.sequence",
    "clip_grad_norm", "autocast", "compile", "recompute.layers", "recompute.on_cpu", "save.whole",
    "grad_scaler.fixed", "grad_scaler.power", "grad_scaler.window", "optimizer.name", "optimizer.lr",
    "optimizer.betas", "optimizer.eps", "optimizer.weight_decay", "optimizer.momentum", "schedule.curve",
    "schedule.warmup_steps", "schedule.total_steps", "schedule.rise", "schedule.start", "schedule.end",
)  # fmt: skip
#: torch.optim has them, and they were tried on DTensors; of torch 2.13 Adafactor fails on them.
_TORCH = ("AdamW", "Adam", "SGD")
_NVME = "FSDP2 offloads to the host's memory alone: they go there"
#: The optimizer that stands in the script where a configuration leaves it to the script.
_STAND_IN = Descent(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)


def settings(recipe: Recipe) -> dict[str, Any]:
    """The settings, as a mapping."""
    stage = recipe.sharded
    whole = stage is Sharded.NOTHING
    half = recipe.half
    made, plan, scale = recipe.descent, recipe.schedule, recipe.scaler
    ranks = recipe.ranks or None
    flat: dict[str, Any] = {
        "framework": "fsdp2",
        "mesh.replicate": ranks if whole else recipe.replicas,
        "mesh.shard": 1 if whole else recipe.shards or None,
        "model.dtype": DTYPES[Half.FP32 if recipe.master else half],
        "fully_shard.reshard_after_forward": recipe.kept_among or stage is Sharded.PARAMETERS,
        "fully_shard.param_dtype": DTYPES[half],
        "fully_shard.reduce_dtype": DTYPES[recipe.reduced],
        "fully_shard.offload": "cpu" if _away(recipe) else "none",
        "fully_shard.pin_memory": recipe.optimizer_on.pinned and recipe.parameters_on.pinned if _away(recipe) else None,
        "batch.all": recipe.batch or None,
        "batch.micro": recipe.micro_batch or None,
        "batch.accumulation": recipe.accumulation,
        "batch.sync_every_micro_batch": stage not in (Sharded.NOTHING, Sharded.OPTIMIZER),
        "batch.sequence": recipe.sequence or None,
        "clip_grad_norm": recipe.clipping,
        "autocast": DTYPES[recipe.autocast] if recipe.autocast is not Half.FP32 else None,
        "compile": recipe.compiled,
        "recompute.layers": recipe.recompute.value,
        "recompute.on_cpu": recipe.recomputed_on_cpu,
        "save.whole": recipe.whole_save,
    }
    if half is Half.FP16:
        flat |= {"grad_scaler.fixed": scale.fixed, "grad_scaler.power": scale.power, "grad_scaler.window": scale.window}
    if made is not None:
        flat |= {"optimizer.name": made.name, "optimizer.lr": made.lr, "optimizer.betas": list(made.betas),
                 "optimizer.eps": made.eps, "optimizer.weight_decay": made.weight_decay,
                 "optimizer.momentum": made.momentum}  # fmt: skip
    if plan.curve is not Curve.NONE:
        flat |= {"schedule.curve": plan.curve.value, "schedule.warmup_steps": plan.warmup_steps,
                 "schedule.total_steps": plan.total_steps, "schedule.rise": plan.rise.value,
                 "schedule.start": plan.start, "schedule.end": plan.end}  # fmt: skip
    return nested(flat)


def _away(recipe: Recipe) -> bool:
    return any(place.device is not Place.GPU for place in (recipe.optimizer_on, recipe.parameters_on))


def read(fields: Fields, ranks: int = 0) -> Recipe:
    """What the settings mean; ``ranks`` win over those of the mesh. What is wrong is noted in ``fields``."""
    shard, replicas = fields.whole("mesh.shard", 0, least=1), fields.whole("mesh.replicate", 1, least=1)
    every = shard * replicas
    if ranks and every and ranks != every:
        fields.problems.append(f"the mesh has {replicas} x {shard} ranks, and {ranks} are asked for")
    again, kept = _resharding(fields)
    every_time = fields.flag("batch.sync_every_micro_batch", default=True)
    whole = shard == 1 and replicas > 1
    sharded = (
        Sharded.NOTHING if whole else Sharded.PARAMETERS if again
        else Sharded.GRADIENTS if every_time else Sharded.OPTIMIZER
    )  # fmt: skip
    half = fields.word("fully_shard.param_dtype", _HALVES, Half.FP32)
    loaded = fields.word("model.dtype", _HALVES, Half.FP32)
    pinned = fields.flag("fully_shard.pin_memory", default=True)
    place = fields.word("fully_shard.offload", _PLACES, Place.GPU)
    away = Offloaded(place, pinned=pinned) if place is not Place.GPU else Offloaded()
    fields.whole("batch.all", 0)
    fields.text("framework")
    return Recipe(
        sharded=sharded, ranks=every or ranks, replicas=1 if whole or (every or ranks) % replicas else replicas,
        kept_among=kept, micro_batch=fields.whole("batch.micro", 0),
        accumulation=fields.whole("batch.accumulation", 1, least=1), sequence=fields.whole("batch.sequence", 0),
        half=half, master=half is Half.FP32 or loaded is Half.FP32,
        reduced=fields.word("fully_shard.reduce_dtype", _HALVES, half),
        autocast=fields.word("autocast", _HALVES, Half.FP32), clipping=fields.number("clip_grad_norm", 0.0),
        scaler=Scaler(fields.number("grad_scaler.fixed", 0.0), fields.whole("grad_scaler.power", 16),
                      fields.whole("grad_scaler.window", 2000, least=1)) if half is Half.FP16 else Scaler(),
        descent=_descent(fields), schedule=_schedule(fields), optimizer_on=away,
        parameters_on=away if sharded is Sharded.PARAMETERS else Offloaded(),
        recompute=fields.word("recompute.layers", _RECOMPUTE, Recompute.NONE),
        recomputed_on_cpu=fields.flag("recompute.on_cpu"), compiled=fields.flag("compile"),
        whole_save=fields.flag("save.whole"),
    )  # fmt: skip


def _resharding(fields: Fields) -> tuple[bool, int]:
    """Whether weights are freed after forward, and in groups of how many they stay gathered."""
    key = "fully_shard.reshard_after_forward"
    value = fields.given.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return True, fields.whole(key, 0, least=2)
    return fields.flag(key, default=True), 0


def _descent(fields: Fields) -> Descent | None:
    name = fields.text("optimizer.name")
    usual = Descent()
    made = Descent(
        name=name, lr=fields.number("optimizer.lr", usual.lr), betas=fields.pair("optimizer.betas", (0.9, 0.999)),
        eps=fields.number("optimizer.eps", usual.eps), weight_decay=fields.number("optimizer.weight_decay", 0.01),
        momentum=fields.number("optimizer.momentum", 0.0),
    )  # fmt: skip
    return made if name else None


def _schedule(fields: Fields) -> Rates:
    return Rates(
        curve=fields.word("schedule.curve", _CURVES, Curve.NONE),
        rise=fields.word("schedule.rise", _RISES, Rise.LINEAR),
        warmup_steps=fields.whole("schedule.warmup_steps", 0), total_steps=fields.whole("schedule.total_steps", 0),
        start=fields.number("schedule.start", 0.0), end=fields.number("schedule.end", 0.0),
    )  # fmt: skip


def write(recipe: Recipe) -> Written:
    """The settings and the script that is made from them, and what they cannot say."""
    losses, warnings = _losses(recipe), _warnings(recipe)
    asked = recipe.descent or _STAND_IN
    known = asked if asked.name in _TORCH else msgspec.structs.replace(asked, name="AdamW")
    data = settings(recipe)
    files = (
        File(NAME, json.dumps(data, indent=2) + "\n", f"the settings of {SCRIPT} as data, to migrate from"),
        File(SCRIPT, code(recipe, known), "a script to start with: torchrun --nproc-per-node N train_fsdp2.py"),
    )
    return Written(files, losses, warnings)


def _losses(recipe: Recipe) -> tuple[Loss, ...]:
    losses = [
        Loss(
            f"{name} parallelism of {getattr(recipe, name)}", "it is in the model's code under torch: torchtitan has it"
        )
        for name in ("tensor", "pipeline", "context", "expert")
        if getattr(recipe, name) > 1
    ]
    places = (("optimizer", recipe.optimizer_on), ("parameters", recipe.parameters_on))
    losses += [
        Loss(f"{what} on NVMe ({place.path or 'no path given'})", _NVME)
        for what, place in places
        if place.device is Place.NVME
    ]  # fmt: skip
    made = recipe.descent
    if made is not None and made.name not in _TORCH:
        why = "torch.optim.Muon takes matrices alone: give the rest to AdamW" if made.name == "Muon" else (
            "no such one of torch.optim is known to work on DTensors")  # fmt: skip
        losses.append(Loss(f"the optimizer {made.name[:50]}", f"{why}; AdamW stands in its place in the script"))
    if recipe.recompute in (Recompute.SELECTIVE, Recompute.OPERATIONS):
        losses.append(Loss(f"recomputation of {recipe.recompute} kind", "the script computes whole layers again"))
    return tuple(losses)


def _warnings(recipe: Recipe) -> tuple[str, ...]:
    said = []
    if recipe.sharded in (Sharded.OPTIMIZER, Sharded.GRADIENTS) and recipe.optimizer_on.device is not Place.GPU:
        said.append("FSDP2 offloads all or nothing: weights go to the host with the optimizer, which takes longer")
    places = (recipe.parameters_on.device, recipe.optimizer_on.device)
    if recipe.sharded is Sharded.PARAMETERS and Place.GPU in places and _away(recipe):
        said.append("FSDP2 offloads all or nothing: weights, gradients and optimizer states all go to the host")
    if not recipe.micro_batch:
        said.append("the micro-batch is not known, and MICRO_BATCH in the script is 1: set it")
    if not recipe.master:
        said.append(
            "there is no fp32 copy of the weights: at small learning rates most of them stop changing (2.8 % changed "
            "in one Adam step at 1e-5, against 92 to 96 % with one)"
        )
    if recipe.half is Half.FP16:
        said.append("GradScaler halves the scale at the first overflow, DeepSpeed at the second (hysteresis)")
    if recipe.autocast is not Half.FP32:
        said.append("under autocast FSDP2 gathers and reduces in fp32: param_dtype would be faster")
    return tuple(said)
