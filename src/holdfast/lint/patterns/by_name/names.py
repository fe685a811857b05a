"""Tests of the rank, values of a rank's own, and collectives, by their names."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from holdfast.lint.sources.modules import dotted_name, last_name

#: Words of which a module for several ranks contains one.
_DISTRIBUTED = re.compile(
    r"torch\.distributed|\bdist\.|DistributedDataParallel|\bDDP\b|\bFSDP\b|ccelerat|deepspeed"
    r"|lightning|world_size|global_rank|local_rank|LOCAL_RANK|get_rank|is_main_process"
    r"|all_reduce|all_gather|horovod|\bhvd\."
)
#: Parts of these words, to search for which takes a tenth of the time of the pattern.
_DISTRIBUTED_PARTS = (
    "distributed", "dist.", "Distributed", "DDP", "FSDP", "ccelerat", "deepspeed", "lightning",
    "world_size", "_rank", "_RANK", "is_main_process", "all_reduce", "all_gather", "hvd.",
    "horovod",
)  # fmt: skip
_PREFIXES = (
    "global|local|world|node|dp|ddp|data_parallel|dist|gpu|process|proc|my|self|machine|worker"
    "|current|cur|cuda|group|mpi|hvd"
)
_RANK = re.compile(rf"^_{{0,2}}(?:get_)?(?:(?:{_PREFIXES})_)*rank(?:_id)?$|^process_index$")
_RANK_VARIABLE = re.compile(r"^(?:SLURM_PROCID|SLURM_LOCALID|(?:LOCAL_|NODE_|GROUP_)?RANK)$")
_MAIN = re.compile(
    r"^_?(?:is_|am_|on_|i_am_)?(?:the_)?(?:(?:local|global|world|dist|dp|ddp|dp_)_)*"
    r"(?:main_proc(?:ess)?|main_rank|master(?:_proc(?:ess)?|_rank|_node)?|global_zero|rank_?zero"
    r"|rank_?0|zero_rank|process_zero|chief|primary(?:_rank|_process)?|root_(?:rank|worker|process)"
    r"|leader|first_rank|main_worker|should_save|logging_process|coordinator)$"
    r"|^is_(?:main|root|primary|rank0)$|^is_(?:world|local)_process_zero$"
)
_COLLECTIVE = re.compile(
    r"^_?(?:(?:dist|ddp|distributed|fabric|accelerator|torch|global|safe|try|maybe|strategy)_)*"
    r"(?:all_?reduce|all_?gather|reduce_scatter|all_?to_?all|barrier|monitored_barrier"
    r"|gather_object|gather_for_metrics|broadcast_object(?:_list)?|scatter_object_list"
    r"|wait_for_everyone|mesh_reduce|rendezvous|synchronize_between_processes"
    r"|pad_across_processes|broadcast_parameters|reduce_boolean_decision)(?:_?\w*)$"
)
#: Names that are collectives of these receivers, and something else of others.
_OF_RECEIVER = frozenset({"gather", "reduce", "broadcast", "scatter", "new_group"})
_RECEIVER = re.compile(
    r"(?:^|\.)_?(?:dist|distributed|accelerator|fabric|strategy|hvd|comm|ptd|xm|c10d|backend"
    r"|gang|communicator|collectives?|\w+_gang)$"
)
_NOT_COLLECTIVE = re.compile(
    r"_(?:hook|fn|func|time|times|bytes|size|count|name|shape|dtype|enabled|stream|handles?"
    r"|kwargs|config|op|perf|cost|latency|bandwidth|supported|freq|interval|wait|timeout|mode"
    r"|backend|tests?|bucket|buffer)s?$"
)
#: Calls that save or gather what is distributed over ranks, in a module that mentions the word.
SHARDED_CALLS = {
    "save_checkpoint": ("deepspeed", "model_engine"),
    "save_16bit_model": ("deepspeed",),
    "get_model_state_dict": ("torch.distributed",),
    "get_state_dict": ("ccelerator",),
    "save_state": ("ccelerator",),
    "load_state": ("ccelerator",),
    "state_dict": ("state_dict_type",),
    "save_state_dict": ("distributed.checkpoint", "dist_cp"),
    "async_save": ("distributed.checkpoint", "dcp."),
    "save": ("distributed.checkpoint", "dist_checkpointing"),
    "save_pretrained": ("fsdp", "deepspeed", "zero3", "zero_stage"),
}
#: Modules of libraries, whatever the program defines under the same name.
_LIBRARY = re.compile(
    r"(?:^|\.)(?:dist|distributed|dcp|dist_cp|state_dict_saver|hvd|xm|deepspeed)$"
)
#: A decorator with which one rank runs the function.
RUNS_ONE_RANK = re.compile(r"rank_zero_only|main_process_only|on_main_process|master_only")
#: Tests of the number of ranks.
_SIZE_TEST = re.compile(
    r"world_size|is_initialized|is_available|num_processes|is_dist|distributed|use_ddp|\bddp\b"
    r"|n_gpu|num_gpus|multi_gpu|nranks|dp_size|get_size|num_replicas|use_dist|dist_mode",
    re.IGNORECASE,
)


def is_distributed(text: str) -> bool:
    """Return True if a module's text concerns several ranks."""
    return any(part in text for part in _DISTRIBUTED_PARTS) and bool(_DISTRIBUTED.search(text))


