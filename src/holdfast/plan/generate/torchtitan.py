"""torchtitan's settings: its TOML file, and the flags of versions without TOML.

TOML was supported until version 0.2.2 and commit 4a950eaa of 2026-02-23
(torchtitan/config/job_config.py). Since then a configuration is a function in a model's
config_registry.py, whose values flags override: those of commit b5bcd76c of 2026-08-21
(torchtitan/config/configs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.plan.generate.generated import ConfigFile, UnmappedSetting, WrittenConfig
from holdfast.plan.generate.recipe import (
    ComputeDtype,
    LrDecay,
    LrWarmup,
    Recipe,
    ShardedStates,
    StateDevice,
)
from holdfast.plan.setup import ActivationCheckpointing, PipelineSchedule

NAME, FLAGS = "torchtitan.toml", "torchtitan.sh"
_DTYPES = {
    ComputeDtype.FP32: "float32",
    ComputeDtype.BF16: "bfloat16",
    ComputeDtype.FP16: "bfloat16",
}
#: [model] name and flavor, by holdfast's names (torchtitan/models/*/__init__.py).
_MODELS = {
    "llama3-8b": ("llama3", "8B"), "llama3.1-8b": ("llama3", "8B"), "llama3-70b": ("llama3", "70B"),
    "llama3.1-70b": ("llama3", "70B"), "llama3.1-405b": ("llama3", "405B"),
}  # fmt: skip
_RECOMPUTE: dict[ActivationCheckpointing, tuple[str, str]] = {
    ActivationCheckpointing.NONE: ("none", "2"),
    ActivationCheckpointing.SELECTIVE: ("selective", "op"),
    ActivationCheckpointing.OPERATIONS: ("selective", "op"),
    ActivationCheckpointing.SECOND_LAYER: ("selective", "2"),
    ActivationCheckpointing.FULL: ("full", "2"),
}
_SCHEDULES = {
    PipelineSchedule.GPIPE: "GPipe",
    PipelineSchedule.ONE_F_ONE_B: "1F1B",
    PipelineSchedule.INTERLEAVED: "Interleaved1F1B",
    PipelineSchedule.ZERO_BUBBLE: "ZBVZeroBubble",
}
#: An unreachable norm: 0 would set gradients to 0 instead of disabling clipping.
_NO_CLIPPING = 1e9


def torchtitan_settings(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return the TOML as tables."""
    optimizer = recipe.optimizer
    name, flavor = _MODELS.get(recipe.model, ("llama3", "debugmodel"))
    mode, option = _RECOMPUTE[recipe.recompute]
    tables: dict[str, dict[str, Any]] = {"model": {"name": name, "flavor": flavor}}
    if optimizer is not None:
        tables["optimizer"] = {
            "name": optimizer.name if optimizer.name in ("AdamW", "Adam") else "AdamW",
            "lr": optimizer.lr,
            "beta1": optimizer.betas[0],
            "beta2": optimizer.betas[1],
            "eps": optimizer.eps,
            "weight_decay": optimizer.weight_decay,
        }
    schedule = recipe.schedule
    if schedule.decay is not LrDecay.NONE:
        tables["lr_scheduler"] = {
            "warmup_steps": schedule.warmup_steps,
            "min_lr_factor": schedule.end,
            "decay_type": "cosine" if schedule.decay is LrDecay.COSINE else "linear",
        }
        if schedule.decay is LrDecay.CONSTANT:
            tables["lr_scheduler"]["decay_ratio"] = 0.0
    training = _training_settings(recipe)
    training["local_batch_size"] = (recipe.micro_batch or 1) * _micro_batches_per_call(recipe)
    if recipe.batch:
        training["global_batch_size"] = recipe.batch
    training["seq_len"] = recipe.sequence or 2048
    tables["training"] = training
    tables["parallelism"] = _parallelism_settings(recipe)
    if recipe.pipeline > 1:
        tables["parallelism"]["pipeline_parallel_microbatch_size"] = recipe.micro_batch or 1
    tables["activation_checkpoint"] = {"mode": mode, "selective_ac_option": option}
    tables["compile"] = {"enable": recipe.compiled}
    return tables


def _micro_batches_per_call(recipe: Recipe) -> int:
    """Return the micro-batches per call of the schedule: all of a step with a pipeline."""
    return recipe.accumulation if recipe.pipeline > 1 else 1


def _training_settings(recipe: Recipe) -> dict[str, Any]:
    """Return the settings common to both forms."""
    settings: dict[str, Any] = {
        "max_norm": recipe.clipping or _NO_CLIPPING,
        "enable_cpu_offload": _is_offloaded(recipe),
        "dtype": "float32" if recipe.master else "bfloat16",
        "mixed_precision_param": _DTYPES[recipe.compute_dtype],
        "mixed_precision_reduce": "float32",
    }
    if recipe.schedule.total_steps:
        settings["steps"] = recipe.schedule.total_steps
    return settings


def _is_offloaded(recipe: Recipe) -> bool:
    return any(
        placement.device is not StateDevice.GPU
        for placement in (recipe.optimizer_placement, recipe.parameter_placement)
    )


