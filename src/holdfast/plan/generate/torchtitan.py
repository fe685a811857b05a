"""torchtitan's settings: its TOML file, and the flags of versions that have none any more.

TOML was read until version 0.2.2 and commit 4a950eaa of 2026-02-23 (torchtitan/config/job_config.py); since then a
configuration is a function in a model's config_registry.py, whose values flags change: those of commit b5bcd76c of
2026-08-21 (torchtitan/config/configs.py).
"""

from __future__ import annotations

from typing import Any

from holdfast.plan.generate.recipe import Curve, Half, Place, Recipe, Rise, Sharded
from holdfast.plan.generate.written import File, Loss, Written
from holdfast.plan.setup import Recompute, Schedule

NAME, FLAGS = "torchtitan.toml", "torchtitan.sh"
_DTYPES = {Half.FP32: "float32", Half.BF16: "bfloat16", Half.FP16: "bfloat16"}
#: [model] name and flavor, by our names (torchtitan/models/*/__init__.py).
_MODELS = {
    "llama3-8b": ("llama3", "8B"), "llama3.1-8b": ("llama3", "8B"), "llama3-70b": ("llama3", "70B"),
    "llama3.1-70b": ("llama3", "70B"), "llama3.1-405b": ("llama3", "405B"),
}  # fmt: skip
_RECOMPUTE: dict[Recompute, tuple[str, str]] = {
    Recompute.NONE: ("none", "2"),
    Recompute.SELECTIVE: ("selective", "op"),
    Recompute.OPERATIONS: ("selective", "op"),
    Recompute.SECOND_LAYER: ("selective", "2"),
    Recompute.FULL: ("full", "2"),
}
_SCHEDULES = {
    Schedule.GPIPE: "GPipe", Schedule.ONE_F_ONE_B: "1F1B", Schedule.INTERLEAVED: "Interleaved1F1B",
    Schedule.ZERO_BUBBLE: "ZBVZeroBubble",
}  # fmt: skip
#: A norm that no gradient reaches: 0 would not mean "do not clip" but "make them 0".
_NO_CLIPPING = 1e9


