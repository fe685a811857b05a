"""Write DeepSpeed's JSON from a recipe; ``deepspeed_reader`` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.plan.generate.fields import AUTO, nest_keys
from holdfast.plan.generate.generated import ConfigFile, UnmappedSetting, WrittenConfig
from holdfast.plan.generate.recipe import (
    EIGHT_BITS,
    ComputeDtype,
    LrDecay,
    OffloadPlacement,
    Recipe,
    ShardedStates,
    StateDevice,
)

NAME = "deepspeed.json"
_Z = "zero_optimization"
_TYPES = {
    LrDecay.CONSTANT: "WarmupLR",
    LrDecay.LINEAR: "WarmupDecayLR",
    LrDecay.COSINE: "WarmupCosineLR",
}
#: Optimizers that DeepSpeed implements; torch's others must be allowed explicitly.
_BUILT_IN = ("AdamW", "Adam", "Adagrad", "Muon", "Lion", "Lamb")
_ADAMS = ("AdamW", "Adam")
_DEFAULT_LR = 1e-3
#: DeepSpeed's default bucket size in elements, written because it is the main memory tunable.
_BUCKET = 500_000_000


def deepspeed_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the JSON as a mapping."""
    stage = recipe.sharded_states
    batch = recipe.batch or None
    settings: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": recipe.micro_batch or AUTO,
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": recipe.clipping,
        f"{_Z}.stage": int(stage),
    }
    if stage is not ShardedStates.NOTHING:
        settings |= {
            f"{_Z}.overlap_comm": True,
            f"{_Z}.contiguous_gradients": True,
            f"{_Z}.reduce_bucket_size": _BUCKET,
            f"{_Z}.allgather_bucket_size": _BUCKET,
        }
        settings |= _offload_settings("offload_optimizer", recipe.optimizer_placement)
    if stage is ShardedStates.PARAMETERS:
        settings |= _offload_settings("offload_param", recipe.parameter_placement)
        settings[f"{_Z}.zero_hpz_partition_size"] = recipe.gather_group or None
        settings[f"{_Z}.stage3_gather_16bit_weights_on_model_save"] = recipe.gather_on_save
    settings |= _precision(recipe)
    if recipe.offload_activations:
        settings["activation_checkpointing.cpu_checkpointing"] = True
    return nest_keys(settings | _optimizer(recipe) | _scheduler(recipe))


def _offload_settings(block: str, placement: OffloadPlacement) -> dict[str, Any]:
    if placement.device is StateDevice.GPU:
        return {}
    nvme_path = placement.path or "/local_nvme" if placement.device is StateDevice.NVME else None
    key = f"{_Z}.{block}"
    return {
        f"{key}.device": placement.device.value,
        f"{key}.nvme_path": nvme_path,
        f"{key}.pin_memory": placement.pinned,
    }


def _precision(recipe: Recipe) -> dict[str, Any]:
    dtype, stage = recipe.compute_dtype, recipe.sharded_states
    settings: dict[str, Any] = {"communication_data_type": recipe.reduce_dtype.value}
    if dtype is ComputeDtype.BF16:
        settings["bf16.enabled"] = True
        if not recipe.master and stage is not ShardedStates.NOTHING:
            settings |= {
                "bf16.bf16_master_weights_and_grads": True,
                "bf16.bf16_optimizer_states": True,
            }
    elif dtype is ComputeDtype.FP16:
        scaler = recipe.scaler
        settings |= {
            "fp16.enabled": True,
            "fp16.loss_scale": scaler.fixed,
            "fp16.initial_scale_power": scaler.power,
            "fp16.loss_scale_window": scaler.window,
        }
    if dtype is not ComputeDtype.FP32 and recipe.master and stage is not ShardedStates.NOTHING:
        settings["data_types.grad_accum_dtype"] = "fp32"
    if recipe.autocast_dtype is not ComputeDtype.FP32:
        settings |= {
            "torch_autocast.enabled": True,
            "torch_autocast.dtype": recipe.autocast_dtype.value,
        }
    return settings


