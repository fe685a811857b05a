"""Tables of library calls and attributes: collectives, values that differ, values that agree.

Sources: torch 2.13 torch/distributed/distributed_c10d.py, _functional_collectives.py, fsdp and
checkpoint; accelerate 1.15 accelerator.py and utils/operations.py; lightning 2.6 fabric and
strategies; deepspeed 0.19 runtime/engine.py; torchmetrics 1.9 metric.py; megatron.core
parallel_state.py. What the tables do not list comes from
:mod:`~holdfast.lint.library_summaries`, which is derived from the libraries' source.
"""

from __future__ import annotations

import msgspec

from holdfast.lint import framework_calls
from holdfast.lint.library_summaries import CallSummary, load_summaries


class CollectiveCall(msgspec.Struct, frozen=True):
    """A call that every member of a group has to make.

    ``agrees`` is the argument that is equal on all ranks afterwards ("return": the result);
    ``root`` the argument that must be equal on all ranks; ``shaped`` the one whose shape must be;
    ``unless`` are flags with which it enters no collective.
    """

    name: str
    agrees: str = ""
    root: str = ""
    shaped: str = ""
    kind: str = "collective"
    parameters: tuple[str, ...] = ()
    unless: tuple[tuple[str, bool], ...] = ()


def _collective(  # one row of a table
    name: str,
    parameters: str,
    agrees: str = "",
    root: str = "",
    shaped: str = "",
    kind: str = "collective",
) -> CollectiveCall:
    return CollectiveCall(name, agrees, root, shaped, kind, tuple(parameters.split()))


