"""FSDP2's settings as data (``fsdp2.json``): written from a recipe, and read into one.

The training script is generated from them. FSDP2 has no configuration file; the keys below follow
its arguments and the training loop (torch 2.13: torch/distributed/fsdp/_fully_shard/_fully_shard.py
and _fsdp_api.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.plan.generate.fields import ConfigReader, nest_keys
from holdfast.plan.generate.fsdp2_code import render_script
from holdfast.plan.generate.generated import ConfigFile, UnmappedSetting, WrittenConfig
from holdfast.plan.generate.recipe import (
    ComputeDtype,
    LossScaler,
    LrDecay,
    LrSchedule,
    LrWarmup,
    OffloadPlacement,
    OptimizerValues,
    Recipe,
    ShardedStates,
    StateDevice,
)
from holdfast.plan.setup import ActivationCheckpointing

NAME, SCRIPT = "fsdp2.json", "train_fsdp2.py"
DTYPES = {ComputeDtype.FP32: "float32", ComputeDtype.BF16: "bfloat16", ComputeDtype.FP16: "float16"}
_DTYPES_BY_NAME = {name: half for half, name in DTYPES.items()}
_LR_DECAYS = {each.value: each for each in LrDecay}
_LR_WARMUPS = {each.value: each for each in LrWarmup}
_RECOMPUTE = {each.value: each for each in ActivationCheckpointing}
_PLACES = {"none": StateDevice.GPU, "cpu": StateDevice.CPU}
#: All settings.
KNOWN = tuple(
    """
    framework mesh.replicate mesh.shard model.dtype fully_shard.reshard_after_forward
    fully_shard.param_dtype fully_shard.reduce_dtype fully_shard.offload fully_shard.pin_memory
    batch.all batch.micro batch.accumulation batch.sync_every_micro_batch batch.sequence
    clip_grad_norm autocast compile recompute.layers recompute.on_cpu save.whole grad_scaler.fixed
    grad_scaler.power grad_scaler.window optimizer.name optimizer.lr optimizer.betas optimizer.eps
    optimizer.weight_decay optimizer.momentum schedule.curve schedule.warmup_steps
    schedule.total_steps schedule.rise schedule.start schedule.end
    """.split()
)
#: torch.optim's optimizers that were tested on DTensors; Adafactor of torch 2.13 fails on them.
_SUPPORTED_OPTIMIZERS = ("AdamW", "Adam", "SGD")
_NVME = "FSDP2 offloads only to host memory, which is used instead"
#: The script's optimizer if a configuration leaves it to the script.
_DEFAULT_OPTIMIZER = OptimizerValues(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)


def fsdp2_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings as a mapping."""
    stage = recipe.sharded_states
    is_ddp = stage is ShardedStates.NOTHING
    dtype = recipe.compute_dtype
    optimizer, schedule, scaler = recipe.optimizer, recipe.schedule, recipe.scaler
    ranks = recipe.ranks or None
    settings: dict[str, Any] = {
        "framework": "fsdp2",
        "mesh.replicate": ranks if is_ddp else recipe.replicas,
        "mesh.shard": 1 if is_ddp else recipe.shards or None,
        "model.dtype": DTYPES[ComputeDtype.FP32 if recipe.master else dtype],
        "fully_shard.reshard_after_forward": recipe.gather_group
        or stage is ShardedStates.PARAMETERS,
        "fully_shard.param_dtype": DTYPES[dtype],
        "fully_shard.reduce_dtype": DTYPES[recipe.reduce_dtype],
        "fully_shard.offload": "cpu" if _is_offloaded(recipe) else "none",
        "fully_shard.pin_memory": recipe.optimizer_placement.pinned
        and recipe.parameter_placement.pinned
        if _is_offloaded(recipe)
        else None,
        "batch.all": recipe.batch or None,
        "batch.micro": recipe.micro_batch or None,
        "batch.accumulation": recipe.accumulation,
        "batch.sync_every_micro_batch": stage
        not in (ShardedStates.NOTHING, ShardedStates.OPTIMIZER),
        "batch.sequence": recipe.sequence or None,
        "clip_grad_norm": recipe.clipping,
        "autocast": DTYPES[recipe.autocast_dtype]
        if recipe.autocast_dtype is not ComputeDtype.FP32
        else None,
        "compile": recipe.compiled,
        "recompute.layers": recipe.recompute.value,
        "recompute.on_cpu": recipe.offload_activations,
        "save.whole": recipe.gather_on_save,
    }
    if dtype is ComputeDtype.FP16:
        settings |= {
            "grad_scaler.fixed": scaler.fixed,
            "grad_scaler.power": scaler.power,
            "grad_scaler.window": scaler.window,
        }
    if optimizer is not None:
        settings |= {
            "optimizer.name": optimizer.name,
            "optimizer.lr": optimizer.lr,
            "optimizer.betas": list(optimizer.betas),
            "optimizer.eps": optimizer.eps,
            "optimizer.weight_decay": optimizer.weight_decay,
            "optimizer.momentum": optimizer.momentum,
        }
    if schedule.decay is not LrDecay.NONE:
        settings |= {
            "schedule.curve": schedule.decay.value,
            "schedule.warmup_steps": schedule.warmup_steps,
            "schedule.total_steps": schedule.total_steps,
            "schedule.rise": schedule.warmup.value,
            "schedule.start": schedule.start,
            "schedule.end": schedule.end,
        }
    return nest_keys(settings)


