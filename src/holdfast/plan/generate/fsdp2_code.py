"""Render FSDP2's training script, which runs as generated with a small example model."""

from __future__ import annotations

from string import Template

from holdfast.plan.generate.fsdp2_parts import (
    BODY,
    EXAMPLE_MODEL,
    HEAD,
    REPLACE,
    SAVE_SHARDS,
    SAVE_WHOLE,
)
from holdfast.plan.generate.recipe import (
    ComputeDtype,
    LrDecay,
    LrSchedule,
    LrWarmup,
    OptimizerValues,
    Recipe,
    ShardedStates,
    StateDevice,
)
from holdfast.plan.setup import ActivationCheckpointing

_DTYPES = {
    ComputeDtype.FP32: "torch.float32",
    ComputeDtype.BF16: "torch.bfloat16",
    ComputeDtype.FP16: "torch.float16",
}


def render_script(recipe: Recipe, optimizer: OptimizerValues) -> str:
    """Return the script; ``optimizer`` is one of torch's."""
    schedule_code = _render_schedule(recipe.schedule)
    parts = [
        Template(HEAD).substitute(
            torchrun=recipe.torchrun,
            imports=_render_imports(recipe),
            constants=_render_constants(recipe, optimizer),
            math="import math\n" if "math." in schedule_code else "",
            policies="CPUOffloadPolicy, " if _is_offloaded(recipe) else "",
            options="StateDictOptions, " if recipe.gather_on_save else "",
        ),
        EXAMPLE_MODEL,
        Template(BODY).substitute(
            shard=_render_sharding(recipe),
            optimizer=_render_optimizer(optimizer),
            schedule=schedule_code,
            step=_render_step(recipe),
            save=SAVE_WHOLE if recipe.gather_on_save else SAVE_SHARDS,
            replace=REPLACE if _wraps_layers(recipe) else "",
            scaler=_render_scaler(recipe),
            backend='"cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"',
        ),
    ]
    return "".join(parts)


def _wraps_layers(recipe: Recipe) -> bool:
    return recipe.recompute is not ActivationCheckpointing.NONE or recipe.offload_activations


def _is_offloaded(recipe: Recipe) -> bool:
    return (
        recipe.optimizer_placement.device is not StateDevice.GPU
        or recipe.parameter_placement.device is not StateDevice.GPU
    )


def _render_imports(recipe: Recipe) -> str:
    lines = []
    if _wraps_layers(recipe):
        names = (
            "checkpoint_wrapper, offload_wrapper"
            if recipe.offload_activations
            else "checkpoint_wrapper"
        )
        lines.append(
            f"from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import {names}\n"
        )
    if not recipe.gather_on_save:
        lines.insert(0, "import torch.distributed.checkpoint as dcp\n")
    return "".join(lines)


def _render_constants(recipe: Recipe, optimizer: OptimizerValues) -> str:
    is_ddp = recipe.sharded_states is ShardedStates.NOTHING
    ranks = recipe.ranks
    replicate, shard = (ranks, 1) if is_ddp else (recipe.replicas, recipe.shards)
    world = 'int(os.environ["WORLD_SIZE"])'
    replicate_text = str(replicate) if replicate else world
    shard_text = str(shard) if shard else f"{world} // REPLICATE"
    return (
        f"REPLICATE = {replicate_text}  # model replicas\n"
        f"SHARD = {shard_text}  # ranks per replica\n"
        f"MICRO_BATCH, ACCUMULATION = {recipe.micro_batch or 1}, {recipe.accumulation}  # per "
        "rank, per step\n"
        f"SEQUENCE = {recipe.sequence or 128}  # tokens\n"
        f"LR = {optimizer.lr!r}\n"
        f"CLIP = {recipe.clipping!r}  # global gradient norm; 0: no clipping\n"
    )


def _render_sharding(recipe: Recipe) -> str:
    """Return the body of ``shard_model(model, mesh, device)``."""
    lines = []
    if not recipe.master:
        lines.append(
            f"model.to({_DTYPES[recipe.compute_dtype]})  # without an fp32 copy for the optimizer"
        )
    param_dtype = (
        None if recipe.compute_dtype is ComputeDtype.FP32 else _DTYPES[recipe.compute_dtype]
    )
    reduce_dtype = (
        _DTYPES[recipe.reduce_dtype]
        if param_dtype or recipe.reduce_dtype is not ComputeDtype.FP32
        else None
    )
    lines.append(
        f"policy = MixedPrecisionPolicy(param_dtype={param_dtype}, reduce_dtype={reduce_dtype})"
    )
    if _is_offloaded(recipe):
        pinned = recipe.optimizer_placement.pinned and recipe.parameter_placement.pinned
        lines.append(
            f'offload = CPUOffloadPolicy(pin_memory={pinned}) if device == "cuda" else '
            "OffloadPolicy()"
        )
    else:
        lines.append("offload = OffloadPolicy()")
    reshard = str(recipe.gather_group or recipe.sharded_states is ShardedStates.PARAMETERS)
    lines.append("for name, layer in layers(model):")
    wrapped = "checkpoint_wrapper(layer)"
    if recipe.offload_activations:
        wrapped = f"offload_wrapper({wrapped})"
    if recipe.recompute is ActivationCheckpointing.SECOND_LAYER:
        wrapped = f'{wrapped} if int(name.rpartition(".")[2]) % 2 else layer'
    if _wraps_layers(recipe):
        lines.append(f"    layer = {wrapped}")
        lines.append("    replace(model, name, layer)")
    if recipe.compiled:
        lines.append("    layer.compile()")
    lines.append("    fully_shard(")
    lines.append(
        "        layer, mesh=mesh, mp_policy=policy, offload_policy=offload, "
        f"reshard_after_forward={reshard}"
    )
    lines.append("    )")
    lines.append("return fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)")
    return "\n    ".join(lines)