def settings(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """The TOML, as tables."""
    made = recipe.descent
    name, flavor = _MODELS.get(recipe.model, ("llama3", "debugmodel"))
    mode, option = _RECOMPUTE[recipe.recompute]
    tables: dict[str, dict[str, Any]] = {"model": {"name": name, "flavor": flavor}}
    if made is not None:
        tables["optimizer"] = {"name": made.name if made.name in ("AdamW", "Adam") else "AdamW", "lr": made.lr,
                               "beta1": made.betas[0], "beta2": made.betas[1], "eps": made.eps,
                               "weight_decay": made.weight_decay}  # fmt: skip
    plan = recipe.schedule
    if plan.curve is not Curve.NONE:
        tables["lr_scheduler"] = {"warmup_steps": plan.warmup_steps, "min_lr_factor": plan.end,
                                  "decay_type": "cosine" if plan.curve is Curve.COSINE else "linear"}  # fmt: skip
        if plan.curve is Curve.CONSTANT:
            tables["lr_scheduler"]["decay_ratio"] = 0.0
    training = _training(recipe)
    training["local_batch_size"] = (recipe.micro_batch or 1) * _in_a_pipeline(recipe)
    if recipe.batch:
        training["global_batch_size"] = recipe.batch
    training["seq_len"] = recipe.sequence or 2048
    tables["training"] = training
    tables["parallelism"] = _parallelism(recipe)
    if recipe.pipeline > 1:
        tables["parallelism"]["pipeline_parallel_microbatch_size"] = recipe.micro_batch or 1
    tables["activation_checkpoint"] = {"mode": mode, "selective_ac_option": option}
    tables["compile"] = {"enable": recipe.compiled}
    return tables


def _in_a_pipeline(recipe: Recipe) -> int:
    """Micro-batches that one call of the schedule takes: all of a step, where there is a pipeline."""
    return recipe.accumulation if recipe.pipeline > 1 else 1


def _training(recipe: Recipe) -> dict[str, Any]:
    """What both forms have."""
    found: dict[str, Any] = {
        "max_norm": recipe.clipping or _NO_CLIPPING,
        "enable_cpu_offload": _away(recipe),
        "dtype": "float32" if recipe.master else "bfloat16",
        "mixed_precision_param": _DTYPES[recipe.half],
        "mixed_precision_reduce": "float32",
    }
    if recipe.schedule.total_steps:
        found["steps"] = recipe.schedule.total_steps
    return found


def _away(recipe: Recipe) -> bool:
    return any(place.device is not Place.GPU for place in (recipe.optimizer_on, recipe.parameters_on))


def _parallelism(recipe: Recipe) -> dict[str, Any]:
    whole = recipe.sharded is Sharded.NOTHING
    return {
        "data_parallel_replicate_degree": recipe.ranks or 1 if whole else recipe.replicas,
        "data_parallel_shard_degree": 1 if whole else recipe.shards or -1,
        "fsdp_reshard_after_forward": "always" if recipe.sharded is Sharded.PARAMETERS else "never",
        "tensor_parallel_degree": recipe.tensor,
        "pipeline_parallel_degree": recipe.pipeline,
        "pipeline_parallel_schedule": _SCHEDULES[recipe.pipeline_schedule],
        "context_parallel_degree": recipe.context,
        "expert_parallel_degree": recipe.expert,
    }


def write(recipe: Recipe) -> Written:
    """Both forms, and what they cannot say."""
    text = "".join(f"[{table}]\n{_lines(values)}\n" for table, values in settings(recipe).items())
    files = (
        File(NAME, text.rstrip("\n") + "\n", "for torchtitan up to 0.2.2: CONFIG_FILE=torchtitan.toml ./run_train.sh"),
        File(FLAGS, _flags(recipe), "for torchtitan since 2026-02-23, which reads no TOML; in its folder"),
    )
    return Written(files, _losses(recipe), _warnings(recipe))


def _lines(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _flags(recipe: Recipe) -> str:
    """A command: tyro writes a switch that is off as --no-name."""
    name, flavor = _MODELS.get(recipe.model, ("llama3", "debugmodel"))
    tokens = (recipe.micro_batch or 1) * (recipe.sequence or 2048)
    training = {
        "num_tokens_per_microbatch_per_dp_rank": tokens,
        "max_context_length": recipe.sequence or 2048,
    }
    if recipe.ranks:
        training["num_tokens_per_train_step"] = recipe.ranks * tokens * recipe.accumulation
    parallelism = _parallelism(recipe) | {"num_pp_microbatches": _in_a_pipeline(recipe)}
    sections = {"training": training | _training(recipe), "parallelism": parallelism,
                "compile": {"enable": recipe.compiled}}  # fmt: skip
    lines = [f"MODULE={name} CONFIG={name}_{flavor.lower()} ./run_train.sh"]
    for section, values in sections.items():
        for key, value in values.items():
            if isinstance(value, bool):
                lines.append(f"--{section}.{'' if value else 'no-'}{key}")
            else:
                lines.append(f"--{section}.{key} {value}")
    return " \\\n    ".join(lines) + "\n"


def _losses(recipe: Recipe) -> tuple[Loss, ...]:
    losses = []
    if recipe.model not in _MODELS:
        losses.append(Loss(f"the model {recipe.model[:50] or '(none is named)'}",
                           "torchtitan has its own models: write name and flavor of yours into [model]"))  # fmt: skip
    if recipe.half is Half.FP16:
        losses.append(
            Loss("fp16", "torchtitan computes in bfloat16 or float32 alone, and scales no loss: bfloat16 stands there")
        )
    if recipe.half is not Half.FP32 and recipe.reduced is not Half.FP32:
        losses.append(Loss(f"gradients reduced in {recipe.reduced}", "torchtitan reduces in float32 alone"))
    made = recipe.descent
    if made is not None and made.name not in ("AdamW", "Adam"):
        losses.append(Loss(f"the optimizer {made.name[:50]}", "torchtitan's file knows Adam and AdamW"))
    if recipe.kept_among:
        losses.append(Loss(f"weights kept in groups of {recipe.kept_among}",
                           "torchtitan's fsdp_reshard_after_forward is always or never"))  # fmt: skip
    if Place.NVME in (recipe.optimizer_on.device, recipe.parameters_on.device):
        losses.append(Loss("NVMe", "FSDP2 offloads to the host's memory alone: it goes there"))
    return tuple(losses)


def _warnings(recipe: Recipe) -> tuple[str, ...]:
    said = []
    if _counts_otherwise(recipe):
        said.append("torchtitan warms up linearly and decays over all steps after it: look at the first and last rates")
    if recipe.descent is not None:
        said.append(f"{FLAGS} does not say the optimizer's values: they stand in the configuration's function")
    if recipe.recompute is not Recompute.NONE:
        said.append(
            f"{FLAGS} does not say what is recomputed: activation_checkpoint is a class there (FullAC, SelectiveAC)"
        )
    return tuple(said)


def _counts_otherwise(recipe: Recipe) -> bool:
    return recipe.schedule.curve is not Curve.NONE and (recipe.schedule.rise is Rise.LOG or bool(recipe.schedule.start))