def _optimizer(recipe: Recipe) -> dict[str, Any]:
    optimizer = recipe.optimizer
    if optimizer is None or optimizer.name == EIGHT_BITS:
        return {}
    prefix = "optimizer.params"
    settings: dict[str, Any] = {
        "optimizer.type": optimizer.name,
        f"{prefix}.lr": optimizer.lr,
        f"{prefix}.weight_decay": optimizer.weight_decay,
    }
    if optimizer.name in _ADAMS:
        settings |= {f"{prefix}.betas": list(optimizer.betas), f"{prefix}.eps": optimizer.eps}
        settings[f"{prefix}.adam_w_mode"] = optimizer.name == "AdamW"
    elif optimizer.momentum:
        settings[f"{prefix}.momentum"] = optimizer.momentum
    if optimizer.name not in _BUILT_IN and recipe.sharded_states is not ShardedStates.NOTHING:
        settings["zero_allow_untested_optimizer"] = True
        if recipe.optimizer_placement.device is not StateDevice.GPU:
            settings["zero_force_ds_cpu_optimizer"] = False
    return settings


def _scheduler(recipe: Recipe) -> dict[str, Any]:
    schedule, optimizer = recipe.schedule, recipe.optimizer
    if schedule.decay is LrDecay.NONE:
        return {}
    prefix = "scheduler.params"
    settings: dict[str, Any] = {
        "scheduler.type": _TYPES[schedule.decay],
        f"{prefix}.warmup_num_steps": max(schedule.warmup_steps, 1),
        f"{prefix}.warmup_type": schedule.warmup.value,
    }
    if schedule.decay is not LrDecay.CONSTANT:
        settings[f"{prefix}.total_num_steps"] = schedule.total_steps
    if schedule.decay is LrDecay.COSINE:
        return settings | {
            f"{prefix}.warmup_min_ratio": schedule.start,
            f"{prefix}.cos_min_ratio": schedule.end,
        }
    rate = optimizer.lr if optimizer else _DEFAULT_LR
    return settings | {
        f"{prefix}.warmup_min_lr": schedule.start * rate,
        f"{prefix}.warmup_max_lr": rate,
    }


def write_deepspeed_json(recipe: Recipe) -> WrittenConfig:
    """Write the file, and list what it cannot express."""
    name = recipe.optimizer.name if recipe.optimizer is not None else ""
    text = json.dumps(deepspeed_settings(recipe), indent=2) + "\n"
    file = ConfigFile(NAME, text, "for deepspeed.initialize(config=...)")
    return WrittenConfig(
        (file,), tuple(_unmapped_settings(recipe, name)), tuple(_warnings(recipe, name))
    )


def _unmapped_settings(recipe: Recipe, name: str) -> Iterator[UnmappedSetting]:
    if recipe.replicas > 1 and recipe.sharded_states is not ShardedStates.NOTHING:
        yield UnmappedSetting(
            f"{recipe.replicas} replicas of {recipe.shards} shards",
            "DeepSpeed 0.19 shards over all ranks (it removed MiCS, which did this): "
            "zero_hpz_partition_size keeps the "
            "weight all-gathers within a group, gradients still cross all links",
        )
    yield from (
        UnmappedSetting(f"{name} parallelism of {getattr(recipe, name)}", why)
        for name, why in _PARALLEL.items()
        if getattr(recipe, name) > 1
    )
    if recipe.recompute.value != "none":
        yield UnmappedSetting(
            f"activation checkpointing ({recipe.recompute})",
            "not in DeepSpeed's JSON: call model.gradient_checkpointing_enable() or "
            "torch.utils.checkpoint",
        )
    if recipe.compiled:
        yield UnmappedSetting(
            "compilation", "not in the JSON: call engine.compile() after deepspeed.initialize"
        )
    if not recipe.master and recipe.compute_dtype is ComputeDtype.FP16:
        yield UnmappedSetting(
            "fp16 weights without an fp32 copy",
            "DeepSpeed supports this only for its CPU optimizer",
        )
    if name == EIGHT_BITS:
        yield UnmappedSetting(
            name, "create it in the script (bitsandbytes) and pass it to deepspeed.initialize"
        )


def _warnings(recipe: Recipe, name: str) -> Iterator[str]:
    if not recipe.micro_batch:
        yield (
            'the micro-batch is unknown: the Trainer and Accelerate replace "auto", DeepSpeed '
            "itself needs a number"
        )
    if name == "Adafactor" and recipe.sharded_states is not ShardedStates.NOTHING:
        yield (
            "ZeRO passes flat shards to the optimizer, in which Adafactor cannot factor rows "
            "and columns"
        )


_PARALLEL = {
    "tensor": "DeepSpeed needs an mpu object or tensor_parallel.autotp_size, and a model that "
    "supports it",
    "pipeline": "DeepSpeed needs a PipelineModule in the script",
    "context": "DeepSpeed has Ulysses instead, configured in the script",
    "expert": "DeepSpeed needs its MoE layers in the script",
}