_DIST = {
    collective.name: collective
    for collective in (
        _collective("all_reduce", "tensor op group async_op", "tensor", "", "tensor"),
        _collective("all_reduce_coalesced", "tensors op group async_op", "tensors"),
        _collective("broadcast", "tensor src group async_op group_src", "tensor", "src", "tensor"),
        _collective(
            "broadcast_object_list", "object_list src group device group_src", "object_list", "src"
        ),
        _collective("reduce", "tensor dst op group async_op group_dst", "", "dst", "tensor"),
        _collective("all_gather", "tensor_list tensor group async_op", "tensor_list", "", "tensor"),
        _collective(
            "all_gather_into_tensor",
            "output_tensor input_tensor group async_op",
            "output_tensor",
            "",
            "input_tensor",
        ),
        _collective(
            "_all_gather_base", "output_tensor input_tensor group async_op", "output_tensor"
        ),
        _collective("all_gather_object", "object_list obj group", "object_list"),
        _collective(
            "all_gather_coalesced",
            "output_tensor_lists input_tensor_list group async_op",
            "output_tensor_lists",
        ),
        _collective("gather", "tensor gather_list dst group async_op group_dst", "", "dst"),
        _collective("gather_object", "obj object_gather_list dst group group_dst", "", "dst"),
        _collective("scatter", "tensor scatter_list src group async_op group_src", "", "src"),
        _collective(
            "scatter_object_list",
            "scatter_object_output_list scatter_object_input_list src group group_src",
            "",
            "src",
        ),
        _collective("reduce_scatter", "output input_list op group async_op"),
        _collective("reduce_scatter_tensor", "output input op group async_op"),
        _collective("_reduce_scatter_base", "output input op group async_op"),
        _collective("all_to_all", "output_tensor_list input_tensor_list group async_op"),
        _collective(
            "all_to_all_single", "output input output_split_sizes input_split_sizes group async_op"
        ),
        _collective("barrier", "group async_op device_ids"),
        _collective("monitored_barrier", "group timeout wait_all_ranks"),
        _collective(
            "new_group",
            "ranks timeout backend pg_options use_local_synchronization",
            kind="creation",
        ),
        _collective("new_subgroups", "group_size group timeout", kind="creation"),
        _collective(
            "new_subgroups_by_enumeration", "ranks_per_subgroup_list timeout", kind="creation"
        ),
        _collective("split_group", "parent_pg split_ranks", kind="creation"),
    )
}
_POINT_TO_POINT = {
    collective.name: collective
    for collective in (
        _collective("send", "tensor dst group tag group_dst", kind="send"),
        _collective("recv", "tensor src group tag group_src", kind="recv"),
    )
}
#: By canonical name; ``deepspeed.comm`` has the same functions.
CALLS: dict[str, CollectiveCall] = {
    f"torch.distributed.{name}": collective
    for name, collective in (_DIST | _POINT_TO_POINT).items()
}
CALLS |= {f"deepspeed.comm.{name}": collective for name, collective in _DIST.items()}
_ACCELERATE = (
    "gather", "gather_object", "broadcast", "broadcast_object_list", "reduce",
    "pad_across_processes",
)  # fmt: skip
_DIFFERENTIABLE = (
    "all_reduce", "all_gather", "broadcast", "reduce", "gather", "scatter", "reduce_scatter",
    "all_to_all", "all_to_all_single",
)  # fmt: skip
_FUNCTIONAL = (
    "all_reduce", "broadcast", "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single",
)  # fmt: skip
_SHARDED = {
    "torch.distributed.checkpoint": (
        "async_save",
    ),
    "torch.distributed.checkpoint.state_dict": (
        "get_model_state_dict", "get_state_dict", "get_optimizer_state_dict",
        "set_model_state_dict", "set_state_dict", "set_optimizer_state_dict",
    ),
    "torch.distributed.fsdp.FullyShardedDataParallel": (
        "summon_full_params", "optim_state_dict", "full_optim_state_dict",
        "scatter_full_optim_state_dict",
    ),
    "deepspeed.zero": ("GatheredParameters",),
    # ZeRO: each rank has a part of every parameter
    "deepspeed.utils": (
        "safe_get_full_fp32_param", "safe_get_full_grad", "safe_get_full_optimizer_state",
        "safe_set_full_fp32_param", "safe_set_full_optimizer_state",
    ),
    "torch_xla.core.xla_model": ("save",),
    "megatron.core.dist_checkpointing": ("save", "load"),
}  # fmt: skip
CALLS |= {f"accelerate.utils.{name}": _collective(name, "tensor", "return") for name in _ACCELERATE}
CALLS["accelerate.utils.gather"] = _collective("gather", "tensor", "return", shaped="tensor")
CALLS["accelerate.utils.broadcast_object_list"] = _collective(
    "broadcast_object_list", "object_list from_process", "object_list"
)
CALLS |= {
    f"torch.distributed.nn.{part}{name}": _collective(name, "tensor", "return")
    for part in ("", "functional.")
    for name in _DIFFERENTIABLE
}
CALLS |= {
    f"torch.distributed._functional_collectives.{name}": _collective(
        name, "tensor op group", "return"
    )
    for name in _FUNCTIONAL
}
CALLS |= {
    f"{home}.{name}": _collective(name, "", kind="sharded")
    for home, names in _SHARDED.items()
    for name in names
}
CALLS["torch.distributed.tensor.distribute_tensor"] = _collective("distribute_tensor", "tensor")
_MESHES = (
    _collective("init_device_mesh", "device_type mesh_shape", kind="creation"),
    _collective("DeviceMesh", "device_type mesh", kind="creation"),
)
#: Calls that create a mesh, and the groups along its dimensions on all ranks.
MESHES = {
    f"torch.distributed.{home}{collective.name}": collective
    for home in ("", "device_mesh.", "tensor.", "_tensor.")
    for collective in _MESHES
}
CALLS |= MESHES
CALLS["deepspeed.comm.init_distributed"] = _collective("init_process_group", "backend", kind="init")
CALLS["deepspeed.init_distributed"] = _collective("init_process_group", "backend", kind="init")
CALLS["torch.distributed.init_process_group"] = _collective(
    "init_process_group", "backend", kind="init"
)

