"""DeepSpeed's settings without a counterpart under FSDP2, and why.

``.*`` includes all keys below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

_Z = "zero_optimization."
_OPTIM, _PARAM, _STEP, _CURVE = (
    f"{_Z}offload_optimizer.",
    f"{_Z}offload_param.",
    "optimizer.params.",
    "scheduler.params.",
)

_NVME = "FSDP2 offloads only to host memory"
_ENGINE = "tunes DeepSpeed's buffers, which FSDP2 lacks"
_FORMAT = "belongs to DeepSpeed's checkpoints; torch.distributed.checkpoint has other options"
_TORCHS_STEP = "torch's optimizer implementation has no such option"
_REMOVED = "DeepSpeed 0.19 removed it and rejects the key"
_LOGS = (
    "a DeepSpeed report; torch.profiler is the closest alternative, and training does not "
    "depend on it"
)


class _Group(NamedTuple):
    prefix: str
    names: str
    why: str


#: Prefix of the keys, their names, and why they have no counterpart.
_GROUPS: tuple[_Group, ...] = (
    _Group(
        _Z,
        "reduce_bucket_size allgather_bucket_size reduce_scatter allgather_partitions overlap_comm "
        "allgather_sequential use_multi_rank_bucket_allreduce "
        "stage3_use_all_reduce_for_fetch_params "
        "stage3_allgather_sequential use_all_reduce_for_fetch_params",
        "FSDP2 communicates per module: parameters passed to fully_shard together are sent "
        "together",
    ),
    _Group(
        _Z,
        "stage3_prefetch_bucket_size stage3_max_live_parameters stage3_max_reuse_distance "
        "prefetch_bucket_size stage3_module_granularity_threshold max_live_parameters "
        "max_reuse_distance module_granularity_threshold leaf_module.*",
        "FSDP2 frees a module's weights after its forward and prefetches one module, or those that "
        "set_modules_to_forward_prefetch names",
    ),
    _Group(_Z, "sub_group_size", "torch's optimizers update all shards of a rank at once"),
    _Group(
        _Z,
        "stage3_param_persistence_threshold stage3_model_persistence_threshold "
        "param_persistence_threshold model_persistence_threshold",
        "FSDP2 shards every weight, however small",
    ),
    _Group(
        _Z,
        "contiguous_gradients round_robin_gradients parameter_alignment memory_efficient_linear "
        "override_module_apply log_trace_cache_warnings enable_sanity_checks "
        "ignore_unused_parameters legacy_stage1 compute_grad_norm cpu_offload_use_pin_memory",
        _ENGINE,
    ),
    _Group(
        _Z,
        "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients",
        "FSDP2 sends no quantized weights or gradients; torchao's float8 all-gather is the "
        "closest alternative",
    ),
    _Group(_PARAM, "nvme_path buffer_count buffer_size max_in_cpu", _NVME),
    _Group(_OPTIM, "nvme_path buffer_count pipeline_read pipeline_write pipeline fast_init", _NVME),
    _Group(_Z, "save_muon_momentum_buffer_in_memory", _NVME),
    _Group(
        _OPTIM,
        "ratio super_offload cpuadam_cores_perc",
        "CPUOffloadPolicy offloads the whole optimizer, with torch's implementation",
    ),
    _Group(_Z, "zenflow.*", "FSDP2 updates all weights in each step, on one device"),
    _Group(_Z, "load_from_fp32_weights elastic_checkpoint pipeline_loading_checkpoint", _FORMAT),
    _Group(_Z, "mics_hierarchical_params_gather zeropp_loco_param.*", _REMOVED),
    _Group(
        "",
        "nebula.* compression_training.* amp.* quantize_training.* sparse_gradients "
        "eigenvalue.* sparse_attention.* "
        "elasticity.* graph_harvesting curriculum_learning.* progressive_layer_drop.*",
        _REMOVED,
    ),
    _Group("bf16.", "immediate_grad_update", _ENGINE),
    _Group(
        "bf16.",
        "check_grad_overflow",
        "FSDP2 never skips a step, DeepSpeed skips those with non-finite gradients: check the norm "
        "that clip_grad_norm_ returns",
    ),
    _Group("fp16.", "auto_cast", "MixedPrecisionPolicy casts inputs (cast_forward_inputs)"),
    _Group(
        "fp16.",
        "hysteresis consecutive_hysteresis min_loss_scale",
        "torch.amp.GradScaler halves the scale at each overflow, without hysteresis or minimum",
    ),
    _Group(
        "fp16.",
        "fp16_master_weights_and_grads",
        "weights in fp16 with no fp32 copy do not train under FSDP2: GradScaler rejects fp16 "
        "gradients",
    ),
    _Group(
        "torch_autocast.",
        "lower_precision_safe_modules",
        "torch.autocast works by operation, not by module",
    ),
    _Group(
        "data_types.",
        "grad_accum_dtype",
        "FSDP2 accumulates gradients in the dtype of the sharded weights (fp32 if loaded so), "
        "DeepSpeed in the compute dtype by default",
    ),
    _Group(
        "data_types.",
        "param_dtype buffer_dtype keep_in_fp32_modules",
        "FSDP2 casts parameters by the policy of their module and does not cast buffers: give "
        "modules that must stay in fp32 a separate policy",
    ),
    _Group(
        "", "seq_parallel_communication_data_type", "torch's context parallelism has no such option"
    ),
    _Group(
        "",
        "sequence_parallel_size",
        "Ulysses sequence parallelism; torch's counterpart is context_parallel, a mesh axis",
    ),
    _Group(
        "",
        "prescale_gradients gradient_predivide_factor",
        "FSDP2 divides by the number of ranks, before or after depending on the dtype; see "
        "set_gradient_divide_factor",
    ),
    _Group("", "gradient_allreduce_op", "FSDP2 averages; set_gradient_divide_factor(1.0) sums"),
    _Group(
        "",
        "managed_gradient_accumulation disable_python_gc",
        "under FSDP2 the user's training loop decides",
    ),
    _Group(
        _STEP,
        "bias_correction torch_adam fp32_optimizer_states amsgrad max_coeff min_coeff freeze_step "
        "cuda_aware muon_lr comm_backend_name adam_lr ns_method nesterov foreach fused "
        "set_grad_none dampening max_grad_norm",
        _TORCHS_STEP,
    ),
    _Group("", "optimizer.legacy_fusion zero_force_ds_cpu_optimizer", _TORCHS_STEP),
    _Group(
        _CURVE,
        "last_batch_iteration lr_range_test_min_lr lr_range_test_step_rate lr_range_test_step_size "
        "cycle_min_lr lr_range_test_staircase cycle_max_lr decay_lr_rate cycle_first_step_size "
        "cycle_second_step_size cycle_first_stair_count cycle_second_stair_count decay_step_size "
        "cycle_momentum cycle_min_mom cycle_max_mom decay_mom_rate",
        "LRRangeTest and OneCycle are not converted; torch.optim.lr_scheduler has similar ones "
        "that count differently",
    ),
    _Group(
        "activation_checkpointing.",
        "partition_activations contiguous_memory_optimization number_checkpoints profile "
        "synchronize_checkpoint_boundary",
        "torch.utils.checkpoint has no such option; sequence parallelism replaces "
        "partition_activations",
    ),
    _Group(
        "",
        "compile.*",
        "DeepCompile's passes are specific to DeepSpeed; use torch.compile per layer with "
        "fully_shard",
    ),
    _Group(
        "",
        "zero_allow_untested_optimizer",
        "FSDP2 supports every torch optimizer that works on DTensors",
    ),
    _Group(
        "",
        "steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level "
        "vocabulary_size",
        _LOGS,
    ),
    _Group(
        "",
        "tensorboard.* wandb.* csv_monitor.* comet.* flops_profiler.* comms_logger.* timers.* "
        "autotuning.*",
        _LOGS,
    ),
    _Group(
        "", "disable_allgather allgather_size aio.* hybrid_engine.* weight_quantization.*", _ENGINE
    ),
    _Group("", "dataloader_drop_last", "the DataLoader's drop_last, set in the script"),
    _Group("", "data_efficiency.*", "implement curriculum and random layer dropping in the script"),
    _Group("", "checkpoint.* datastates_ckpt.*", _FORMAT),
    _Group(
        "",
        "pipeline.*",
        "tunes a PipelineModule of the script; torch.distributed.pipelining is also configured "
        "in code",
    ),
    _Group(
        "",
        "tensor_parallel.*",
        "tensor parallelism is a mesh axis with a layer plan (parallelize_module)",
    ),
    _Group(
        "",
        "expert_parallel.*",
        "with torch, expert parallelism is part of the model's code (torchtitan supports it)",
    ),
    _Group("", "use_data_before_expert_parallelism", "determined by the order of mesh axes"),
)


def _expand_groups() -> Iterator[tuple[str, tuple[str, bool]]]:
    for above, names, why in _GROUPS:
        for name in names.split():
            yield f"{above}{name.removesuffix('.*')}", (why, name.endswith(".*"))


#: By key: why, and whether for all that stands below it.
UNSUPPORTED: Mapping[str, tuple[str, bool]] = dict(_expand_groups())