def _render_optimizer(optimizer: OptimizerValues) -> str:
    arguments = [f"lr=LR, weight_decay={optimizer.weight_decay!r}"]
    if optimizer.name in ("AdamW", "Adam"):
        arguments.append(
            f'betas={optimizer.betas!r}, eps={optimizer.eps!r}, fused=device == "cuda"'
        )
    if optimizer.name == "SGD":
        arguments.append(f"momentum={optimizer.momentum!r}")
    return f"torch.optim.{optimizer.name}(model.parameters(), {', '.join(arguments)})"


def _render_schedule(schedule: LrSchedule) -> str:
    """Return the body of ``lr_factor(step)``: DeepSpeed's formulas (runtime/lr_schedules.py)."""
    if schedule.decay is LrDecay.NONE:
        return "return 1.0"
    warmup_steps = max(2, schedule.warmup_steps)
    warmup_formula = (
        f"math.log(done + 1) / math.log({warmup_steps})"
        if schedule.warmup is LrWarmup.LOG
        else f"done / {warmup_steps}"
    )
    cosine = schedule.decay is LrDecay.COSINE
    lines = [
        "done = step - 1  # as in DeepSpeed, the first two steps use the initial rate",
        "if done < 0:",
        f"    return {0.0 if cosine else schedule.start!r}",
        f"if done < {warmup_steps}:",
        f"    return {schedule.start!r} + {1 - schedule.start!r} * {warmup_formula}",
    ]
    decay_steps = max(1, schedule.total_steps - warmup_steps)
    if schedule.decay is LrDecay.CONSTANT:
        lines.append("return 1.0")
    elif schedule.decay is LrDecay.LINEAR:
        lines.append(
            f"return {schedule.start!r} + {1 - schedule.start!r} * max(0.0, "
            f"({schedule.total_steps} - done) / {decay_steps})"
        )
    else:
        lines.append(f"along = min(1.0, (done - {warmup_steps} + 1) / {decay_steps})")
        lines.append(
            f"return {schedule.end!r} + {1 - schedule.end!r} * (1 + math.cos(math.pi * along)) / 2"
        )
    return "\n    ".join(lines)


def _render_step(recipe: Recipe) -> str:
    """Return backward of the micro-batches and the optimizer step, for the body of the loop."""
    is_last = "turn == ACCUMULATION - 1"
    lines = []
    if recipe.sharded_states in (ShardedStates.NOTHING, ShardedStates.OPTIMIZER):
        lines.append(
            f"    model.set_requires_gradient_sync({is_last})  # unsharded gradients until then"
        )
    elif recipe.replicas > 1:
        lines.append(
            f"    model.set_requires_all_reduce({is_last})  # across replicas once per step"
        )
    lines.insert(0, f"for {'turn' if lines else '_'} in range(ACCUMULATION):")
    loss = "loss = loss_of(model, next(data).to(device)) / ACCUMULATION"
    if recipe.autocast_dtype is not ComputeDtype.FP32:
        lines.append(f"    with torch.autocast(device, dtype={_DTYPES[recipe.autocast_dtype]}):")
        loss = f"    {loss}"
    lines.append(f"    {loss}")
    fixed = recipe.scaler.fixed if recipe.compute_dtype is ComputeDtype.FP16 else 0.0
    dynamic = recipe.compute_dtype is ComputeDtype.FP16 and not fixed
    lines.append(
        "    scaler.scale(loss).backward()"
        if dynamic
        else f"    ({fixed!r} * loss).backward()"
        if fixed
        else "    loss.backward()"
    )
    lines.append("    total += loss.detach()")
    if dynamic:
        lines.append("scaler.unscale_(optimizer)")
    elif fixed:
        lines += [
            "for weight in model.parameters():",
            "    if weight.grad is not None:",
            f"        weight.grad.div_({fixed!r})",
        ]
    lines += ["if CLIP:", "    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)"]
    lines += ["scaler.step(optimizer)", "scaler.update()"] if dynamic else ["optimizer.step()"]
    return "\n        ".join(lines)


def _render_scaler(recipe: Recipe) -> str:
    """Return fp16's dynamic loss scaler, created before the loop."""
    scaler = recipe.scaler
    if recipe.compute_dtype is not ComputeDtype.FP16 or scaler.fixed:
        return ""
    arguments = f"init_scale=2.0**{scaler.power}, growth_interval={scaler.window}"
    return f"    scaler = torch.amp.GradScaler(device, {arguments})\n"
