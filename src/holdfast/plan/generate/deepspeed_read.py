"""Reads DeepSpeed's JSON into a recipe.

Defaults are DeepSpeed's own (runtime/constants.py, runtime/lr_schedules.py, runtime/engine.py of 0.19.8): gradients are
clipped at 1.0, "Adam" is AdamW without decay, and schedules rise by logarithm, where nothing else is said.
"""

from __future__ import annotations

from holdfast.plan.generate.fields import Fields
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

_Z = "zero_optimization"
_HALVES = {"bf16": Half.BF16, "bfloat16": Half.BF16, "torch.bfloat16": Half.BF16, "fp16": Half.FP16, "half": Half.FP16,
           "float16": Half.FP16, "torch.float16": Half.FP16, "fp32": Half.FP32, "float32": Half.FP32,
           "float": Half.FP32, "torch.float32": Half.FP32}  # fmt: skip
_PLACES = {each.value: each for each in Place}
_STAGES = {str(each.value): each for each in Sharded} | {"false": Sharded.NOTHING, "true": Sharded.OPTIMIZER}
_CURVES = {"warmuplr": Curve.CONSTANT, "warmupdecaylr": Curve.LINEAR, "warmupcosinelr": Curve.COSINE}
_RISES = {each.value: each for each in Rise}
#: Names of torch's optimizers that DeepSpeed's own have under another, or under the same in other letters.
_TORCH = {"adam": "AdamW", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad", "adafactor": "Adafactor",
          "muon": "Muon", "lion": "Lion", "lamb": "Lamb"}  # fmt: skip
_ADAMS = ("AdamW", "Adam")
_STAGE = "it has no effect in this stage of ZeRO"
_USUAL_LR, _USUAL_WARMUP = 1e-3, 1000
_WHOLE_SAVE = (
    "stage3_gather_16bit_weights_on_model_save", "gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
)  # fmt: skip
#: Digits that a share of the learning rate keeps on its way from a rate and back.
_DIGITS = 15


def read(fields: Fields, ranks: int = 0) -> Recipe:
    """What a configuration means; ``ranks`` are data-parallel ones, 0 where that is not known.

    What is wrong is noted in ``fields``.
    """
    stage = fields.word(_Z, _STAGES, Sharded.NOTHING) if _Z in fields.given else Sharded.NOTHING
    stage = fields.word(f"{_Z}.stage", _STAGES, stage)
    micro, rounds, ranks = _batch(fields, ranks)
    half, autocast = _half(fields), Half.FP32
    dtype = fields.word("torch_autocast.dtype", _HALVES, Half.BF16)
    if fields.flag("torch_autocast.enabled"):
        autocast = dtype
    bare = fields.flag("bf16.bf16_master_weights_and_grads")
    fields.flag("bf16.bf16_optimizer_states")
    descent, schedule = _descent(fields)
    return Recipe(
        sharded=stage, ranks=ranks, replicas=_replicas(fields, stage, ranks), kept_among=_kept(fields, stage),
        micro_batch=micro, accumulation=rounds, half=half, master=half is Half.FP32 or not bare, autocast=autocast,
        reduced=fields.word("communication_data_type", _HALVES, half), clipping=fields.number("gradient_clipping", 1.0),
        descent=descent, schedule=schedule,
        scaler=Scaler(
            fields.number("fp16.loss_scale", 0.0), fields.whole("fp16.initial_scale_power", 16),
            fields.whole("fp16.loss_scale_window", 1000, least=1),
        ),
        optimizer_on=_offloaded(fields, "offload_optimizer", "cpu_offload", works=stage is not Sharded.NOTHING),
        parameters_on=_offloaded(fields, "offload_param", "cpu_offload_param", works=stage is Sharded.PARAMETERS),
        recomputed_on_cpu=fields.flag("activation_checkpointing.cpu_checkpointing"),
        whole_save=_any(fields, *(f"{_Z}.{each}" for each in _WHOLE_SAVE)),
    )  # fmt: skip


def _any(fields: Fields, *keys: str) -> bool:
    """One of several names of one switch is on; all are looked at."""
    return True in [fields.flag(key) for key in keys]


def _kept(fields: Fields, stage: Sharded) -> int:
    key = f"{_Z}.zero_hpz_partition_size"
    kept = fields.whole(key, 1)
    works = fields.idle_unless(key, works=stage is Sharded.PARAMETERS, why=_STAGE)
    return kept if kept > 1 and works else 0


def _replicas(fields: Fields, stage: Sharded, ranks: int) -> int:
    """Of MiCS, which older versions had."""
    key = f"{_Z}.mics_shard_size"
    shard = fields.whole(key, -1, least=-1)
    if shard < 1 or not fields.idle_unless(key, works=stage is Sharded.PARAMETERS, why=_STAGE):
        return 1
    if not ranks or ranks % shard:
        fields.problems.append(
            f"{key} is {shard}, which does not divide the ranks ({ranks or 'how many is not known'})"
        )
        return 1
    return ranks // shard


