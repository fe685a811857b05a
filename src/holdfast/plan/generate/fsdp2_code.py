"""The script of FSDP2: runs as it stands, with a small model in the place of the user's."""

from __future__ import annotations

from string import Template

from holdfast.plan.generate.fsdp2_parts import BODY, HEAD, REPLACE, SAVE_SHARDS, SAVE_WHOLE, STAND_IN
from holdfast.plan.generate.recipe import Curve, Descent, Half, Place, Rates, Recipe, Rise, Sharded
from holdfast.plan.setup import Recompute

_DTYPES = {Half.FP32: "torch.float32", Half.BF16: "torch.bfloat16", Half.FP16: "torch.float16"}


def code(recipe: Recipe, made: Descent) -> str:
    """The text of the script; ``made`` is the optimizer in it, one that torch has."""
    curve = _schedule(recipe.schedule)
    parts = [
        Template(HEAD).substitute(
            imports=_imports(recipe), constants=_constants(recipe, made),
            math="import math\n" if "math." in curve else "", policies="CPUOffloadPolicy, " if _away(recipe) else "",
            options="StateDictOptions, " if recipe.whole_save else "",
        ),
        STAND_IN,
        Template(BODY).substitute(
            shard=_sharding(recipe), optimizer=_optimizer(made), schedule=curve,
            step=_step(recipe), save=SAVE_WHOLE if recipe.whole_save else SAVE_SHARDS,
            replace=REPLACE if _wraps(recipe) else "", scaler=_scaler(recipe),
            backend='"cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"',
        ),
    ]  # fmt: skip
    return "".join(parts)


def _wraps(recipe: Recipe) -> bool:
    return recipe.recompute is not Recompute.NONE or recipe.recomputed_on_cpu


def _away(recipe: Recipe) -> bool:
    return recipe.optimizer_on.device is not Place.GPU or recipe.parameters_on.device is not Place.GPU


def _imports(recipe: Recipe) -> str:
    lines = []
    if _wraps(recipe):
        names = "checkpoint_wrapper, offload_wrapper" if recipe.recomputed_on_cpu else "checkpoint_wrapper"
        lines.append(f"from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import {names}\n")
    if not recipe.whole_save:
        lines.insert(0, "import torch.distributed.checkpoint as dcp\n")
    return "".join(lines)


def _constants(recipe: Recipe, made: Descent) -> str:
    whole = recipe.sharded is Sharded.NOTHING
    ranks = recipe.ranks
    replicate, shard = (ranks, 1) if whole else (recipe.replicas, recipe.shards)
    world = 'int(os.environ["WORLD_SIZE"])'
    replicate_text = str(replicate) if replicate else world
    shard_text = str(shard) if shard else f"{world} // REPLICATE"
    return (
        f"REPLICATE = {replicate_text}  # copies of the model\n"
        f"SHARD = {shard_text}  # ranks that share one copy\n"
        f"MICRO_BATCH, ACCUMULATION = {recipe.micro_batch or 1}, {recipe.accumulation}  # of a rank, a step\n"
        f"SEQUENCE = {recipe.sequence or 128}  # tokens\n"
        f"LR = {made.lr!r}\n"
        f"CLIP = {recipe.clipping!r}  # of the gradients' norm over all shards; 0: none\n"
    )


def _sharding(recipe: Recipe) -> str:
    """The body of ``sharded(model, mesh, device)``."""
    lines = []
    if not recipe.master:
        lines.append(f"model.to({_DTYPES[recipe.half]})  # there is no fp32 copy for the optimizer")
    param = None if recipe.half is Half.FP32 else _DTYPES[recipe.half]
    reduce = _DTYPES[recipe.reduced] if param or recipe.reduced is not Half.FP32 else None
    lines.append(f"policy = MixedPrecisionPolicy(param_dtype={param}, reduce_dtype={reduce})")
    if _away(recipe):
        pinned = recipe.optimizer_on.pinned and recipe.parameters_on.pinned
        lines.append(f'offload = CPUOffloadPolicy(pin_memory={pinned}) if device == "cuda" else OffloadPolicy()')
    else:
        lines.append("offload = OffloadPolicy()")
    again = str(recipe.kept_among or recipe.sharded is Sharded.PARAMETERS)
    lines.append("for name, layer in layers(model):")
    wrapped = "checkpoint_wrapper(layer)"
    if recipe.recomputed_on_cpu:
        wrapped = f"offload_wrapper({wrapped})"
    if recipe.recompute is Recompute.SECOND_LAYER:
        wrapped = f'{wrapped} if int(name.rpartition(".")[2]) % 2 else layer'
    if _wraps(recipe):
        lines.append(f"    layer = {wrapped}")
        lines.append("    replace(model, name, layer)")
    if recipe.compiled:
        lines.append("    layer.compile()")
    lines.append("    fully_shard(")
    lines.append(f"        layer, mesh=mesh, mp_policy=policy, offload_policy=offload, reshard_after_forward={again}")
    lines.append("    )")
    lines.append("return fully_shard(model, mesh=mesh, mp_policy=policy, offload_policy=offload)")
    return "\n    ".join(lines)