def is_rank(node: ast.expr) -> bool:
    """Return True for an expression that is the rank by its name, or is read from ``RANK``."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        if name in ("int", "str") and node.args:
            return is_rank(node.args[0])
        if name in ("get", "getenv") and node.args:
            return _is_rank_variable(node.args[0])
        return name == "rank" or (name.endswith("rank") and _RANK.match(name) is not None)
    if isinstance(node, ast.Subscript):
        return _is_rank_variable(node.slice) or (
            isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
            and _RANK.match(node.slice.value) is not None
        )
    return isinstance(node, (ast.Name, ast.Attribute)) and bool(_RANK.match(last_name(node)))


def _is_rank_variable(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and bool(_RANK_VARIABLE.match(str(node.value)))


def is_rank_test(test: ast.expr, one_sided: frozenset[str] = frozenset()) -> bool:
    """Return True for a test that some ranks pass and others do not, by the names in it.

    ``one_sided`` are variables that are None on all ranks but some.
    """
    match test:
        case ast.BoolOp(values=values):
            return any(is_rank_test(value, one_sided) for value in values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return is_rank(operand) or is_rank_test(operand, one_sided)
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            if is_none(right):
                return last_name(left) in one_sided
            return _compares_rank(left, op, right) or _compares_rank(right, op, left)
        case ast.Name() | ast.Attribute() | ast.Call():
            name = last_name(test.func if isinstance(test, ast.Call) else test)
            return _MAIN.match(name) is not None or name in one_sided
        case _:
            return False


def _compares_rank(left: ast.expr, op: ast.cmpop, right: ast.expr) -> bool:
    if not is_rank(left) or isinstance(op, (ast.Is, ast.IsNot)):
        return False
    if isinstance(right, ast.Constant):
        return isinstance(right.value, (int, str)) and not (
            right.value in (0, "0") and isinstance(op, (ast.GtE, ast.Lt))
        )
    if isinstance(right, ast.UnaryOp):  # -1: not distributed
        return False
    return not isinstance(op, (ast.In, ast.NotIn)) or isinstance(right, (ast.List, ast.Tuple))


def is_none(node: ast.expr | None) -> bool:
    """Return True for ``None``."""
    return isinstance(node, ast.Constant) and node.value is None


def is_collective(call: ast.Call, text: str) -> bool:
    """Return True for a call that is a collective over all ranks, by its name and receiver."""
    name = last_name(call.func)
    if not name:
        return False
    receiver = dotted_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if receiver.startswith(("torch.cuda", "np", "numpy", "jnp", "jax", "threading", "asyncio")):
        return False
    if name in _OF_RECEIVER:
        return _RECEIVER.search(receiver) is not None
    if is_collective_name(name):
        return True
    words = SHARDED_CALLS.get(name, ())
    return any(word in text for word in words) and _is_sharded(name, call, receiver)


def is_collective_name(name: str) -> bool:
    """Return True for a name that means a collective whatever the receiver."""
    return bool(_COLLECTIVE.match(name)) and not _NOT_COLLECTIVE.search(name)


@lru_cache(maxsize=1 << 14)
def may_be_collective(name: str) -> bool:
    """Return True if a call of this name is a collective of some receivers."""
    return name in _OF_RECEIVER or name in SHARDED_CALLS or is_collective_name(name)


def _is_sharded(name: str, call: ast.Call, receiver: str) -> bool:
    if name == "state_dict":
        return bool(re.search(r"model$|module$|net$", receiver))
    if name == "save":
        return bool(
            re.search(r"(?:^|\.)(?:dcp|dist_cp|state_dict_saver|dist_checkpointing)$", receiver)
        )
    if name == "save_pretrained":
        gathered = any(keyword.arg == "state_dict" for keyword in call.keywords)
        return not gathered and receiver in ("model", "self.model", "trainer.model", "self.module")
    if name == "save_checkpoint":
        return bool(re.search(r"engine$|model$", receiver))
    if name in ("get_state_dict", "save_state", "load_state"):
        return receiver.endswith("accelerator")
    return bool(call.args or call.keywords)


def is_of_library(call: ast.Call) -> bool:
    """Return True if the receiver of a call is a library's module by its name."""
    receiver = dotted_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    return _LIBRARY.search(receiver) is not None


#: Names of the argument for a group.
GROUP_KEYWORDS = frozenset({"group", "process_group", "pg"})


def names_group(call: ast.Call) -> bool:
    """Return True for a collective of a group that need not contain all ranks."""
    return any(
        keyword.arg in GROUP_KEYWORDS
        and not is_none(keyword.value)
        and not (isinstance(keyword.value, ast.Name) and keyword.value.id == keyword.arg)
        and "WORLD" not in ast.unparse(keyword.value)
        for keyword in call.keywords
    )


def is_size_test(test: ast.expr) -> bool:
    """Return True for a test whether there are several ranks."""
    return _SIZE_TEST.search(ast.unparse(test)) is not None