def _is_offloaded(recipe: Recipe) -> bool:
    return any(
        place.device is not StateDevice.GPU
        for place in (recipe.optimizer_placement, recipe.parameter_placement)
    )


def read_fsdp2(config: ConfigReader, ranks: int = 0) -> Recipe:
    """Read the settings; ``ranks`` overrides the mesh. Problems are collected in ``config``."""
    shards, replicas = (
        config.read_int("mesh.shard", 0, least=1),
        config.read_int("mesh.replicate", 1, least=1),
    )
    mesh_ranks = shards * replicas
    if ranks and mesh_ranks and ranks != mesh_ranks:
        config.problems.append(
            f"the mesh has {replicas} x {shards} ranks, but {ranks} are requested"
        )
    reshards, group_size = _read_resharding(config)
    syncs_each_micro_batch = config.read_bool("batch.sync_every_micro_batch", default=True)
    is_ddp = shards == 1 and replicas > 1
    sharded = (
        ShardedStates.NOTHING
        if is_ddp
        else ShardedStates.PARAMETERS
        if reshards
        else ShardedStates.GRADIENTS
        if syncs_each_micro_batch
        else ShardedStates.OPTIMIZER
    )
    dtype = config.read_choice("fully_shard.param_dtype", _DTYPES_BY_NAME, ComputeDtype.FP32)
    model_dtype = config.read_choice("model.dtype", _DTYPES_BY_NAME, ComputeDtype.FP32)
    pinned = config.read_bool("fully_shard.pin_memory", default=True)
    device = config.read_choice("fully_shard.offload", _PLACES, StateDevice.GPU)
    placement = (
        OffloadPlacement(device, pinned=pinned)
        if device is not StateDevice.GPU
        else OffloadPlacement()
    )
    config.read_int("batch.all", 0)
    config.read_text("framework")
    return Recipe(
        sharded_states=sharded,
        ranks=mesh_ranks or ranks,
        replicas=1 if is_ddp or (mesh_ranks or ranks) % replicas else replicas,
        gather_group=group_size,
        micro_batch=config.read_int("batch.micro", 0),
        accumulation=config.read_int("batch.accumulation", 1, least=1),
        sequence=config.read_int("batch.sequence", 0),
        compute_dtype=dtype,
        master=dtype is ComputeDtype.FP32 or model_dtype is ComputeDtype.FP32,
        reduce_dtype=config.read_choice("fully_shard.reduce_dtype", _DTYPES_BY_NAME, dtype),
        autocast_dtype=config.read_choice("autocast", _DTYPES_BY_NAME, ComputeDtype.FP32),
        clipping=config.read_float("clip_grad_norm", 0.0),
        scaler=LossScaler(
            config.read_float("grad_scaler.fixed", 0.0),
            config.read_int("grad_scaler.power", 16),
            config.read_int("grad_scaler.window", 2000, least=1),
        )
        if dtype is ComputeDtype.FP16
        else LossScaler(),
        optimizer=_read_optimizer(config),
        schedule=_read_schedule(config),
        optimizer_placement=placement,
        parameter_placement=placement
        if sharded is ShardedStates.PARAMETERS
        else OffloadPlacement(),
        recompute=config.read_choice("recompute.layers", _RECOMPUTE, ActivationCheckpointing.NONE),
        offload_activations=config.read_bool("recompute.on_cpu"),
        compiled=config.read_bool("compile"),
        gather_on_save=config.read_bool("save.whole"),
    )


def _read_resharding(config: ConfigReader) -> tuple[bool, int]:
    """Return whether weights are freed after forward, and the gather group's size."""
    key = "fully_shard.reshard_after_forward"
    value = config.values.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return True, config.read_int(key, 0, least=2)
    return config.read_bool(key, default=True), 0


