"""Mapping of DeepSpeed's settings to FSDP2 and back: the table behind the guide and ``--migrate``.

Keys are those of DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py,
zero/offload_config.py, runtime/precision_config.py, runtime/constants.py) and removed ones of
earlier versions; FSDP2's settings those of ``fsdp2.fsdp2_settings``; Accelerate's those of version
1.15 (commands/config/config_args.py, utils/launch.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.plan.generate.unsupported import UNSUPPORTED


class SettingMapping(msgspec.Struct, frozen=True, kw_only=True):
    """One dotted key of DeepSpeed, with its counterpart ``fsdp2`` or the ``reason`` there is none.

    ``covers_block``: the mapping applies to all keys below it. ``torch``: the counterpart in code;
    ``accelerate`` and ``accelerate_deepspeed``: the keys in Accelerate's file with FSDP2 and with
    DeepSpeed; ``difference``: silent differences.
    """

    key: str
    fsdp2: str = ""
    torch: str = ""
    accelerate: str = ""
    accelerate_deepspeed: str = ""
    reason: str = ""
    difference: str = ""
    #: The values to which the difference applies; empty: all.
    values: tuple[str, ...] = ()
    covers_block: bool = False

    def difference_for(self, value: str) -> str:
        """Return the silent difference of a key with that value."""
        return self.difference if not self.values or value in self.values else ""

    @property
    def is_mapped(self) -> bool:
        """Return whether the key has a counterpart."""
        return bool(self.fsdp2)


_IN_THE_SCRIPT = "in the script"
_MASTER = (
    "FSDP2's optimizer steps on the sharded weights in the dtype they were loaded in: load the "
    "model in fp32 and let param_dtype cast it. Loaded in bf16 there is no fp32 copy, and one Adam "
    "step at a learning rate of 1e-5 changed 2.8 % of the weights, against 92 to 96 % with one"
)
_PLACE = "CPUOffloadPolicy offloads weights, gradients and optimizer states together"

_MAPPED = (
    SettingMapping(
        key="train_batch_size",
        fsdp2="batch.all",
        torch="ranks x micro-batch x accumulation, by the script",
        accelerate=_IN_THE_SCRIPT,
        difference="not checked under FSDP2; keep it constant, or adapt the learning rate",
    ),
    SettingMapping(
        key="train_micro_batch_size_per_gpu",
        fsdp2="batch.micro",
        torch="DataLoader(batch_size=...)",
        accelerate=_IN_THE_SCRIPT,
    ),
    SettingMapping(
        key="gradient_accumulation_steps",
        fsdp2="batch.accumulation",
        torch="the loop; loss / steps",
        accelerate=_IN_THE_SCRIPT,
        accelerate_deepspeed="deepspeed_config.gradient_accumulation_steps",
        difference="DeepSpeed's backward divides the loss by it, a custom loop must; FSDP2 "
        "communicates after each micro-batch unless set_requires_gradient_sync(False) is called; "
        "so do ZeRO-2 and 3, but not ZeRO-1",
    ),
    SettingMapping(
        key="gradient_clipping",
        fsdp2="clip_grad_norm",
        torch="torch.nn.utils.clip_grad_norm_(parameters, ...)",
        accelerate="accelerator.clip_grad_norm_, in the script",
        accelerate_deepspeed="deepspeed_config.gradient_clipping",
        difference="DeepSpeed clips at 1.0 by default, FSDP2 not at all. Both use the norm of "
        "all shards, "
        "as long as parameters are DTensors: a norm of local shards would differ between ranks",
    ),
    SettingMapping(
        key="zero_optimization.stage",
        fsdp2="fully_shard.reshard_after_forward",
        torch="3: reshard_after_forward=True; 2: False; 1: False, and gradients synchronised at "
        "the last micro-batch alone; 0: a mesh of replicas, which is DDP",
        accelerate="fsdp_config.fsdp_reshard_after_forward",
        accelerate_deepspeed="deepspeed_config.zero_stage",
        difference="with stages 1 and 2 DeepSpeed always keeps unsharded 16-bit weights, FSDP2 "
        "only from forward to backward",
        values=("1", "2"),
    ),
    SettingMapping(
        key="zero_optimization.zero_hpz_partition_size",
        fsdp2="fully_shard.reshard_after_forward",
        torch="reshard_after_forward=<that number>",
        difference="often confused with HYBRID_SHARD, which replicates everything including the "
        "optimizer. "
        "DeepSpeed keeps a second copy of the weights for it, FSDP2 gathers into the smaller group",
    ),
    SettingMapping(
        key="zero_optimization.mics_shard_size",
        fsdp2="mesh.shard",
        torch="init_device_mesh(..., (replicate, shard))",
        accelerate="parallelism_config.parallelism_config_dp_shard_size",
        difference="DeepSpeed 0.19 removed MiCS and rejects the key; HSDP is its counterpart",
    ),
    SettingMapping(
        key="zero_optimization.offload_optimizer.device",
        fsdp2="fully_shard.offload",
        torch="CPUOffloadPolicy()",
        accelerate="fsdp_config.fsdp_offload_params",
        accelerate_deepspeed="deepspeed_config.offload_optimizer_device",
        difference=f"{_PLACE}; torch's optimizer runs on the CPU, not DeepSpeedCPUAdam. NVMe "
        "has no counterpart",
    ),
    SettingMapping(
        key="zero_optimization.offload_param.device",
        fsdp2="fully_shard.offload",
        torch="CPUOffloadPolicy()",
        accelerate="fsdp_config.fsdp_offload_params",
        accelerate_deepspeed="deepspeed_config.offload_param_device",
        difference=f"{_PLACE}. NVMe has no counterpart",
    ),
    SettingMapping(
        key="zero_optimization.cpu_offload",
        fsdp2="fully_shard.offload",
        torch="CPUOffloadPolicy()",
        difference=f"the old name of offload_optimizer; {_PLACE}",
    ),
    SettingMapping(
        key="zero_optimization.cpu_offload_param",
        fsdp2="fully_shard.offload",
        torch="CPUOffloadPolicy()",
        difference=f"the old name of offload_param; {_PLACE}",
    ),
    SettingMapping(
        key="zero_optimization.offload_optimizer.pin_memory",
        fsdp2="fully_shard.pin_memory",
        torch="CPUOffloadPolicy(pin_memory=...)",
    ),
    SettingMapping(
        key="zero_optimization.offload_param.pin_memory",
        fsdp2="fully_shard.pin_memory",
        torch="CPUOffloadPolicy(pin_memory=...)",
    ),
    SettingMapping(
        key="zero_optimization.stage3_gather_16bit_weights_on_model_save",
        fsdp2="save.whole",
        torch="StateDictOptions(full_state_dict=True, cpu_offload=True)",
        accelerate="fsdp_config.fsdp_state_dict_type: FULL_STATE_DICT",
        accelerate_deepspeed="deepspeed_config.zero3_save_16bit_model",
        difference="DeepSpeed saves 16-bit weights, FSDP2 fp32 weights: twice the size",
    ),
    SettingMapping(
        key="zero_optimization.gather_16bit_weights_on_model_save",
        fsdp2="save.whole",
        torch="StateDictOptions(full_state_dict=True, cpu_offload=True)",
    ),
    SettingMapping(
        key="zero_optimization.stage3_gather_fp16_weights_on_model_save",
        fsdp2="save.whole",
        torch="StateDictOptions(full_state_dict=True, cpu_offload=True)",
    ),
    SettingMapping(
        key="bf16.enabled",
        fsdp2="fully_shard.param_dtype",
        torch="MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
        accelerate="mixed_precision: bf16",
        accelerate_deepspeed="mixed_precision: bf16",
        difference=_MASTER,
    ),
    SettingMapping(
        key="bfloat16.enabled",
        fsdp2="fully_shard.param_dtype",
        torch="as bf16.enabled, under its old name",
    ),
    SettingMapping(
        key="bf16.bf16_master_weights_and_grads",
        fsdp2="model.dtype",
        torch="the model is loaded in torch.bfloat16",
        accelerate="mixed_precision: no, and the model loaded in bf16",
        difference=_MASTER,
    ),
    SettingMapping(
        key="bf16.bf16_optimizer_states",
        fsdp2="model.dtype",
        torch="the model is loaded in torch.bfloat16",
        difference="under FSDP2 optimizer states always have the dtype of the weights",
    ),
    SettingMapping(
        key="fp16.enabled",
        fsdp2="fully_shard.param_dtype",
        torch="MixedPrecisionPolicy(param_dtype=torch.float16)",
        accelerate="mixed_precision: fp16",
        accelerate_deepspeed="mixed_precision: fp16",
        difference=f"{_MASTER}. FSDP2 has no loss scaling: use torch.amp.GradScaler",
    ),
    SettingMapping(
        key="fp16.loss_scale",
        fsdp2="grad_scaler.fixed",
        torch="loss * scale, gradients / scale; 0: GradScaler",
    ),
    SettingMapping(
        key="fp16.initial_scale_power",
        fsdp2="grad_scaler.power",
        torch="GradScaler(init_scale=2 ** power)",
        difference="GradScaler's default is also 2 ** 16",
    ),
    SettingMapping(
        key="fp16.loss_scale_window",
        fsdp2="grad_scaler.window",
        torch="GradScaler(growth_interval=...)",
        difference="default 1000 steps without overflow, 2000 in GradScaler",
    ),
    SettingMapping(
        key="torch_autocast.enabled",
        fsdp2="autocast",
        torch="torch.autocast",
        accelerate="mixed_precision",
    ),
    SettingMapping(
        key="torch_autocast.dtype",
        fsdp2="autocast",
        torch="torch.autocast(dtype=...)",
        accelerate="mixed_precision",
    ),
    SettingMapping(
        key="communication_data_type",
        fsdp2="fully_shard.reduce_dtype",
        torch="MixedPrecisionPolicy(reduce_dtype=...)",
        difference="by default both reduce gradients in the 16-bit compute dtype; torchtitan "
        "reduces in fp32, and so do the files written by holdfast",
    ),
    SettingMapping(
        key="optimizer.type",
        fsdp2="optimizer.name",
        torch="torch.optim.<name>",
        accelerate=_IN_THE_SCRIPT,
        difference="DeepSpeed's \"Adam\" is AdamW unless adam_w_mode is false; torch's Adam "
        "adds the decay to the gradient",
        values=("Adam", "adam"),
    ),
    SettingMapping(
        key="optimizer.params.lr",
        fsdp2="optimizer.lr",
        torch="lr",
        accelerate=_IN_THE_SCRIPT,
        difference="equal for the same batch and precision; default 0.001 on both sides",
    ),
    SettingMapping(
        key="optimizer.params.betas",
        fsdp2="optimizer.betas",
        torch="betas",
        accelerate=_IN_THE_SCRIPT,
    ),
    SettingMapping(
        key="optimizer.params.eps", fsdp2="optimizer.eps", torch="eps", accelerate=_IN_THE_SCRIPT
    ),
    SettingMapping(
        key="optimizer.params.weight_decay",
        fsdp2="optimizer.weight_decay",
        torch="weight_decay",
        accelerate=_IN_THE_SCRIPT,
        difference="default 0 in DeepSpeed's Adam, 0.01 in torch.optim.AdamW",
    ),
    SettingMapping(
        key="optimizer.params.momentum",
        fsdp2="optimizer.momentum",
        torch="momentum",
        accelerate=_IN_THE_SCRIPT,
    ),
    SettingMapping(
        key="optimizer.params.adam_w_mode", fsdp2="optimizer.name", torch="false: torch.optim.Adam"
    ),
    SettingMapping(
        key="scheduler.type",
        fsdp2="schedule.curve",
        torch="LambdaLR with DeepSpeed's formula",
        accelerate=_IN_THE_SCRIPT,
        difference="DeepSpeed's schedules use the initial rate for the first two steps; the "
        "generated script does the same",
    ),
    SettingMapping(
        key="scheduler.params.warmup_num_steps",
        fsdp2="schedule.warmup_steps",
        torch="LambdaLR",
        difference="default 1000",
    ),
    SettingMapping(
        key="scheduler.params.total_num_steps", fsdp2="schedule.total_steps", torch="LambdaLR"
    ),
    SettingMapping(
        key="scheduler.params.warmup_type",
        fsdp2="schedule.rise",
        torch="LambdaLR",
        difference="DeepSpeed's warm-up is logarithmic unless set to linear",
    ),
    SettingMapping(
        key="scheduler.params.warmup_min_lr",
        fsdp2="schedule.start",
        torch="LambdaLR",
        difference="in fsdp2.json as a share of lr",
    ),
    SettingMapping(
        key="scheduler.params.warmup_max_lr",
        fsdp2="optimizer.lr",
        torch="lr",
        difference="overrides the optimizer's lr; WarmupDecayLR's default is 0.001",
    ),
    SettingMapping(
        key="scheduler.params.warmup_min_ratio", fsdp2="schedule.start", torch="LambdaLR"
    ),
    SettingMapping(key="scheduler.params.cos_min_ratio", fsdp2="schedule.end", torch="LambdaLR"),
    SettingMapping(
        key="activation_checkpointing.cpu_checkpointing",
        fsdp2="recompute.on_cpu",
        torch="torch.autograd.graph.save_on_cpu around the checkpointed layers",
        accelerate="fsdp_config.fsdp_activation_checkpointing_offload",
        difference="DeepSpeed's block only tunes deepspeed.checkpointing, which the model must "
        "call",
    ),
)

#: By key, mapped ones first.
SETTING_MAPPINGS: Mapping[str, SettingMapping] = {row.key: row for row in _MAPPED} | {
    key: SettingMapping(key=key, reason=why, covers_block=whole)
    for key, (why, whole) in UNSUPPORTED.items()
}


def find_mapping(key: str) -> SettingMapping | None:
    """Return the mapping of a key or of its block; None if DeepSpeed has no such key."""
    mapping = SETTING_MAPPINGS.get(key)
    while mapping is None and "." in key:
        key = key.rpartition(".")[0]
        parent = SETTING_MAPPINGS.get(key)
        mapping = parent if parent is not None and parent.covers_block else None
    return mapping
