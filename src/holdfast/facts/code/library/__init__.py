"""Which calls and attributes of libraries are collectives, which differ over ranks, and which make values agree.

Sources: torch 2.13 torch/distributed/distributed_c10d.py, _functional_collectives.py, fsdp and checkpoint; accelerate
1.15 accelerator.py and utils/operations.py; lightning 2.6 fabric and strategies; deepspeed 0.19 runtime/engine.py;
torchmetrics 1.9 metric.py; megatron.core parallel_state.py.
"""

from __future__ import annotations

import msgspec

from holdfast.facts.code.values import Kind


class Collective(msgspec.Struct, frozen=True):
    """A call that every member of a group has to make.

    ``agrees`` is the argument that holds the same on all ranks afterwards ("return": what it returns); ``root`` the
    argument that all must give alike; ``shaped`` the one whose shape has to be the same on all.
    """

    name: str
    agrees: str = ""
    root: str = ""
    shaped: str = ""
    kind: str = "collective"
    parameters: tuple[str, ...] = ()


def _c(  # one row of a table
    name: str, parameters: str, agrees: str = "", root: str = "", shaped: str = "", kind: str = "collective"
) -> Collective:
    return Collective(name, agrees, root, shaped, kind, tuple(parameters.split()))


_DIST = {
    each.name: each
    for each in (
        _c("all_reduce", "tensor op group async_op", "tensor", "", "tensor"),
        _c("all_reduce_coalesced", "tensors op group async_op", "tensors"),
        _c("broadcast", "tensor src group async_op group_src", "tensor", "src", "tensor"),
        _c("broadcast_object_list", "object_list src group device group_src", "object_list", "src"),
        _c("reduce", "tensor dst op group async_op group_dst", "", "dst"),
        _c("all_gather", "tensor_list tensor group async_op", "tensor_list", "", "tensor"),
        _c("all_gather_into_tensor", "output_tensor input_tensor group async_op", "output_tensor", "", "input_tensor"),
        _c("_all_gather_base", "output_tensor input_tensor group async_op", "output_tensor"),
        _c("all_gather_object", "object_list obj group", "object_list"),
        _c("all_gather_coalesced", "output_tensor_lists input_tensor_list group async_op", "output_tensor_lists"),
        _c("gather", "tensor gather_list dst group async_op group_dst", "", "dst"),
        _c("gather_object", "obj object_gather_list dst group group_dst", "", "dst"),
        _c("scatter", "tensor scatter_list src group async_op group_src", "", "src"),
        _c(
            "scatter_object_list", "scatter_object_output_list scatter_object_input_list src group group_src", "", "src"
        ),
        _c("reduce_scatter", "output input_list op group async_op"),
        _c("reduce_scatter_tensor", "output input op group async_op"),
        _c("_reduce_scatter_base", "output input op group async_op"),
        _c("all_to_all", "output_tensor_list input_tensor_list group async_op"),
        _c("all_to_all_single", "output input output_split_sizes input_split_sizes group async_op"),
        _c("barrier", "group async_op device_ids"),
        _c("monitored_barrier", "group timeout wait_all_ranks"),
        _c("new_group", "ranks timeout backend pg_options use_local_synchronization", kind="creation"),
        _c("new_subgroups", "group_size group timeout", kind="creation"),
        _c("new_subgroups_by_enumeration", "ranks_per_subgroup_list timeout", kind="creation"),
        _c("split_group", "parent_pg split_ranks", kind="creation"),
    )
}
_POINT_TO_POINT = {
    each.name: each
    for each in (
        _c("send", "tensor dst group tag group_dst", kind="send"),
        _c("recv", "tensor src group tag group_src", kind="recv"),
    )
}
#: By canonical name; ``deepspeed.comm`` has the same functions.
CALLS: dict[str, Collective] = {f"torch.distributed.{name}": each for name, each in (_DIST | _POINT_TO_POINT).items()}
CALLS |= {f"deepspeed.comm.{name}": each for name, each in _DIST.items()}
CALLS |= {
    f"accelerate.utils.{name}": _c(name, "tensor", "return")
    for name in ("gather", "gather_object", "broadcast", "broadcast_object_list", "reduce", "pad_across_processes")
}
CALLS["accelerate.utils.broadcast_object_list"] = _c("broadcast_object_list", "object_list from_process", "object_list")
CALLS |= {
    f"torch.distributed.nn.{part}{name}": _c(name, "tensor", "return")
    for part in ("", "functional.")
    for name in ("all_reduce", "all_gather", "broadcast", "reduce", "gather", "scatter", "reduce_scatter", "all_to_all",
                 "all_to_all_single")
}  # fmt: skip
CALLS |= {
    f"torch.distributed._functional_collectives.{name}": _c(name, "tensor op group", "return")
    for name in ("all_reduce", "broadcast", "all_gather_tensor", "reduce_scatter_tensor", "all_to_all_single")
}
_SHARDED = {
    "torch.distributed.checkpoint": ("save", "load", "async_save", "save_state_dict", "load_state_dict"),
    "torch.distributed.checkpoint.state_dict": (
        "get_model_state_dict", "get_state_dict", "get_optimizer_state_dict", "set_model_state_dict", "set_state_dict",
        "set_optimizer_state_dict"),
    "torch.distributed.fsdp.FullyShardedDataParallel": (
        "summon_full_params", "optim_state_dict", "full_optim_state_dict", "scatter_full_optim_state_dict"),
    "deepspeed.zero": ("GatheredParameters",),
    "megatron.core.dist_checkpointing": ("save", "load"),
}  # fmt: skip
CALLS |= {f"{home}.{name}": _c(name, "", kind="sharded") for home, names in _SHARDED.items() for name in names}
CALLS["torch.distributed.device_mesh.init_device_mesh"] = _c(
    "init_device_mesh", "device_type mesh_shape", kind="creation"
)
CALLS["deepspeed.comm.init_distributed"] = _c("init_process_group", "backend", kind="init")
CALLS["deepspeed.init_distributed"] = _c("init_process_group", "backend", kind="init")
CALLS["torch.distributed.init_process_group"] = _c("init_process_group", "backend", kind="init")