# Horovod 0.28 horovod/torch/mpi_ops.py and functions.py; torch_xla 2.9 core/xla_model.py
_HOROVOD = (
    "allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "grouped_allreduce",
    "broadcast_object", "allgather_object",
)  # fmt: skip
_HOROVOD_IN_PLACE = (
    "allreduce_", "broadcast_", "broadcast_parameters", "broadcast_optimizer_state", "barrier",
    "join",
)  # fmt: skip
_XLA = (
    "all_reduce", "all_gather", "all_to_all", "reduce_scatter", "mesh_reduce", "rendezvous",
    "collective_broadcast", "broadcast_master_param", "optimizer_step",
)  # fmt: skip
CALLS |= {f"horovod.torch.{name}": _collective(name, "tensor", "return") for name in _HOROVOD}
CALLS |= {f"horovod.torch.{name}": _collective(name, "") for name in _HOROVOD_IN_PLACE}
CALLS |= {f"torch_xla.core.xla_model.{name}": _collective(name, "") for name in _XLA}
CALLS |= {
    f"ignite.distributed.{home}{name}": _collective(name, parameters, "return")
    for home in ("", "utils.")
    for name, parameters in framework_calls.IGNITE_CALLS
}

CALLS |= {
    f"mmengine.dist.{name}": _collective(name, parameters, "return")
    for name, parameters in framework_calls.MMENGINE_CALLS
}

