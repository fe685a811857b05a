"""DeepSpeed's settings that have no counterpart under FSDP2, and why. With ``.*``: and all that stands below."""

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

_NVME = "FSDP2 offloads to the host's memory alone"
_ENGINE = "it is about DeepSpeed's own buffers, of which FSDP2 has none"
_FORMAT = "it is of DeepSpeed's checkpoints; torch.distributed.checkpoint has options of its own"
_TORCHS_STEP = "torch has its own implementation of the step and no choice to make here"
_REMOVED = "DeepSpeed 0.19 removed it and refuses the key"
_LOGS = "it is a report of DeepSpeed's; torch.profiler is the nearest, and nothing in training depends on it"


class _Group(NamedTuple):
    above: str
    names: str
    why: str


#: Where keys stand, which ones, and why they have no counterpart.
_GROUPS: tuple[_Group, ...] = (
    _Group(
        _Z,
        "reduce_bucket_size allgather_bucket_size reduce_scatter allgather_partitions overlap_comm "
        "allgather_sequential use_multi_rank_bucket_allreduce stage3_use_all_reduce_for_fetch_params "
        "stage3_allgather_sequential use_all_reduce_for_fetch_params",
        "FSDP2 communicates by module: what is given to fully_shard together goes over the wire together",
    ),
    _Group(
        _Z,
        "stage3_prefetch_bucket_size stage3_max_live_parameters stage3_max_reuse_distance prefetch_bucket_size "
        "stage3_module_granularity_threshold max_live_parameters max_reuse_distance module_granularity_threshold "
        "leaf_module.*",
        "FSDP2 frees a module's weights when its forward ends and gathers one module early, or those that "
        "set_modules_to_forward_prefetch names",
    ),
    _Group(_Z, "sub_group_size", "torch's optimizers take all shares of a rank at once"),
    _Group(
        _Z,
        "stage3_param_persistence_threshold stage3_model_persistence_threshold param_persistence_threshold "
        "model_persistence_threshold",
        "FSDP2 divides every weight, however small",
    ),
    _Group(
        _Z,
        "contiguous_gradients round_robin_gradients parameter_alignment memory_efficient_linear override_module_apply "
        "log_trace_cache_warnings enable_sanity_checks ignore_unused_parameters legacy_stage1 compute_grad_norm "
        "cpu_offload_use_pin_memory",
        _ENGINE,
    ),
    _Group(
        _Z,
        "zero_quantized_weights zero_quantized_nontrainable_weights zero_quantized_gradients",
        "FSDP2 sends no quantized weights or gradients; torchao's float8 all-gather is the nearest",
    ),
    _Group(_PARAM, "nvme_path buffer_count buffer_size max_in_cpu", _NVME),
    _Group(_OPTIM, "nvme_path buffer_count pipeline_read pipeline_write pipeline fast_init", _NVME),
    _Group(_Z, "save_muon_momentum_buffer_in_memory", _NVME),
    _Group(
        _OPTIM,
        "ratio super_offload cpuadam_cores_perc",
        "CPUOffloadPolicy takes all of the optimizer, with torch's step",
    ),
    _Group(_Z, "zenflow.*", "FSDP2 updates all weights in each step, on one device"),
    _Group(_Z, "load_from_fp32_weights elastic_checkpoint pipeline_loading_checkpoint", _FORMAT),
    _Group(_Z, "mics_hierarchical_params_gather zeropp_loco_param.*", _REMOVED),
    _Group(
        "",
        "nebula.* compression_training.* amp.* quantize_training.* sparse_gradients eigenvalue.* sparse_attention.* "
        "elasticity.* graph_harvesting curriculum_learning.* progressive_layer_drop.*",
        _REMOVED,
    ),
    _Group("bf16.", "immediate_grad_update", _ENGINE),
    _Group(
        "bf16.",
        "check_grad_overflow",
        "FSDP2 skips no step by itself: DeepSpeed leaves one out whose gradients are not finite, so look at the norm "
        "that clip_grad_norm_ returns",
    ),
    _Group("fp16.", "auto_cast", "MixedPrecisionPolicy casts inputs by itself (cast_forward_inputs)"),
    _Group(
        "fp16.",
        "hysteresis consecutive_hysteresis min_loss_scale",
        "torch.amp.GradScaler halves the scale at each overflow, with no patience and no floor",
    ),
    _Group(
        "fp16.",
        "fp16_master_weights_and_grads",
        "weights in fp16 with no fp32 copy do not train under FSDP2: GradScaler refuses fp16 gradients",
    ),
    _Group("torch_autocast.", "lower_precision_safe_modules", "torch.autocast decides by operation, not by module"),
    _Group(
        "data_types.",
        "grad_accum_dtype",
        "FSDP2 adds gradients up in the dtype of the sharded weights (fp32 where they were loaded so), DeepSpeed in "
        "what it computes in unless told otherwise",
    ),
    _Group(
        "data_types.",
        "param_dtype buffer_dtype keep_in_fp32_modules",
        "FSDP2 casts parameters as the policy of their module says and leaves buffers as they are: give modules that "
        "have to stay in fp32 a policy of their own",
    ),
    _Group("", "seq_parallel_communication_data_type", "context parallelism of torch has no such choice"),
    _Group(
        "", "sequence_parallel_size", "it is Ulysses' sequence parallelism; torch's is context_parallel, a mesh axis"
    ),
    _Group(
        "",
        "prescale_gradients gradient_predivide_factor",
        "FSDP2 divides by the number of ranks, before or after as the dtype needs; set_gradient_divide_factor is near",
    ),
    _Group("", "gradient_allreduce_op", "FSDP2 averages; set_gradient_divide_factor(1.0) sums"),
    _Group(
        "", "managed_gradient_accumulation disable_python_gc", "the training loop is one's own under FSDP2, and decides"
    ),
    _Group(
        _STEP,
        "bias_correction torch_adam fp32_optimizer_states amsgrad max_coeff min_coeff freeze_step cuda_aware muon_lr "
        "comm_backend_name adam_lr ns_method nesterov foreach fused set_grad_none dampening max_grad_norm",
        _TORCHS_STEP,
    ),
    _Group("", "optimizer.legacy_fusion zero_force_ds_cpu_optimizer", _TORCHS_STEP),
    _Group(
        _CURVE,
        "last_batch_iteration lr_range_test_min_lr lr_range_test_step_rate lr_range_test_step_size cycle_min_lr "
        "lr_range_test_staircase cycle_max_lr decay_lr_rate cycle_first_step_size cycle_second_step_size "
        "cycle_first_stair_count cycle_second_stair_count decay_step_size cycle_momentum cycle_min_mom cycle_max_mom "
        "decay_mom_rate",
        "LRRangeTest and OneCycle are not rewritten; torch.optim.lr_scheduler has relatives that count otherwise",
    ),
    _Group(
        "activation_checkpointing.",
        "partition_activations contiguous_memory_optimization number_checkpoints profile "
        "synchronize_checkpoint_boundary",
        "torch.utils.checkpoint has no such option; sequence parallelism divides what partition_activations does",
    ),
    _Group(
        "", "compile.*", "DeepCompile's passes are DeepSpeed's own; torch.compile of each layer goes with fully_shard"
    ),
    _Group("", "zero_allow_untested_optimizer", "FSDP2 takes every optimizer of torch that works on DTensors"),
    _Group("", "steps_per_print wall_clock_breakdown memory_breakdown dump_state log_level vocabulary_size", _LOGS),
    _Group(
        "", "tensorboard.* wandb.* csv_monitor.* comet.* flops_profiler.* comms_logger.* timers.* autotuning.*", _LOGS
    ),
    _Group("", "disable_allgather allgather_size aio.* hybrid_engine.* weight_quantization.*", _ENGINE),
    _Group("", "dataloader_drop_last", "it is the DataLoader's drop_last, which the script sets"),
    _Group("", "data_efficiency.*", "curriculum and random layer dropping are in the script, if anywhere"),
    _Group("", "checkpoint.* datastates_ckpt.*", _FORMAT),
    _Group("", "pipeline.*", "it tunes a PipelineModule of the script; torch.distributed.pipelining is code, too"),
    _Group("", "tensor_parallel.*", "tensor parallelism is a mesh axis and a plan of layers (parallelize_module)"),
    _Group("", "expert_parallel.*", "expert parallelism is in the model's code under torch (torchtitan has it)"),
    _Group("", "use_data_before_expert_parallelism", "the order of mesh axes says it"),
)


def _keys() -> Iterator[tuple[str, tuple[str, bool]]]:
    for above, names, why in _GROUPS:
        for name in names.split():
            yield f"{above}{name.removesuffix('.*')}", (why, name.endswith(".*"))


#: By key: why, and whether for all that stands below it.
UNTAKEN: Mapping[str, tuple[str, bool]] = dict(_keys())
