"""Read DeepSpeed's JSON into a recipe.

Defaults are DeepSpeed's (runtime/constants.py, runtime/lr_schedules.py, runtime/engine.py of
0.19.8): gradients are clipped at 1.0, "Adam" is AdamW without decay, and warm-ups are logarithmic.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.plan.generate.fields import ConfigReader
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

_Z = "zero_optimization"
_DTYPES = {
    "bf16": ComputeDtype.BF16,
    "bfloat16": ComputeDtype.BF16,
    "torch.bfloat16": ComputeDtype.BF16,
    "fp16": ComputeDtype.FP16,
    "half": ComputeDtype.FP16,
    "float16": ComputeDtype.FP16,
    "torch.float16": ComputeDtype.FP16,
    "fp32": ComputeDtype.FP32,
    "float32": ComputeDtype.FP32,
    "float": ComputeDtype.FP32,
    "torch.float32": ComputeDtype.FP32,
}
_PLACES = {each.value: each for each in StateDevice}
_STAGES = {str(each.value): each for each in ShardedStates} | {
    "false": ShardedStates.NOTHING,
    "true": ShardedStates.OPTIMIZER,
}
_LR_DECAYS = {
    "warmuplr": LrDecay.CONSTANT,
    "warmupdecaylr": LrDecay.LINEAR,
    "warmupcosinelr": LrDecay.COSINE,
}
_LR_WARMUPS = {each.value: each for each in LrWarmup}
#: torch's optimizer names by DeepSpeed's, which differ in name or case.
_TORCH_OPTIMIZERS = {
    "adam": "AdamW",
    "adamw": "AdamW",
    "sgd": "SGD",
    "adagrad": "Adagrad",
    "adafactor": "Adafactor",
    "muon": "Muon",
    "lion": "Lion",
    "lamb": "Lamb",
}
_ADAMS = ("AdamW", "Adam")
_NO_EFFECT = "no effect in this ZeRO stage"
_DEFAULT_LR, _DEFAULT_WARMUP = 1e-3, 1000
_GATHER_ON_SAVE_KEYS = (
    "stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
)  # fmt: skip
#: Digits of a share of the learning rate that survive conversion to a rate and back.
_DIGITS = 15


def read_deepspeed(config: ConfigReader, ranks: int = 0) -> Recipe:
    """Read a configuration; ``ranks`` are the data-parallel ones, 0 if unknown.

    Problems are collected in ``config``.
    """
    stage = (
        config.read_choice(_Z, _STAGES, ShardedStates.NOTHING)
        if _Z in config.values
        else ShardedStates.NOTHING
    )
    stage = config.read_choice(f"{_Z}.stage", _STAGES, stage)
    micro_batch, accumulation, ranks = _read_batch(config, ranks)
    compute_dtype, autocast_dtype = _read_dtype(config), ComputeDtype.FP32
    dtype = config.read_choice("torch_autocast.dtype", _DTYPES, ComputeDtype.BF16)
    if config.read_bool("torch_autocast.enabled"):
        autocast_dtype = dtype
    no_master = config.read_bool("bf16.bf16_master_weights_and_grads")
    config.read_bool("bf16.bf16_optimizer_states")
    optimizer, schedule = _read_optimizer(config)
    return Recipe(
        sharded_states=stage,
        ranks=ranks,
        replicas=_read_replicas(config, stage, ranks),
        gather_group=_read_gather_group(config, stage),
        micro_batch=micro_batch,
        accumulation=accumulation,
        compute_dtype=compute_dtype,
        master=compute_dtype is ComputeDtype.FP32 or not no_master,
        autocast_dtype=autocast_dtype,
        reduce_dtype=config.read_choice("communication_data_type", _DTYPES, compute_dtype),
        clipping=config.read_float("gradient_clipping", 1.0),
        optimizer=optimizer,
        schedule=schedule,
        scaler=LossScaler(
            config.read_float("fp16.loss_scale", 0.0),
            config.read_int("fp16.initial_scale_power", 16),
            config.read_int("fp16.loss_scale_window", 1000, least=1),
        ),
        optimizer_placement=_read_offload(
            config, "offload_optimizer", "cpu_offload", works=stage is not ShardedStates.NOTHING
        ),
        parameter_placement=_read_offload(
            config, "offload_param", "cpu_offload_param", works=stage is ShardedStates.PARAMETERS
        ),
        offload_activations=config.read_bool("activation_checkpointing.cpu_checkpointing"),
        gather_on_save=_read_any_flag(config, *(f"{_Z}.{each}" for each in _GATHER_ON_SAVE_KEYS)),
    )


def _read_any_flag(config: ConfigReader, *keys: str) -> bool:
    """Return whether one of several names of a switch is on; all are read."""
    return True in [config.read_bool(key) for key in keys]


def _read_gather_group(config: ConfigReader, stage: ShardedStates) -> int:
    key = f"{_Z}.zero_hpz_partition_size"
    group_size = config.read_int(key, 1)
    is_effective = config.check_effective(
        key, works=stage is ShardedStates.PARAMETERS, why=_NO_EFFECT
    )
    return group_size if group_size > 1 and is_effective else 0


def _read_replicas(config: ConfigReader, stage: ShardedStates, ranks: int) -> int:
    """Return the replicas of MiCS, which older versions supported."""
    key = f"{_Z}.mics_shard_size"
    shard_size = config.read_int(key, -1, least=-1)
    if shard_size < 1 or not config.check_effective(
        key, works=stage is ShardedStates.PARAMETERS, why=_NO_EFFECT
    ):
        return 1
    if not ranks or ranks % shard_size:
        config.problems.append(
            f"{key} is {shard_size}, which does not divide the ranks ({ranks or 'unknown'})"
        )
        return 1
    return ranks // shard_size


def _read_dtype(config: ConfigReader) -> ComputeDtype:
    bf16 = _read_any_flag(config, "bf16.enabled", "bfloat16.enabled")
    fp16 = config.read_bool("fp16.enabled")
    if bf16 and fp16:
        config.problems.append("bf16.enabled and fp16.enabled are mutually exclusive")
    return ComputeDtype.BF16 if bf16 else ComputeDtype.FP16 if fp16 else ComputeDtype.FP32


def _read_batch(config: ConfigReader, ranks: int) -> tuple[int, int, int]:
    """Return micro-batch, accumulation and ranks; missing values are derived as in DeepSpeed."""
    global_batch = config.read_int("train_batch_size", 0, least=1)
    micro_batch = config.read_int("train_micro_batch_size_per_gpu", 0, least=1)
    accumulation = config.read_int("gradient_accumulation_steps", 0, least=1)
    if (
        global_batch
        and micro_batch
        and accumulation
        and not ranks
        and not global_batch % (micro_batch * accumulation)
    ):
        ranks = global_batch // (micro_batch * accumulation)
    if global_batch and not ranks and not (micro_batch and accumulation):
        config.problems.append(
            "deriving micro-batch and accumulation from train_batch_size needs the number of "
            "ranks (--ranks)"
        )
    if global_batch and ranks:
        if not micro_batch:
            micro_batch, remainder = divmod(global_batch, ranks * (accumulation or 1))
        else:
            remainder = global_batch % (micro_batch * ranks)
        accumulation = (
            accumulation or global_batch // (micro_batch * ranks) if micro_batch else accumulation
        )
        if remainder or global_batch != micro_batch * max(accumulation, 1) * ranks:
            config.problems.append(
                f"train_batch_size is {global_batch}, which is not micro-batch x accumulation x "
                f"{ranks} ranks ({micro_batch or '?'} x {accumulation or 1} x {ranks})"
            )
    elif global_batch and micro_batch and accumulation:
        config.problems.append(
            f"train_batch_size is {global_batch}, which {micro_batch} x {accumulation} does not "
            "divide"
        )
    return micro_batch, max(accumulation, 1), ranks


def _read_offload(config: ConfigReader, block: str, old: str, *, works: bool) -> OffloadPlacement:
    key = f"{_Z}.{block}"
    old_flag = config.read_bool(f"{_Z}.{old}")
    device = config.read_choice(
        f"{key}.device", _PLACES, StateDevice.CPU if old_flag else StateDevice.GPU
    )
    pinned = config.read_bool(f"{key}.pin_memory", default=True)
    path = config.read_text(f"{key}.nvme_path")
    for name in (f"{key}.device", f"{_Z}.{old}"):
        if not config.check_effective(
            name, works=works or device is StateDevice.GPU, why=_NO_EFFECT
        ):
            return OffloadPlacement()
    return (
        OffloadPlacement(device, path if device is StateDevice.NVME else "", pinned)
        if device is not StateDevice.GPU
        else OffloadPlacement()
    )


def _read_optimizer(config: ConfigReader) -> tuple[OptimizerValues | None, LrSchedule]:
    """Return the optimizer (None: created in the script) and the schedule.

    The schedule's learning rate takes precedence.
    """
    kind = config.read_text("optimizer.type")
    prefix = "optimizer.params"
    decoupled = config.read_bool(f"{prefix}.adam_w_mode", default=True)
    name = _TORCH_OPTIMIZERS.get(kind.casefold(), kind)
    if kind.casefold() == "adam" and not decoupled:
        name = "Adam"
    by_torch = name in _ADAMS and config.read_bool(f"{prefix}.torch_adam")
    rate = config.read_float(f"{prefix}.lr", _DEFAULT_LR)
    schedule, rate = _read_schedule(config, rate)
    default_decay = 0.01 if by_torch and name == "AdamW" else 0.0
    optimizer = OptimizerValues(
        name=name,
        lr=rate,
        betas=config.read_pair(f"{prefix}.betas", (0.9, 0.999)),
        eps=config.read_float(f"{prefix}.eps", 1e-8),
        weight_decay=config.read_float(f"{prefix}.weight_decay", default_decay),
        momentum=config.read_float(f"{prefix}.momentum", 0.0),
    )
    return (optimizer if kind else None), schedule


#: Parameters of DeepSpeed's schedules; others are a TypeError at the start.
_SCHEDULE_PARAMETERS: Mapping[LrDecay, frozenset[str]] = {
    decay: frozenset(f"warmup_num_steps warmup_type last_batch_iteration {more}".split())
    for decay, more in (
        (LrDecay.CONSTANT, "warmup_min_lr warmup_max_lr"),
        (LrDecay.LINEAR, "warmup_min_lr warmup_max_lr total_num_steps"),
        (LrDecay.COSINE, "warmup_min_ratio cos_min_ratio total_num_steps"),
    )
}


def _read_schedule(config: ConfigReader, rate: float) -> tuple[LrSchedule, float]:
    """Return the schedule, and the highest learning rate."""
    kind = config.read_text("scheduler.type")
    decay = _LR_DECAYS.get(kind.casefold(), LrDecay.NONE)
    prefix = "scheduler.params"
    warmup_steps = config.read_int(f"{prefix}.warmup_num_steps", _DEFAULT_WARMUP, least=1)
    total_steps = config.read_int(f"{prefix}.total_num_steps", 0)
    warmup = config.read_choice(f"{prefix}.warmup_type", _LR_WARMUPS, LrWarmup.LOG)
    min_rate = config.read_float(f"{prefix}.warmup_min_lr", 0.0)
    default_high = _DEFAULT_LR if decay is LrDecay.LINEAR else rate
    max_rate = config.read_float(f"{prefix}.warmup_max_lr", default_high)
    start_ratio, end = (
        config.read_float(f"{prefix}.warmup_min_ratio", 0.0),
        config.read_float(f"{prefix}.cos_min_ratio", 1e-4),
    )
    if decay is LrDecay.NONE:
        return LrSchedule(), rate
    accepted = _SCHEDULE_PARAMETERS[decay]
    config.problems += [
        f"{key}: {kind} has no such parameter and DeepSpeed does not start; it has "
        f"{', '.join(sorted(accepted))}"
        for key in config.values
        if key.startswith(f"{prefix}.") and key.removeprefix(f"{prefix}.") not in accepted
    ]
    if decay is not LrDecay.CONSTANT and not total_steps:
        config.problems.append(f"{prefix}.total_num_steps is missing")
    if decay is LrDecay.COSINE:
        return LrSchedule(
            decay=decay,
            warmup_steps=warmup_steps,
            total_steps=total_steps,
            warmup=warmup,
            start=start_ratio,
            end=end,
        ), rate
    start = round(min_rate / max_rate, _DIGITS) if max_rate else 0.0
    total_steps = total_steps if decay is LrDecay.LINEAR else 0
    return LrSchedule(
        decay=decay, warmup_steps=warmup_steps, total_steps=total_steps, warmup=warmup, start=start
    ), max_rate