#: Methods of instances of library classes, by the class.
METHODS: dict[str, dict[str, Collective]] = {
    "accelerate.Accelerator": {
        "gather": _c("gather", "tensor", "return"),
        "gather_for_metrics": _c("gather_for_metrics", "input_data", "return"),
        "reduce": _c("reduce", "tensor", "return"),
        "pad_across_processes": _c("pad_across_processes", "tensor", "return"),
        "wait_for_everyone": _c("wait_for_everyone", ""),
        "save_state": _c("save_state", "output_dir", kind="sharded"),
        "load_state": _c("load_state", "input_dir", kind="sharded"),
        "get_state_dict": _c("get_state_dict", "model", kind="sharded"),
        "check_trigger": _c("check_trigger", "", "return"),
    },
    "lightning.Fabric": {
        "barrier": _c("barrier", "name"),
        "all_gather": _c("all_gather", "data", "return"),
        "all_reduce": _c("all_reduce", "data", "return"),
        "broadcast": _c("broadcast", "obj", "return"),
        "save": _c("save", "path state", kind="sharded"),
        "load": _c("load", "path state", kind="sharded"),
    },
    "lightning.Trainer": {
        "save_checkpoint": _c("save_checkpoint", "filepath", kind="sharded"),
        "validate": _c("validate", ""),
        "test": _c("test", ""),
        "fit": _c("fit", ""),
        "predict": _c("predict", ""),
    },
    "lightning.Module": {"all_gather": _c("all_gather", "data", "return")},
    "lightning.Strategy": {
        "barrier": _c("barrier", "name"),
        "broadcast": _c("broadcast", "obj", "return"),
        "all_gather": _c("all_gather", "tensor", "return"),
        "reduce": _c("reduce", "tensor", "return"),
        "reduce_boolean_decision": _c("reduce_boolean_decision", "decision", "return"),
    },
    "deepspeed.Engine": {
        "save_checkpoint": _c("save_checkpoint", "save_dir", kind="sharded"),
        "load_checkpoint": _c("load_checkpoint", "load_dir", kind="sharded"),
        "save_16bit_model": _c("save_16bit_model", "save_dir", kind="sharded"),
        "save_fp16_model": _c("save_fp16_model", "save_dir", kind="sharded"),
        "step": _c("step", ""),
        "backward": _c("backward", "loss", kind="backward"),
        "train_batch": _c("train_batch", "", "return"),
        "eval_batch": _c("eval_batch", "", "return"),
    },
    "transformers.Trainer": {
        "train": _c("train", ""),
        "evaluate": _c("evaluate", "", "return"),
        "predict": _c("predict", ""),
        "save_model": _c("save_model", "output_dir", kind="sharded"),
    },
    "torchmetrics.Metric": {"compute": _c("compute", "", "return"), "sync": _c("sync", "")},
    "torch.distributed.fsdp": {
        "state_dict": _c("state_dict", "", kind="sharded"),
        "clip_grad_norm_": _c("clip_grad_norm_", "max_norm", "return"),
        "unshard": _c("unshard", "", kind="forward"),
    },
    "torch.distributed.optim.ZeroRedundancyOptimizer": {
        "consolidate_state_dict": _c("consolidate_state_dict", "to", kind="sharded"),
    },
    "torch.distributed.tensor.DTensor": {
        "full_tensor": _c("full_tensor", "", "return"),
        "redistribute": _c("redistribute", ""),
    },
}
#: Attributes and variables of which nothing is known, by their names.
NAMED = {"accelerator": "accelerate.Accelerator", "fabric": "lightning.Fabric", "strategy": "lightning.Strategy"}
#: Methods that no other library has: a receiver of which nothing is known is believed to be the one.
DISTINCT: dict[str, Collective] = {
    name: METHODS[home][name]
    for home, names in {
        "accelerate.Accelerator": ("gather_for_metrics", "wait_for_everyone", "pad_across_processes"),
        "lightning.Strategy": ("reduce_boolean_decision",),
        "deepspeed.Engine": ("save_16bit_model", "save_fp16_model"),
        "torch.distributed.tensor.DTensor": ("full_tensor",),
    }.items()
    for name in names
}