#: Methods of library instances, by class.
METHODS: dict[str, dict[str, CollectiveCall]] = {
    "accelerate.Accelerator": {
        "gather": _collective("gather", "tensor", "return", shaped="tensor"),
        "gather_for_metrics": _collective(
            "gather_for_metrics", "input_data", "return", shaped="input_data"
        ),
        "load_state": _collective("load_state", "input_dir", kind="sharded"),
        "get_state_dict": _collective("get_state_dict", "model", kind="sharded"),
    },
    "lightning.Fabric": {
        "barrier": _collective("barrier", "name"),
        "all_gather": _collective("all_gather", "data", "return"),
        "all_reduce": _collective("all_reduce", "data", "return"),
        "broadcast": _collective("broadcast", "obj", "return"),
        "save": _collective("save", "path state", kind="sharded"),
        "load": _collective("load", "path state", kind="sharded"),
    },
    "lightning.Trainer": {
        "save_checkpoint": _collective("save_checkpoint", "filepath", kind="sharded"),
        "validate": _collective("validate", ""),
        "test": _collective("test", ""),
        "fit": _collective("fit", ""),
        "predict": _collective("predict", ""),
    },
    "lightning.Module": {"all_gather": _collective("all_gather", "data", "return")},
    "lightning.Strategy": {
        "barrier": _collective("barrier", "name"),
        "broadcast": _collective("broadcast", "obj", "return"),
        "all_gather": _collective("all_gather", "tensor", "return"),
        "reduce": _collective("reduce", "tensor", "return"),
        "reduce_boolean_decision": _collective("reduce_boolean_decision", "decision", "return"),
    },
    "deepspeed.Engine": {
        "save_checkpoint": _collective("save_checkpoint", "save_dir", kind="sharded"),
        "load_checkpoint": _collective("load_checkpoint", "load_dir", kind="sharded"),
        "save_16bit_model": _collective("save_16bit_model", "save_dir", kind="sharded"),
        "save_fp16_model": _collective("save_fp16_model", "save_dir", kind="sharded"),
        "step": _collective("step", ""),
        "backward": _collective("backward", "loss", kind="backward"),
        "train_batch": _collective("train_batch", "", "return"),
        "eval_batch": _collective("eval_batch", "", "return"),
    },
    "transformers.Trainer": {
        "evaluate": _collective("evaluate", "", "return"),
        "save_model": _collective("save_model", "output_dir", kind="sharded"),
    },
    "torchmetrics.Metric": {
        "compute": _collective("compute", "", "return"),
        "sync": _collective("sync", ""),
    },
    "torch.distributed.fsdp": {
        "state_dict": _collective("state_dict", "", kind="sharded"),
        "clip_grad_norm_": _collective("clip_grad_norm_", "max_norm", "return"),
        "unshard": _collective("unshard", "", kind="forward"),
    },
    "zero-optimizer": {
        "consolidate_state_dict": _collective("consolidate_state_dict", "to", kind="sharded"),
        "step": _collective("step", ""),  # each rank broadcasts the parameters that it updates
    },
    "pipeline-schedule": {
        "step": _collective("step", "", "return"),
    },
    "horovod.Optimizer": {
        "step": _collective("step", ""),
        "synchronize": _collective("synchronize", ""),
    },
    "torch.distributed.tensor.DTensor": {
        "full_tensor": _collective("full_tensor", "", "return"),
        "redistribute": _collective("redistribute", ""),
    },
}
#: Class of an unknown attribute or variable, by its name.
RECEIVER_NAMES = {
    "accelerator": "accelerate.Accelerator",
    "fabric": "lightning.Fabric",
    "strategy": "lightning.Strategy",
}
NAMED_COLLECTIVES: dict[str, CollectiveCall] = {
    name: _collective(name, "tensor", "return")
    for name in (
        "barrier", "all_reduce", "all_gather", "all_gather_object", "all_reduce_mean",
        "reduce_dict", "reduce_mean", "broadcast_object", "broadcast_object_list", "ddp_barrier",
        "dist_barrier", "barrier_if_distributed", "synchronize_barrier",
    )
}  # fmt: skip
#: Parameters that hold a rank if nothing in the program calls the function.
RANK_PARAMETERS = frozenset(
    {"rank", "local_rank", "global_rank", "proc_id", "process_index", "gpu_id", "world_rank"}
)
#: Methods of a torch module that return it.
MODULE_METHODS = frozenset({
    "to", "cuda", "cpu", "half", "float", "bfloat16", "double", "requires_grad_", "apply",
    "share_memory",
})  # fmt: skip
#: Library classes: canonical name → name in the table of methods.
CLASSES: dict[str, str] = {
    "accelerate.Accelerator": "accelerate.Accelerator",
    "accelerate.accelerator.Accelerator": "accelerate.Accelerator",
    "accelerate.PartialState": "accelerate.Accelerator",
    "accelerate.state.PartialState": "accelerate.Accelerator",
    "lightning.Fabric": "lightning.Fabric",
    "lightning.fabric.Fabric": "lightning.Fabric",
    "lightning_fabric.Fabric": "lightning.Fabric",
    "lightning.fabric.fabric.Fabric": "lightning.Fabric",
    "lightning.Trainer": "lightning.Trainer",
    "lightning.pytorch.Trainer": "lightning.Trainer",
    "pytorch_lightning.Trainer": "lightning.Trainer",
    "transformers.Trainer": "transformers.Trainer",
    "transformers.Seq2SeqTrainer": "transformers.Trainer",
    "lightning.LightningModule": "lightning.Module",
    "lightning.pytorch.LightningModule": "lightning.Module",
    "pytorch_lightning.LightningModule": "lightning.Module",
    "torch.nn.parallel.DistributedDataParallel": "wrapped:ddp",
    "torch.nn.parallel.distributed.DistributedDataParallel": "wrapped:ddp",
    "torch.distributed.fsdp.FullyShardedDataParallel": "wrapped:fsdp",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "wrapped:fsdp",
    "deepspeed.DeepSpeedEngine": "deepspeed.Engine",
    "deepspeed.runtime.engine.DeepSpeedEngine": "deepspeed.Engine",
    "torch.utils.data.DistributedSampler": "sampler",
    "torch.utils.data.distributed.DistributedSampler": "sampler",
    "torch.utils.data.DataLoader": "loader",
    "torch.utils.data.dataloader.DataLoader": "loader",
    "torch.optim.lr_scheduler.ReduceLROnPlateau": "plateau",
    "torch.autograd.Function": "autograd",
    "torch.autograd.function.Function": "autograd",
    "torch.amp.GradScaler": "scaler",
    "torch.cuda.amp.GradScaler": "scaler",
    "torch.amp.grad_scaler.GradScaler": "scaler",
    "torch.distributed.optim.ZeroRedundancyOptimizer": "zero-optimizer",
    "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer": "zero-optimizer",
    "horovod.torch.DistributedOptimizer": "horovod.Optimizer",
    **{
        f"torch.distributed.pipelining.{name}": "pipeline-schedule"
        for name in (
            "Schedule1F1B",
            "ScheduleGPipe",
            "ScheduleInterleaved1F1B",
            "ScheduleZBVZeroBubble",
        )
    },
    "threading.Thread": "thread",
    "threading.Timer": "thread",
    "concurrent.futures.ThreadPoolExecutor": "executor",
    "concurrent.futures.thread.ThreadPoolExecutor": "executor",
    **framework_calls.CLASSES,
}
#: Groups of a mesh or of Megatron's state: some of the ranks.
SUB_GROUPS = ("get_group", "get_process_group", "_group")
#: What was derived from the source of libraries, as in CALLS and CLASSES. If the library itself is
#: linted, its source counts.
DERIVED_CALLS: dict[str, CollectiveCall] = {}
DERIVED_CLASSES: dict[str, str] = {}
#: Methods that return their instance, by class.
SELF_RETURNING: dict[str, frozenset[str]] = {}