def _parallelism_settings(recipe: Recipe) -> dict[str, Any]:
    is_ddp = recipe.sharded_states is ShardedStates.NOTHING
    return {
        "data_parallel_replicate_degree": recipe.ranks or 1 if is_ddp else recipe.replicas,
        "data_parallel_shard_degree": 1 if is_ddp else recipe.shards or -1,
        "fsdp_reshard_after_forward": "always"
        if recipe.sharded_states is ShardedStates.PARAMETERS
        else "never",
        "tensor_parallel_degree": recipe.tensor,
        "pipeline_parallel_degree": recipe.pipeline,
        "pipeline_parallel_schedule": _SCHEDULES[recipe.pipeline_schedule],
        "context_parallel_degree": recipe.context,
        "expert_parallel_degree": recipe.expert,
    }


def write_torchtitan(recipe: Recipe) -> WrittenConfig:
    """Write both forms, and list what they cannot express."""
    text = "".join(
        f"[{table}]\n{_lines(values)}\n" for table, values in torchtitan_settings(recipe).items()
    )
    files = (
        ConfigFile(
            NAME,
            text.rstrip("\n") + "\n",
            "for torchtitan up to 0.2.2: CONFIG_FILE=torchtitan.toml ./run_train.sh",
        ),
        ConfigFile(
            FLAGS,
            _flags(recipe),
            "for torchtitan since 2026-02-23, without TOML; run in its directory",
        ),
    )
    return WrittenConfig(files, tuple(_unmapped_settings(recipe)), tuple(_warnings(recipe)))


def _lines(values: dict[str, Any]) -> str:
    return "".join(f"{name} = {_toml(value)}\n" for name, value in values.items())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def _flags(recipe: Recipe) -> str:
    """Return a command; tyro writes disabled switches as --no-name."""
    name, flavor = _MODELS.get(recipe.model, ("llama3", "debugmodel"))
    tokens = (recipe.micro_batch or 1) * (recipe.sequence or 2048)
    training = {
        "num_tokens_per_microbatch_per_dp_rank": tokens,
        "max_context_length": recipe.sequence or 2048,
    }
    if recipe.ranks:
        training["num_tokens_per_train_step"] = recipe.ranks * tokens * recipe.accumulation
    parallelism = _parallelism_settings(recipe) | {
        "num_pp_microbatches": _micro_batches_per_call(recipe)
    }
    sections = {
        "training": training | _training_settings(recipe),
        "parallelism": parallelism,
        "compile": {"enable": recipe.compiled},
    }
    ranks = f"NGPU={recipe.world_size} " if recipe.world_size and recipe.hosts == 1 else ""
    lines = [f"{ranks}MODULE={name} CONFIG={name}_{flavor.lower()} ./run_train.sh"]
    for section, values in sections.items():
        for key, value in values.items():
            if isinstance(value, bool):
                lines.append(f"--{section}.{'' if value else 'no-'}{key}")
            else:
                lines.append(f"--{section}.{key} {value}")
    return " \\\n    ".join(lines) + "\n"


def _unmapped_settings(recipe: Recipe) -> Iterator[UnmappedSetting]:
    if recipe.model not in _MODELS:
        yield UnmappedSetting(
            f"the model {recipe.model[:50] or '(unnamed)'}",
            "torchtitan has its own models: set name and flavor in [model]",
        )
    if recipe.compute_dtype is ComputeDtype.FP16:
        yield UnmappedSetting(
            "fp16",
            "torchtitan supports only bfloat16 and float32, without loss scaling: bfloat16 "
            "is written",
        )
    if (
        recipe.compute_dtype is not ComputeDtype.FP32
        and recipe.reduce_dtype is not ComputeDtype.FP32
    ):
        yield UnmappedSetting(
            f"gradients reduced in {recipe.reduce_dtype}", "torchtitan reduces only in float32"
        )
    optimizer = recipe.optimizer
    if optimizer is not None and optimizer.name not in ("AdamW", "Adam"):
        yield UnmappedSetting(
            f"the optimizer {optimizer.name[:50]}", "torchtitan supports only Adam and AdamW"
        )
    if recipe.gather_group:
        yield UnmappedSetting(
            f"weights gathered in groups of {recipe.gather_group}",
            "torchtitan's fsdp_reshard_after_forward is always or never",
        )
    if StateDevice.NVME in (recipe.optimizer_placement.device, recipe.parameter_placement.device):
        yield UnmappedSetting("NVMe", "FSDP2 offloads only to host memory, which is used instead")


def _warnings(recipe: Recipe) -> Iterator[str]:
    if _has_other_schedule(recipe):
        yield (
            "torchtitan warms up linearly and decays over all later steps: check the first and "
            "last rates"
        )
    if recipe.optimizer is not None:
        yield (f"{FLAGS} lacks the optimizer's values: set them in the configuration function")
    if recipe.recompute is not ActivationCheckpointing.NONE:
        yield (
            f"{FLAGS} lacks activation checkpointing: set its class (FullAC, SelectiveAC) in "
            "the configuration function"
        )


def _has_other_schedule(recipe: Recipe) -> bool:
    return recipe.schedule.decay is not LrDecay.NONE and (
        recipe.schedule.warmup is LrWarmup.LOG or bool(recipe.schedule.start)
    )
