"""What becomes of each of DeepSpeed's settings under FSDP2, and back: the one table behind the guide and ``migrate``.

Keys are those of DeepSpeed 0.19.8 (runtime/config.py, runtime/zero/config.py, zero/offload_config.py,
runtime/precision_config.py, runtime/constants.py) and of versions before that removed them; settings of FSDP2 those of
``fsdp2.settings``; Accelerate's those of version 1.15 (commands/config/config_args.py, utils/launch.py).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from holdfast.plan.generate.untaken import UNTAKEN


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One key of DeepSpeed's, dotted. Either ``fsdp2`` (where its counterpart is) or ``none`` (why there is none).

    ``whole``: the row stands for all keys below it, too. ``torch`` is what the counterpart is in code, ``accelerate``
    and ``plugin`` where Accelerate's file says it, with FSDP2 and with DeepSpeed; ``differs`` what is silently other.
    """

    key: str
    fsdp2: str = ""
    torch: str = ""
    accelerate: str = ""
    plugin: str = ""
    none: str = ""
    differs: str = ""
    #: The values for which that holds; none: for all.
    when: tuple[str, ...] = ()
    whole: bool = False

    def differing(self, value: str) -> str:
        """What is silently other, of a key with that value."""
        return self.differs if not self.when or value in self.when else ""

    @property
    def mapped(self) -> bool:
        """It has a counterpart."""
        return bool(self.fsdp2)


_IN_THE_SCRIPT = "in the script"
_MASTER = (
    "FSDP2's optimizer steps on the sharded weights in the dtype they were loaded in: load the model in fp32 and let "
    "param_dtype cast it. Loaded in bf16 there is no fp32 copy, and one Adam step at a learning rate of 1e-5 changed "
    "2.8 % of the weights, against 92 to 96 % with one"
)
_PLACE = "with CPUOffloadPolicy weights, gradients and optimizer states all go to the host, and it is all or nothing"