_RANK, _LOCAL = Kind.RANK, Kind.LOCAL_RANK
#: Calls whose result differs over ranks.
VARYING: dict[str, Kind] = {
    "torch.distributed.get_rank": _RANK, "torch.distributed.get_node_local_rank": _LOCAL,
    "torch.distributed.get_group_rank": _RANK, "deepspeed.comm.get_rank": _RANK,
    "deepspeed.comm.get_local_rank": _LOCAL,
    "socket.gethostname": Kind.HOST, "platform.node": Kind.HOST, "os.getpid": Kind.HOST, "os.uname": Kind.HOST,
    "time.time": Kind.TIME, "time.monotonic": Kind.TIME, "time.perf_counter": Kind.TIME, "time.time_ns": Kind.TIME,
    "datetime.datetime.now": Kind.TIME, "datetime.now": Kind.TIME, "time.perf_counter_ns": Kind.TIME,
    "time.monotonic_ns": Kind.TIME, "datetime.datetime.utcnow": Kind.TIME, "timeit.default_timer": Kind.TIME,
    "os.path.exists": Kind.FILES, "os.path.isfile": Kind.FILES, "os.path.isdir": Kind.FILES, "os.listdir": Kind.FILES,
    "glob.glob": Kind.FILES, "os.path.getsize": Kind.FILES, "os.path.getmtime": Kind.FILES, "os.scandir": Kind.FILES,
    "shutil.disk_usage": Kind.FILES, "torch.cuda.memory_allocated": Kind.DATA, "torch.cuda.mem_get_info": Kind.DATA,
    "torch.cuda.max_memory_allocated": Kind.DATA, "psutil.virtual_memory": Kind.DATA,
    "torch.cuda.current_device": Kind.HOST,
    "megatron.core.parallel_state.get_data_parallel_rank": _RANK, "torch.isnan": Kind.DATA, "torch.isinf": Kind.DATA,
    "torch.isfinite": Kind.DATA, "math.isnan": Kind.DATA, "math.isinf": Kind.DATA, "math.isfinite": Kind.DATA,
    "numpy.isnan": Kind.DATA, "numpy.isfinite": Kind.DATA, "numpy.isinf": Kind.DATA,
}  # fmt: skip
#: Of these, what says nothing on a value that is the same on all ranks.
PREDICATES = frozenset(name for name in VARYING if name.rpartition(".")[2] in ("isnan", "isinf", "isfinite"))
#: Methods that ask the file system, whatever the receiver is.
FILE_TESTS = frozenset({"exists", "is_file", "is_dir"})
#: Methods of tensors that are predicates on data.
DATA_TESTS = frozenset({"isnan", "isinf", "isfinite"})
#: Attributes and methods that differ over ranks, on a receiver of which nothing is known.
VARYING_NAMES: dict[str, Kind] = {
    "is_main_process": _RANK, "is_local_main_process": _LOCAL, "process_index": _RANK, "local_process_index": _LOCAL,
    "is_global_zero": _RANK, "global_rank": _RANK, "local_rank": _LOCAL, "is_world_process_zero": _RANK,
    "is_local_process_zero": _LOCAL, "is_last_process": _RANK, "node_rank": _RANK, "global_zero": _RANK,
    "is_rank_zero": _RANK, "is_master": _RANK, "is_main": _RANK, "get_local_rank": _RANK, "get_coordinate": _RANK,
    "is_first_rank": _RANK, "is_last_rank": _RANK,
}  # fmt: skip
#: Variables of the environment that differ.
VARYING_VARIABLES: dict[str, Kind] = {
    "RANK": _RANK, "LOCAL_RANK": _LOCAL, "GROUP_RANK": _RANK, "NODE_RANK": _RANK, "SLURM_PROCID": _RANK,
    "SLURM_LOCALID": _LOCAL, "SLURM_NODEID": _RANK, "OMPI_COMM_WORLD_RANK": _RANK, "OMPI_COMM_WORLD_LOCAL_RANK": _LOCAL,
    "PMI_RANK": _RANK, "ROLE_RANK": _RANK, "HOSTNAME": _RANK,
}  # fmt: skip
#: Parameters that hold a rank where nobody in sight calls the function.
RANK_PARAMETERS = frozenset({"rank", "local_rank", "global_rank", "proc_id", "process_index", "gpu_id", "world_rank"})
#: Decorators under which only rank 0 (of all, of a node) enters the function.
GUARDS: dict[str, Kind] = {
    "rank_zero_only": _RANK, "on_main_process": _RANK, "on_local_main_process": _LOCAL, "on_process": _RANK,
    "on_last_process": _RANK, "on_local_process": _LOCAL, "master_only": _RANK, "main_process_only": _RANK,
    "is_main_process_only": _RANK,
}  # fmt: skip
#: Library classes by canonical name, as the table of methods calls them.
CLASSES: dict[str, str] = {
    "accelerate.Accelerator": "accelerate.Accelerator", "accelerate.accelerator.Accelerator": "accelerate.Accelerator",
    "accelerate.PartialState": "accelerate.Accelerator",
    "accelerate.state.PartialState": "accelerate.Accelerator",
    "lightning.Fabric": "lightning.Fabric", "lightning.fabric.Fabric": "lightning.Fabric",
    "lightning_fabric.Fabric": "lightning.Fabric", "lightning.fabric.fabric.Fabric": "lightning.Fabric",
    "lightning.Trainer": "lightning.Trainer", "lightning.pytorch.Trainer": "lightning.Trainer",
    "pytorch_lightning.Trainer": "lightning.Trainer", "transformers.Trainer": "transformers.Trainer",
    "transformers.Seq2SeqTrainer": "transformers.Trainer",
    "lightning.LightningModule": "lightning.Module", "lightning.pytorch.LightningModule": "lightning.Module",
    "pytorch_lightning.LightningModule": "lightning.Module",
    "torch.nn.parallel.DistributedDataParallel": "wrapped:ddp", "torch.nn.parallel.distributed.DistributedDataParallel":
    "wrapped:ddp", "torch.distributed.fsdp.FullyShardedDataParallel": "wrapped:fsdp",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": "wrapped:fsdp",
    "deepspeed.DeepSpeedEngine": "deepspeed.Engine", "deepspeed.runtime.engine.DeepSpeedEngine": "deepspeed.Engine",
    "torch.utils.data.DistributedSampler": "sampler", "torch.utils.data.distributed.DistributedSampler": "sampler",
    "torch.utils.data.DataLoader": "loader", "torch.utils.data.dataloader.DataLoader": "loader",
    "torch.optim.lr_scheduler.ReduceLROnPlateau": "plateau",
    "torch.autograd.Function": "autograd", "torch.autograd.function.Function": "autograd",
    "torch.amp.GradScaler": "scaler", "torch.cuda.amp.GradScaler": "scaler",
    "torch.amp.grad_scaler.GradScaler": "scaler",
    "torch.distributed.optim.ZeroRedundancyOptimizer": "torch.distributed.optim.ZeroRedundancyOptimizer",
    "torch.distributed.optim.zero_redundancy_optimizer.ZeroRedundancyOptimizer":
    "torch.distributed.optim.ZeroRedundancyOptimizer",
    "threading.Thread": "thread", "threading.Timer": "thread", "concurrent.futures.ThreadPoolExecutor": "executor",
    "concurrent.futures.thread.ThreadPoolExecutor": "executor",
}  # fmt: skip
#: Groups of a mesh or of Megatron's state: some of the ranks.
SUB_GROUPS = ("get_group", "get_process_group", "_group")
