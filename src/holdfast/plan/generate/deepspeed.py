"""DeepSpeed's JSON, written from a recipe; ``deepspeed_read`` reads it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.plan.generate.fields import AUTO, nested
from holdfast.plan.generate.recipe import EIGHT_BITS, Curve, Half, Offloaded, Place, Recipe, Sharded
from holdfast.plan.generate.written import File, Loss, Written

NAME = "deepspeed.json"
_Z = "zero_optimization"
_TYPES = {Curve.CONSTANT: "WarmupLR", Curve.LINEAR: "WarmupDecayLR", Curve.COSINE: "WarmupCosineLR"}
#: DeepSpeed has its own; others of torch's have to be allowed.
_OURS = ("AdamW", "Adam", "Adagrad", "Muon", "Lion", "Lamb")
_ADAMS = ("AdamW", "Adam")
_USUAL_LR = 1e-3
#: Numbers in a bucket, by default: said, because it is what memory is tuned with.
_BUCKET = 500_000_000


def settings(recipe: Recipe) -> dict[str, Any]:
    """The JSON, as a mapping."""
    stage = recipe.sharded
    batch = recipe.batch or None
    flat: dict[str, Any] = {
        "train_batch_size": batch,
        "train_micro_batch_size_per_gpu": recipe.micro_batch or AUTO,
        "gradient_accumulation_steps": recipe.accumulation,
        "gradient_clipping": recipe.clipping,
        f"{_Z}.stage": int(stage),
    }
    if stage is not Sharded.NOTHING:
        flat |= {f"{_Z}.overlap_comm": True, f"{_Z}.contiguous_gradients": True,
                 f"{_Z}.reduce_bucket_size": _BUCKET, f"{_Z}.allgather_bucket_size": _BUCKET}  # fmt: skip
        flat |= _place("offload_optimizer", recipe.optimizer_on)
    if stage is Sharded.PARAMETERS:
        flat |= _place("offload_param", recipe.parameters_on)
        flat[f"{_Z}.zero_hpz_partition_size"] = recipe.kept_among or None
        flat[f"{_Z}.stage3_gather_16bit_weights_on_model_save"] = recipe.whole_save
    flat |= _precision(recipe)
    if recipe.recomputed_on_cpu:
        flat["activation_checkpointing.cpu_checkpointing"] = True
    return nested(flat | _optimizer(recipe) | _scheduler(recipe))


def _place(block: str, place: Offloaded) -> dict[str, Any]:
    if place.device is Place.GPU:
        return {}
    path = place.path or "/local_nvme" if place.device is Place.NVME else None
    key = f"{_Z}.{block}"
    return {f"{key}.device": place.device.value, f"{key}.nvme_path": path, f"{key}.pin_memory": place.pinned}


def _precision(recipe: Recipe) -> dict[str, Any]:
    half, stage = recipe.half, recipe.sharded
    flat: dict[str, Any] = {"communication_data_type": recipe.reduced.value}
    if half is Half.BF16:
        flat["bf16.enabled"] = True
        if not recipe.master and stage is not Sharded.NOTHING:
            flat |= {"bf16.bf16_master_weights_and_grads": True, "bf16.bf16_optimizer_states": True}
    elif half is Half.FP16:
        scale = recipe.scaler
        flat |= {"fp16.enabled": True, "fp16.loss_scale": scale.fixed, "fp16.initial_scale_power": scale.power,
                 "fp16.loss_scale_window": scale.window}  # fmt: skip
    if half is not Half.FP32 and recipe.master and stage is not Sharded.NOTHING:
        flat["data_types.grad_accum_dtype"] = "fp32"
    if recipe.autocast is not Half.FP32:
        flat |= {"torch_autocast.enabled": True, "torch_autocast.dtype": recipe.autocast.value}
    return flat


def _optimizer(recipe: Recipe) -> dict[str, Any]:
    made = recipe.descent
    if made is None or made.name == EIGHT_BITS:
        return {}
    values = "optimizer.params"
    flat: dict[str, Any] = {
        "optimizer.type": made.name,
        f"{values}.lr": made.lr,
        f"{values}.weight_decay": made.weight_decay,
    }
    if made.name in _ADAMS:
        flat |= {f"{values}.betas": list(made.betas), f"{values}.eps": made.eps}
        flat[f"{values}.adam_w_mode"] = made.name == "AdamW"
    elif made.momentum:
        flat[f"{values}.momentum"] = made.momentum
    if made.name not in _OURS and recipe.sharded is not Sharded.NOTHING:
        flat["zero_allow_untested_optimizer"] = True
        if recipe.optimizer_on.device is not Place.GPU:
            flat["zero_force_ds_cpu_optimizer"] = False
    return flat


def _scheduler(recipe: Recipe) -> dict[str, Any]:
    plan, made = recipe.schedule, recipe.descent
    if plan.curve is Curve.NONE:
        return {}
    values = "scheduler.params"
    flat: dict[str, Any] = {
        "scheduler.type": _TYPES[plan.curve],
        f"{values}.warmup_num_steps": max(plan.warmup_steps, 1),
        f"{values}.warmup_type": plan.rise.value,
    }
    if plan.curve is not Curve.CONSTANT:
        flat[f"{values}.total_num_steps"] = plan.total_steps
    if plan.curve is Curve.COSINE:
        return flat | {f"{values}.warmup_min_ratio": plan.start, f"{values}.cos_min_ratio": plan.end}
    rate = made.lr if made else _USUAL_LR
    return flat | {f"{values}.warmup_min_lr": plan.start * rate, f"{values}.warmup_max_lr": rate}


def write(recipe: Recipe) -> Written:
    """The file, and what it cannot say."""
    losses = []
    if recipe.replicas > 1 and recipe.sharded is not Sharded.NOTHING:
        losses.append(Loss(
            f"{recipe.replicas} replicas of {recipe.shards} shards",
            "DeepSpeed 0.19 shards over all ranks (it removed MiCS, which did this): zero_hpz_partition_size keeps the "
            "gathering of weights inside a group, gradients still cross all links",
        ))  # fmt: skip
    losses += [
        Loss(f"{name} parallelism of {getattr(recipe, name)}", why)
        for name, why in _PARALLEL.items()
        if getattr(recipe, name) > 1
    ]
    if recipe.recompute.value != "none":
        losses.append(Loss(
            f"recomputation ({recipe.recompute})",
            "DeepSpeed's JSON turns none on: call model.gradient_checkpointing_enable(), or torch.utils.checkpoint",
        ))  # fmt: skip
    if recipe.compiled:
        losses.append(Loss("compilation", "call engine.compile() after deepspeed.initialize: the JSON has no switch"))
    if not recipe.master and recipe.half is Half.FP16:
        losses.append(Loss("fp16 weights without an fp32 copy", "DeepSpeed has that for its CPU optimizer alone"))
    name = recipe.descent.name if recipe.descent is not None else ""
    if name == EIGHT_BITS:
        losses.append(Loss(name, "make it in the script (bitsandbytes) and give it to deepspeed.initialize"))
    text = json.dumps(settings(recipe), indent=2) + "\n"
    file = File(NAME, text, "for deepspeed.initialize(config=...)")
    return Written((file,), tuple(losses), tuple(_warnings(recipe, name)))


def _warnings(recipe: Recipe, name: str) -> Iterator[str]:
    if not recipe.micro_batch:
        yield 'the micro-batch is not known: the Trainer and Accelerate fill "auto" in, DeepSpeed wants a number'
    if name == "Adafactor" and recipe.sharded is not Sharded.NOTHING:
        yield "ZeRO gives optimizers flat shares of the weights, of which Adafactor cannot factor rows and columns"


_PARALLEL = {
    "tensor": "DeepSpeed takes it from an mpu object or tensor_parallel.autotp_size, and the model has to fit",
    "pipeline": "DeepSpeed takes it from a PipelineModule in the script",
    "context": "DeepSpeed has Ulysses instead, set up in the script",
    "expert": "DeepSpeed takes it from its MoE layers in the script",
}