def _optimizer(made: Descent) -> str:
    values = [f"lr=LR, weight_decay={made.weight_decay!r}"]
    if made.name in ("AdamW", "Adam"):
        values.append(f'betas={made.betas!r}, eps={made.eps!r}, fused=device == "cuda"')
    if made.name == "SGD":
        values.append(f"momentum={made.momentum!r}")
    return f"torch.optim.{made.name}(model.parameters(), {', '.join(values)})"


def _schedule(plan: Rates) -> str:
    """The body of ``factor(step)``: DeepSpeed's formulas (runtime/lr_schedules.py)."""
    if plan.curve is Curve.NONE:
        return "return 1.0"
    warmup = max(2, plan.warmup_steps)
    rise = f"math.log(done + 1) / math.log({warmup})" if plan.rise is Rise.LOG else f"done / {warmup}"
    cosine = plan.curve is Curve.COSINE
    lines = [
        "done = step - 1  # the first two steps are at the start, as DeepSpeed counts",
        "if done < 0:",
        f"    return {0.0 if cosine else plan.start!r}",
        f"if done < {warmup}:",
        f"    return {plan.start!r} + {1 - plan.start!r} * {rise}",
    ]
    left = max(1, plan.total_steps - warmup)
    if plan.curve is Curve.CONSTANT:
        lines.append("return 1.0")
    elif plan.curve is Curve.LINEAR:
        lines.append(f"return {plan.start!r} + {1 - plan.start!r} * max(0.0, ({plan.total_steps} - done) / {left})")
    else:
        lines.append(f"along = min(1.0, (done - {warmup} + 1) / {left})")
        lines.append(f"return {plan.end!r} + {1 - plan.end!r} * (1 + math.cos(math.pi * along)) / 2")
    return "\n    ".join(lines)


def _step(recipe: Recipe) -> str:
    """Backward of the micro-batches and the optimizer's step, in the body of the loop."""
    last = "turn == ACCUMULATION - 1"
    lines = []
    if recipe.sharded in (Sharded.NOTHING, Sharded.OPTIMIZER):
        lines.append(f"    model.set_requires_gradient_sync({last})  # whole gradients until then")
    elif recipe.replicas > 1:
        lines.append(f"    model.set_requires_all_reduce({last})  # among copies once a step")
    lines.insert(0, f"for {'turn' if lines else '_'} in range(ACCUMULATION):")
    loss = "loss = loss_of(model, next(data).to(device)) / ACCUMULATION"
    if recipe.autocast is not Half.FP32:
        lines.append(f"    with torch.autocast(device, dtype={_DTYPES[recipe.autocast]}):")
        loss = f"    {loss}"
    lines.append(f"    {loss}")
    fixed = recipe.scaler.fixed if recipe.half is Half.FP16 else 0.0
    dynamic = recipe.half is Half.FP16 and not fixed
    lines.append("    scaler.scale(loss).backward()" if dynamic else f"    ({fixed!r} * loss).backward()" if fixed
                 else "    loss.backward()")  # fmt: skip
    lines.append("    total += loss.detach()")
    if dynamic:
        lines.append("scaler.unscale_(optimizer)")
    elif fixed:
        lines += ["for weight in model.parameters():", "    if weight.grad is not None:",
                  f"        weight.grad.div_({fixed!r})"]  # fmt: skip
    lines += ["if CLIP:", "    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)"]
    lines += ["scaler.step(optimizer)", "scaler.update()"] if dynamic else ["optimizer.step()"]
    return "\n        ".join(lines)


def _scaler(recipe: Recipe) -> str:
    """fp16's dynamic loss scale, before the loop."""
    scale = recipe.scaler
    if recipe.half is not Half.FP16 or scale.fixed:
        return ""
    values = f"init_scale=2.0**{scale.power}, growth_interval={scale.window}"
    return f"    scaler = torch.amp.GradScaler(device, {values})\n"