def _read_optimizer(config: ConfigReader) -> OptimizerValues | None:
    name = config.read_text("optimizer.name")
    defaults = OptimizerValues()
    optimizer = OptimizerValues(
        name=name,
        lr=config.read_float("optimizer.lr", defaults.lr),
        betas=config.read_pair("optimizer.betas", (0.9, 0.999)),
        eps=config.read_float("optimizer.eps", defaults.eps),
        weight_decay=config.read_float("optimizer.weight_decay", 0.01),
        momentum=config.read_float("optimizer.momentum", 0.0),
    )
    return optimizer if name else None


def _read_schedule(config: ConfigReader) -> LrSchedule:
    return LrSchedule(
        decay=config.read_choice("schedule.curve", _LR_DECAYS, LrDecay.NONE),
        warmup=config.read_choice("schedule.rise", _LR_WARMUPS, LrWarmup.LINEAR),
        warmup_steps=config.read_int("schedule.warmup_steps", 0),
        total_steps=config.read_int("schedule.total_steps", 0),
        start=config.read_float("schedule.start", 0.0),
        end=config.read_float("schedule.end", 0.0),
    )


def write_fsdp2_files(recipe: Recipe) -> WrittenConfig:
    """Write the settings and the generated script, and list what they cannot express."""
    unmapped, warnings = tuple(_unmapped_settings(recipe)), tuple(_warnings(recipe))
    requested = recipe.optimizer or _DEFAULT_OPTIMIZER
    supported = (
        requested
        if requested.name in _SUPPORTED_OPTIMIZERS
        else msgspec.structs.replace(requested, name="AdamW")
    )
    settings = fsdp2_settings(recipe)
    files = (
        ConfigFile(
            NAME,
            json.dumps(settings, indent=2) + "\n",
            f"the settings of {SCRIPT} as data, for migration",
        ),
        ConfigFile(
            SCRIPT,
            render_script(recipe, supported),
            f"a script template: {recipe.torchrun} {SCRIPT}",
        ),
    )
    return WrittenConfig(files, unmapped, warnings)


def _unmapped_settings(recipe: Recipe) -> Iterator[UnmappedSetting]:
    for name in ("tensor", "pipeline", "context", "expert"):
        if getattr(recipe, name) > 1:
            yield UnmappedSetting(
                f"{name} parallelism of {getattr(recipe, name)}",
                "with torch it is part of the model's code; torchtitan supports it",
            )
    for kind, placement in (
        ("optimizer", recipe.optimizer_placement),
        ("parameters", recipe.parameter_placement),
    ):
        if placement.device is StateDevice.NVME:
            yield UnmappedSetting(f"{kind} on NVMe ({placement.path or 'no path given'})", _NVME)
    optimizer = recipe.optimizer
    if optimizer is not None and optimizer.name not in _SUPPORTED_OPTIMIZERS:
        why = (
            "torch.optim.Muon accepts only matrices: use AdamW for the rest"
            if optimizer.name == "Muon"
            else "torch.optim has none that is known to work on DTensors"
        )
        yield UnmappedSetting(
            f"the optimizer {optimizer.name[:50]}", f"{why}; the script uses AdamW instead"
        )
    if recipe.recompute in (ActivationCheckpointing.SELECTIVE, ActivationCheckpointing.OPERATIONS):
        yield UnmappedSetting(
            f"activation checkpointing ({recipe.recompute})", "the script checkpoints whole layers"
        )


def _warnings(recipe: Recipe) -> Iterator[str]:
    if (
        recipe.sharded_states in (ShardedStates.OPTIMIZER, ShardedStates.GRADIENTS)
        and recipe.optimizer_placement.device is not StateDevice.GPU
    ):
        yield (
            "FSDP2 offloads all or nothing: weights move to the host with the optimizer, which "
            "is slower"
        )
    devices = (recipe.parameter_placement.device, recipe.optimizer_placement.device)
    if (
        recipe.sharded_states is ShardedStates.PARAMETERS
        and StateDevice.GPU in devices
        and _is_offloaded(recipe)
    ):
        yield (
            "FSDP2 offloads all or nothing: weights, gradients and optimizer states move to the "
            "host"
        )
    if not recipe.micro_batch:
        yield ("the micro-batch is unknown: set MICRO_BATCH in the script, which is 1")
    if not recipe.master:
        yield (
            "no fp32 copy of the weights: at small learning rates most of them stop changing (2.8 "
            "% changed in one Adam step at 1e-5, against 92 to 96 % with one)"
        )
    if recipe.compute_dtype is ComputeDtype.FP16:
        yield (
            "GradScaler halves the scale at the first overflow, DeepSpeed at the second "
            "(hysteresis)"
        )
    if recipe.autocast_dtype is not ComputeDtype.FP32:
        yield ("under autocast, FSDP2 gathers and reduces in fp32: param_dtype is faster")