def _half(fields: Fields) -> Half:
    bf16 = _any(fields, "bf16.enabled", "bfloat16.enabled")
    fp16 = fields.flag("fp16.enabled")
    if bf16 and fp16:
        fields.problems.append("bf16.enabled and fp16.enabled exclude each other")
    return Half.BF16 if bf16 else Half.FP16 if fp16 else Half.FP32


def _batch(fields: Fields, ranks: int) -> tuple[int, int, int]:
    """Micro-batch, accumulation and ranks; what is not said follows from the rest, as in DeepSpeed's own arithmetic."""
    everything = fields.whole("train_batch_size", 0, least=1)
    micro = fields.whole("train_micro_batch_size_per_gpu", 0, least=1)
    rounds = fields.whole("gradient_accumulation_steps", 0, least=1)
    if everything and micro and rounds and not ranks and not everything % (micro * rounds):
        ranks = everything // (micro * rounds)
    if everything and not ranks and not (micro and rounds):
        fields.problems.append(
            "micro-batch and accumulation follow from train_batch_size and the number of ranks, which has to be given"
        )
    if everything and ranks:
        if not micro:
            micro, left = divmod(everything, ranks * (rounds or 1))
        else:
            left = everything % (micro * ranks)
        rounds = rounds or everything // (micro * ranks) if micro else rounds
        if left or everything != micro * max(rounds, 1) * ranks:
            fields.problems.append(
                f"train_batch_size is {everything}, which is not micro-batch x accumulation x {ranks} ranks "
                f"({micro or '?'} x {rounds or 1} x {ranks})"
            )
    elif everything and micro and rounds:
        fields.problems.append(f"train_batch_size is {everything}, which {micro} x {rounds} does not divide")
    return micro, max(rounds, 1), ranks


def _offloaded(fields: Fields, block: str, old: str, *, works: bool) -> Offloaded:
    key = f"{_Z}.{block}"
    before = fields.flag(f"{_Z}.{old}")
    device = fields.word(f"{key}.device", _PLACES, Place.CPU if before else Place.GPU)
    pinned = fields.flag(f"{key}.pin_memory", default=True)
    path = fields.text(f"{key}.nvme_path")
    for each in (f"{key}.device", f"{_Z}.{old}"):
        if not fields.idle_unless(each, works=works or device is Place.GPU, why=_STAGE):
            return Offloaded()
    return Offloaded(device, path if device is Place.NVME else "", pinned) if device is not Place.GPU else Offloaded()


def _descent(fields: Fields) -> tuple[Descent | None, Rates]:
    """The optimizer (None: the script makes it) and the schedule, whose own learning rate wins."""
    kind = fields.text("optimizer.type")
    values = "optimizer.params"
    decoupled = fields.flag(f"{values}.adam_w_mode", default=True)
    name = _TORCH.get(kind.casefold(), kind)
    if kind.casefold() == "adam" and not decoupled:
        name = "Adam"
    by_torch = name in _ADAMS and fields.flag(f"{values}.torch_adam")
    rate = fields.number(f"{values}.lr", _USUAL_LR)
    schedule, rate = _schedule(fields, rate)
    usual_decay = 0.01 if by_torch and name == "AdamW" else 0.0
    made = Descent(
        name=name, lr=rate, betas=fields.pair(f"{values}.betas", (0.9, 0.999)),
        eps=fields.number(f"{values}.eps", 1e-8), weight_decay=fields.number(f"{values}.weight_decay", usual_decay),
        momentum=fields.number(f"{values}.momentum", 0.0),
    )  # fmt: skip
    return (made if kind else None), schedule


def _schedule(fields: Fields, rate: float) -> tuple[Rates, float]:
    """The curve, and the highest learning rate."""
    kind = fields.text("scheduler.type")
    curve = _CURVES.get(kind.casefold(), Curve.NONE)
    values = "scheduler.params"
    steps = fields.whole(f"{values}.warmup_num_steps", _USUAL_WARMUP, least=1)
    total = fields.whole(f"{values}.total_num_steps", 0)
    rise = fields.word(f"{values}.warmup_type", _RISES, Rise.LOG)
    low = fields.number(f"{values}.warmup_min_lr", 0.0)
    usual = _USUAL_LR if curve is Curve.LINEAR else rate
    high = fields.number(f"{values}.warmup_max_lr", usual)
    share, end = fields.number(f"{values}.warmup_min_ratio", 0.0), fields.number(f"{values}.cos_min_ratio", 1e-4)
    if curve is Curve.NONE:
        return Rates(), rate
    if curve is not Curve.CONSTANT and not total:
        fields.problems.append(f"{values}.total_num_steps is missing")
    if curve is Curve.COSINE:
        return Rates(curve=curve, warmup_steps=steps, total_steps=total, rise=rise, start=share, end=end), rate
    start = round(low / high, _DIGITS) if high else 0.0
    total = total if curve is Curve.LINEAR else 0
    return Rates(curve=curve, warmup_steps=steps, total_steps=total, rise=rise, start=start), high