def _add_summaries() -> None:
    """Add what was derived from the libraries' source; entries of the tables above come first."""
    summaries = load_summaries()
    for function in summaries.functions:
        for name in function.names:
            if name not in CALLS:
                DERIVED_CALLS[name] = _summarized_call(function.call)
    for cls in summaries.classes:
        listed = [CLASSES[name] for name in cls.names if name in CLASSES]
        home = listed[0] if listed else next(iter(cls.names))
        methods = METHODS.setdefault(home, {})
        for call in cls.methods:
            methods.setdefault(call.name, _summarized_call(call))
        for name in cls.names:
            if name not in CLASSES:
                DERIVED_CLASSES[name] = home
        SELF_RETURNING[home] = frozenset(cls.returns_self)


def _summarized_call(call: CallSummary) -> CollectiveCall:
    agrees = "return" if call.agrees else ""
    unless = tuple(call.unless.items())
    return CollectiveCall(call.name, agrees, "", "", call.kind, call.parameters, unless)


#: Libraries whose functions have common names: they count only where an import shows them.
_RESOLVED_LIBRARIES = ("horovod.", "torch_xla.", "deepspeed.utils.")


def _last_names() -> frozenset[str]:
    calls = (name for name in CALLS if not name.startswith(_RESOLVED_LIBRARIES))
    return frozenset(name.rpartition(".")[2] for name in calls) | {
        name for methods in METHODS.values() for name in methods
    }


_names_typed_by_hand = _last_names()
for _home, _calls in framework_calls.METHODS.items():
    METHODS.setdefault(_home, {}).update(
        (name, _collective(name, parameters, kind=kind)) for name, parameters, kind in _calls
    )
_add_summaries()
#: Names of collectives, whatever the receiver: those above, and those of named receivers.
COLLECTIVE_NAMES = _names_typed_by_hand.union(*(METHODS[home] for home in RECEIVER_NAMES.values()))
#: Methods that only one library has: an unknown receiver is taken for that class.
UNIQUE_METHODS: dict[str, CollectiveCall] = {
    name: METHODS[home][name]
    for home, names in {
        "accelerate.Accelerator": (
            "gather_for_metrics",
            "wait_for_everyone",
            "pad_across_processes",
        ),
        "lightning.Strategy": ("reduce_boolean_decision", "barrier"),
        "deepspeed.Engine": ("save_16bit_model", "save_fp16_model"),
        "torch.distributed.tensor.DTensor": ("full_tensor",),
    }.items()
    for name in names
}
