"""Functions, attributes and variables whose values differ between ranks, as the tables of library.

They are data: names as programs import them, with the kind of difference.
"""

from __future__ import annotations

from holdfast.lint.abstract_domain.values import TaintKind

_RANK, _LOCAL = TaintKind.RANK, TaintKind.LOCAL_RANK
#: Calls whose result differs between ranks.
VARYING: dict[str, TaintKind] = {
    "torch.distributed.get_rank": _RANK, "torch.distributed.get_node_local_rank": _LOCAL,
    "horovod.torch.rank": _RANK, "horovod.torch.local_rank": _LOCAL,
    "horovod.torch.cross_rank": _RANK, "torch_xla.core.xla_model.get_ordinal": _RANK,
    "torch_xla.core.xla_model.get_local_ordinal": _LOCAL, "torch_xla.runtime.global_ordinal": _RANK,
    "torch_xla.core.xla_model.is_master_ordinal": _RANK,
    "torch_xla.runtime.local_ordinal": _LOCAL,
    "ignite.distributed.get_rank": _RANK, "ignite.distributed.get_local_rank": _LOCAL,
    "ignite.distributed.get_node_rank": _RANK,
    "mmengine.dist.get_rank": _RANK, "mmengine.dist.get_local_rank": _LOCAL,
    "mmengine.dist.is_main_process": _RANK,
    "torch.distributed.get_group_rank": _RANK, "deepspeed.comm.get_rank": _RANK,
    "deepspeed.comm.get_local_rank": _LOCAL, "socket.gethostname": TaintKind.HOST,
    "platform.node": TaintKind.HOST, "os.getpid": TaintKind.HOST, "os.uname": TaintKind.HOST,
    "uuid.uuid1": TaintKind.HOST, "uuid.uuid4": TaintKind.HOST,
    "time.time": TaintKind.TIME, "time.monotonic": TaintKind.TIME,
    "time.perf_counter": TaintKind.TIME, "time.time_ns": TaintKind.TIME,
    "time.strftime": TaintKind.TIME, "time.ctime": TaintKind.TIME, "time.localtime": TaintKind.TIME,
    "datetime.datetime.now": TaintKind.TIME, "datetime.now": TaintKind.TIME,
    "time.perf_counter_ns": TaintKind.TIME, "time.monotonic_ns": TaintKind.TIME,
    "datetime.datetime.utcnow": TaintKind.TIME, "timeit.default_timer": TaintKind.TIME,
    "os.path.exists": TaintKind.FILES, "os.path.isfile": TaintKind.FILES,
    "os.path.isdir": TaintKind.FILES, "os.listdir": TaintKind.FILES, "glob.glob": TaintKind.FILES,
    "os.path.getsize": TaintKind.FILES, "os.path.getmtime": TaintKind.FILES,
    "os.scandir": TaintKind.FILES, "shutil.disk_usage": TaintKind.FILES,
    "torch.cuda.memory_allocated": TaintKind.DATA, "torch.cuda.mem_get_info": TaintKind.DATA,
    "torch.cuda.max_memory_allocated": TaintKind.DATA, "psutil.virtual_memory": TaintKind.DATA,
    "torch.cuda.current_device": _LOCAL,
    "megatron.core.parallel_state.get_data_parallel_rank": _RANK, "torch.isnan": TaintKind.DATA,
    "torch.isinf": TaintKind.DATA, "torch.isfinite": TaintKind.DATA, "math.isnan": TaintKind.DATA,
    "math.isinf": TaintKind.DATA, "math.isfinite": TaintKind.DATA, "numpy.isnan": TaintKind.DATA,
    "numpy.isfinite": TaintKind.DATA, "numpy.isinf": TaintKind.DATA,
}  # fmt: skip
#: Those of them that are uniform for a uniform argument.
FINITENESS_TESTS = frozenset(
    name for name in VARYING if name.rpartition(".")[2] in ("isnan", "isinf", "isfinite")
)
#: Functions whose files are not linted and that are in no table, by the last part of the name.
NAMED_RANKS: dict[str, TaintKind] = {
    "get_rank": _RANK, "get_global_rank": _RANK, "get_local_rank": _LOCAL, "is_main_process": _RANK,
    "if_main_process": _RANK, "is_master": _RANK, "is_global_master": _RANK,
    "is_local_master": _LOCAL, "is_rank_zero": _RANK,
    "is_rank_0": _RANK, "is_rank0": _RANK, "is_local_main_process": _LOCAL, "is_main_proc": _RANK,
    "is_master_process": _RANK, "is_root": _RANK, "is_primary": _RANK, "is_dist_master": _RANK,
    "is_local_rank_0": _LOCAL, "is_local_leader": _LOCAL, "is_world_process_zero": _RANK,
}  # fmt: skip
#: Methods that query the file system, whatever the receiver.
FILE_TESTS = frozenset({"exists", "is_file", "is_dir"})
#: Methods of tensors that are predicates on data.
DATA_TESTS = frozenset({"isnan", "isinf", "isfinite"})
#: Attributes and methods of unknown receivers that differ between ranks.
VARYING_NAMES: dict[str, TaintKind] = {
    "is_main_process": _RANK, "is_local_main_process": _LOCAL, "process_index": _RANK,
    "local_process_index": _LOCAL, "is_global_zero": _RANK, "global_rank": _RANK,
    "local_rank": _LOCAL, "is_world_process_zero": _RANK, "is_local_process_zero": _LOCAL,
    "is_last_process": _RANK, "node_rank": _RANK, "global_zero": _RANK, "is_rank_zero": _RANK,
    "is_master": _RANK, "is_main": _RANK, "get_local_rank": _RANK, "get_coordinate": _RANK,
    "is_first_rank": _RANK, "is_last_rank": _RANK, "args.should_save": _RANK,
}  # fmt: skip
#: Environment variables that differ between ranks.
VARYING_VARIABLES: dict[str, TaintKind] = {
    "RANK": _RANK, "LOCAL_RANK": _LOCAL, "GROUP_RANK": _RANK, "NODE_RANK": _RANK,
    "SLURM_PROCID": _RANK, "SLURM_LOCALID": _LOCAL, "SLURM_NODEID": _RANK,
    "OMPI_COMM_WORLD_RANK": _RANK, "OMPI_COMM_WORLD_LOCAL_RANK": _LOCAL, "PMI_RANK": _RANK,
    "ROLE_RANK": _RANK, "HOSTNAME": _RANK,
}  # fmt: skip
#: Decorators under which only rank 0 (of the job or of a node) enters the function.
GUARDS: dict[str, TaintKind] = {
    "rank_zero_only": _RANK, "on_main_process": _RANK, "on_local_main_process": _LOCAL,
    "on_process": _RANK, "on_last_process": _RANK, "on_local_process": _LOCAL, "master_only": _RANK,
    "main_process_only": _RANK, "is_main_process_only": _RANK, "one_rank_only": _RANK,
}  # fmt: skip