_TAKEN = (
    Row(
        key="train_batch_size", fsdp2="batch.all", torch="ranks x micro-batch x accumulation, by the script",
        accelerate=_IN_THE_SCRIPT,
        differs="nothing checks it under FSDP2; the learning rate need not change as long as this number does not",
    ),
    Row(
        key="train_micro_batch_size_per_gpu", fsdp2="batch.micro", torch="DataLoader(batch_size=...)",
        accelerate=_IN_THE_SCRIPT,
    ),
    Row(
        key="gradient_accumulation_steps", fsdp2="batch.accumulation", torch="the loop; loss / steps",
        accelerate=_IN_THE_SCRIPT, plugin="deepspeed_config.gradient_accumulation_steps",
        differs="DeepSpeed's backward divides the loss by it, a loop of one's own has to; FSDP2 communicates after "
        "each micro-batch unless set_requires_gradient_sync(False) is called, as ZeRO-2 and 3 do, and ZeRO-1 does not",
    ),
    Row(
        key="gradient_clipping", fsdp2="clip_grad_norm", torch="torch.nn.utils.clip_grad_norm_(parameters, ...)",
        accelerate="accelerator.clip_grad_norm_, in the script", plugin="deepspeed_config.gradient_clipping",
        differs="DeepSpeed clips at 1.0 where nothing is said, FSDP2 never. The norm is that of all shards on both "
        "sides, as long as parameters are DTensors: a norm of the local shards alone would be another on each rank",
    ),
    Row(
        key="zero_optimization.stage", fsdp2="fully_shard.reshard_after_forward",
        torch="3: reshard_after_forward=True; 2: False; 1: False, and gradients synchronised at the last micro-batch "
        "alone; 0: a mesh of replicas, which is DDP",
        accelerate="fsdp_config.fsdp_reshard_after_forward", plugin="deepspeed_config.zero_stage",
        differs="with stages 1 and 2 DeepSpeed keeps 16-bit weights whole all the time, FSDP2 from forward to backward",
        when=("1", "2"),
    ),
    Row(
        key="zero_optimization.zero_hpz_partition_size", fsdp2="fully_shard.reshard_after_forward",
        torch="reshard_after_forward=<that number>",
        differs="it is often called HYBRID_SHARD, which it is not: there whole replicas exist, optimizer and all. "
        "DeepSpeed keeps a second copy of the weights for it, FSDP2 gathers into the smaller group",
    ),
    Row(
        key="zero_optimization.mics_shard_size", fsdp2="mesh.shard", torch="init_device_mesh(..., (replicate, shard))",
        accelerate="parallelism_config.parallelism_config_dp_shard_size",
        differs="DeepSpeed 0.19 removed MiCS and refuses the key; HSDP is its counterpart",
    ),
    Row(
        key="zero_optimization.offload_optimizer.device", fsdp2="fully_shard.offload", torch="CPUOffloadPolicy()",
        accelerate="fsdp_config.fsdp_offload_params", plugin="deepspeed_config.offload_optimizer_device",
        differs=f"{_PLACE}; the step is torch's on the CPU, not DeepSpeedCPUAdam. NVMe has no counterpart",
    ),
    Row(
        key="zero_optimization.offload_param.device", fsdp2="fully_shard.offload", torch="CPUOffloadPolicy()",
        accelerate="fsdp_config.fsdp_offload_params", plugin="deepspeed_config.offload_param_device",
        differs=f"{_PLACE}. NVMe has no counterpart",
    ),
    Row(key="zero_optimization.cpu_offload", fsdp2="fully_shard.offload", torch="CPUOffloadPolicy()",
        differs=f"the old form of offload_optimizer; {_PLACE}"),
    Row(key="zero_optimization.cpu_offload_param", fsdp2="fully_shard.offload", torch="CPUOffloadPolicy()",
        differs=f"the old form of offload_param; {_PLACE}"),
    Row(
        key="zero_optimization.offload_optimizer.pin_memory", fsdp2="fully_shard.pin_memory",
        torch="CPUOffloadPolicy(pin_memory=...)",
    ),
    Row(
        key="zero_optimization.offload_param.pin_memory", fsdp2="fully_shard.pin_memory",
        torch="CPUOffloadPolicy(pin_memory=...)",
    ),
    Row(
        key="zero_optimization.stage3_gather_16bit_weights_on_model_save", fsdp2="save.whole",
        torch="StateDictOptions(full_state_dict=True, cpu_offload=True)",
        accelerate="fsdp_config.fsdp_state_dict_type: FULL_STATE_DICT",
        plugin="deepspeed_config.zero3_save_16bit_model",
        differs="DeepSpeed writes 16 bits, FSDP2 the fp32 weights: twice the size",
    ),
    Row(
        key="zero_optimization.gather_16bit_weights_on_model_save", fsdp2="save.whole",
        torch="StateDictOptions(full_state_dict=True, cpu_offload=True)",
    ),
    Row(
        key="zero_optimization.stage3_gather_fp16_weights_on_model_save", fsdp2="save.whole",
        torch="StateDictOptions(full_state_dict=True, cpu_offload=True)",
    ),
    Row(
        key="bf16.enabled", fsdp2="fully_shard.param_dtype", torch="MixedPrecisionPolicy(param_dtype=torch.bfloat16)",
        accelerate="mixed_precision: bf16", plugin="mixed_precision: bf16", differs=_MASTER,
    ),
    Row(key="bfloat16.enabled", fsdp2="fully_shard.param_dtype", torch="as bf16.enabled, under its old name"),
    Row(
        key="bf16.bf16_master_weights_and_grads", fsdp2="model.dtype", torch="the model is loaded in torch.bfloat16",
        accelerate="mixed_precision: no, and the model loaded in bf16", differs=_MASTER,
    ),
    Row(
        key="bf16.bf16_optimizer_states", fsdp2="model.dtype", torch="the model is loaded in torch.bfloat16",
        differs="under FSDP2 the optimizer's states are always of the weights' dtype",
    ),
    Row(
        key="fp16.enabled", fsdp2="fully_shard.param_dtype", torch="MixedPrecisionPolicy(param_dtype=torch.float16)",
        accelerate="mixed_precision: fp16", plugin="mixed_precision: fp16",
        differs=f"{_MASTER}. FSDP2 scales no loss by itself: torch.amp.GradScaler",
    ),
    Row(
        key="fp16.loss_scale", fsdp2="grad_scaler.fixed", torch="loss * scale, gradients / scale; 0: GradScaler",
    ),
    Row(
        key="fp16.initial_scale_power", fsdp2="grad_scaler.power", torch="GradScaler(init_scale=2 ** power)",
        differs="GradScaler's own default is 2 ** 16, too",
    ),
    Row(
        key="fp16.loss_scale_window", fsdp2="grad_scaler.window", torch="GradScaler(growth_interval=...)",
        differs="1000 good steps by default, 2000 in GradScaler",
    ),
    Row(
        key="torch_autocast.enabled", fsdp2="autocast", torch="torch.autocast", accelerate="mixed_precision",
    ),
    Row(key="torch_autocast.dtype", fsdp2="autocast", torch="torch.autocast(dtype=...)", accelerate="mixed_precision"),
    Row(
        key="communication_data_type", fsdp2="fully_shard.reduce_dtype", torch="MixedPrecisionPolicy(reduce_dtype=...)",
        differs="where nothing is said, both reduce gradients in the 16 bits that are computed in; torchtitan in fp32, "
        "and so do our own files",
    ),
    Row(
        key="optimizer.type", fsdp2="optimizer.name", torch="torch.optim.<name>", accelerate=_IN_THE_SCRIPT,
        differs='DeepSpeed\'s "Adam" is AdamW unless adam_w_mode is false; torch\'s adds the decay to the gradient',
        when=("Adam", "adam"),
    ),
    Row(key="optimizer.params.lr", fsdp2="optimizer.lr", torch="lr", accelerate=_IN_THE_SCRIPT,
        differs="the same on both sides for the same batch and precision; 0.001 where nothing is said, on both"),
    Row(key="optimizer.params.betas", fsdp2="optimizer.betas", torch="betas", accelerate=_IN_THE_SCRIPT),
    Row(key="optimizer.params.eps", fsdp2="optimizer.eps", torch="eps", accelerate=_IN_THE_SCRIPT),
    Row(
        key="optimizer.params.weight_decay", fsdp2="optimizer.weight_decay", torch="weight_decay",
        accelerate=_IN_THE_SCRIPT,
        differs="where nothing is said it is 0 in DeepSpeed's Adam and 0.01 in torch.optim.AdamW",
    ),
    Row(key="optimizer.params.momentum", fsdp2="optimizer.momentum", torch="momentum", accelerate=_IN_THE_SCRIPT),
    Row(
        key="optimizer.params.adam_w_mode", fsdp2="optimizer.name", torch="false: torch.optim.Adam",
    ),
    Row(
        key="scheduler.type", fsdp2="schedule.curve", torch="LambdaLR with DeepSpeed's formula",
        accelerate=_IN_THE_SCRIPT,
        differs="DeepSpeed's schedules stay at their start for the first two steps; and so do those of our script",
    ),
    Row(key="scheduler.params.warmup_num_steps", fsdp2="schedule.warmup_steps", torch="LambdaLR",
        differs="1000 where nothing is said"),
    Row(key="scheduler.params.total_num_steps", fsdp2="schedule.total_steps", torch="LambdaLR"),
    Row(key="scheduler.params.warmup_type", fsdp2="schedule.rise", torch="LambdaLR",
        differs="DeepSpeed's warm-up is logarithmic unless this says linear"),
    Row(key="scheduler.params.warmup_min_lr", fsdp2="schedule.start", torch="LambdaLR",
        differs="there as a share of lr"),
    Row(key="scheduler.params.warmup_max_lr", fsdp2="optimizer.lr", torch="lr",
        differs="it wins over the optimizer's lr; WarmupDecayLR's is 0.001 where nothing is said"),
    Row(key="scheduler.params.warmup_min_ratio", fsdp2="schedule.start", torch="LambdaLR"),
    Row(key="scheduler.params.cos_min_ratio", fsdp2="schedule.end", torch="LambdaLR"),
    Row(
        key="activation_checkpointing.cpu_checkpointing", fsdp2="recompute.on_cpu",
        torch="torch.autograd.graph.save_on_cpu around the checkpointed layers",
        accelerate="fsdp_config.fsdp_activation_checkpointing_offload",
        differs="DeepSpeed's block tunes deepspeed.checkpointing, which the model has to call; it turns nothing on",
    ),
)  # fmt: skip

#: By key, those with a counterpart first.
ROWS: Mapping[str, Row] = {row.key: row for row in _TAKEN} | {
    key: Row(key=key, none=why, whole=whole) for key, (why, whole) in UNTAKEN.items()
}


def row(key: str) -> Row | None:
    """That of a key, or of the block it stands in; None: DeepSpeed has no such key."""
    found = ROWS.get(key)
    while found is None and "." in key:
        key = key.rpartition(".")[0]
        above = ROWS.get(key)
        found = above if above is not None and above.whole else None
    return found
