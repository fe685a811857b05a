"""Find tensors that all ranks put on the first GPU, or that a collective of GPUs finds elsewhere.

All rest on names, and are advice. Sources: torch 2.13 serialization.py (without ``map_location``,
storages return to the device that they were saved from) and cuda/__init__.py (CUDA cannot be
initialized again in a forked process); safetensors 0.6 torch.py (``device="cuda"`` is GPU 0).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.by_name.devices import habit
from holdfast.lint.patterns.rank_guards import (
    RankGuards,
    Unit,
    is_guarded,
    iter_units,
    means_function,
)
from holdfast.lint.patterns.scopes import LOOPS, argument, starts_before
from holdfast.lint.sources.modules import FUNCTIONS, Module, dotted_name, last_name

_WORDS = re.compile(
    r"load\(|load_file\(|\.(?:all_reduce|broadcast|reduce|all_gather)\(|Process\(|start_processes\("
    r"|\.cuda\(\)|[\"']cuda[\"':]"
)
_STARTS = re.compile(r"init_process_group\(([^)]*)|deepspeed\.init_distributed\(([^)]*)")
_ONLY_NCCL = re.compile(r"""^\s*(?:backend\s*=\s*)?["']nccl["']\s*(?:,|$)""")
#: Each process gets one GPU, or what a constructor creates is on the GPU.
_OWN_GPU = re.compile(r"CUDA_VISIBLE_DEVICES")
_SELECTS_LATER = re.compile(r"^main$|^train|^run|^worker|test")
_DEFAULT_DEVICE = re.compile(r"set_default_device|set_default_tensor_type|with torch\.device\(")
_FIRST_GPU = re.compile(r"""^(?:["'](?:cuda|npu):0["']|torch\.device\(["'](?:cuda|npu):0["']\)"""
                        r"""|torch\.device\(["']cuda["'], 0\))$""")  # fmt: skip
_CURRENT_GPU = re.compile(r"""["']cuda["']""")
_CONSTRUCTORS = frozenset(
    {"tensor", "as_tensor", "zeros", "ones", "from_numpy", "full", "empty", "arange"}
)
#: Collectives of tensors: the positions of those that must be on a GPU.
_TENSORS = {"all_reduce": 0, "broadcast": 0, "reduce": 0, "all_gather": 1}
_DIST = re.compile(r"(?:^|\.)(?:dist|distributed)$")
_OPTIMIZER_STATE = re.compile(r"optim\w*\.load_state_dict\(")
#: What puts a state on the CPU before it is saved.
_MOVES = re.compile(r"\.cpu\(\)|[\"']cpu[\"']")
_BLOCKS = (ast.If, ast.Try, *LOOPS, *FUNCTIONS)
_FORKS = re.compile(r"(?:^|\.)(?:mp|multiprocessing)\.(?:Process|start_processes)$")
_SETS_METHOD = re.compile(r"set_start_method\(|get_context\(|forkserver")
_CUDA_WORKER = re.compile(r"cuda|nccl")


def find_device_habits(modules: Collection[Module]) -> Iterator[Divergence]:
    """Yield the habits of a program that starts ranks with a GPU each."""
    own = [module for module in modules if not module.is_test]
    backends = ["".join(found) for module in own for found in _STARTS.findall(module.text)]
    on_gpus = any("cuda" in module.text or "nccl" in module.text for module in own)
    starts = on_gpus and bool(backends) and not any(_OWN_GPU.search(module.text) for module in own)
    only_nccl = bool(backends) and all(map(_ONLY_NCCL.match, backends))
    on_cpu = only_nccl and not any(_DEFAULT_DEVICE.search(module.text) for module in own)
    selecting = {"set_device", *(name for module in own for name in _selecting_functions(module))}
    guards = RankGuards(modules)
    for module in own:
        text = module.text
        forks = "rocess" in text and "cuda" in text and not _SETS_METHOD.search(text)
        if not (starts or forks) or _WORDS.search(text) is None:
            continue
        for unit in iter_units(module, _WORDS):
            if starts:
                yield from _uses_before_selection(unit, selecting)
            for call in unit.calls:
                if starts:
                    yield from _loads_onto_first(guards, unit, call)
                if on_cpu:
                    yield from _cpu_tensors(unit, call)
                if forks:
                    yield from _forks_after_cuda(unit, call)


def _selecting_functions(module: Module) -> Iterator[str]:
    """Yield the functions of a module that select the GPU of the rank."""
    if "cuda.set_device(" in module.text:
        for node in module.tree.body:
            if isinstance(node, FUNCTIONS) and not _SELECTS_LATER.search(node.name):
                lines = module.lines[node.lineno - 1 : node.end_lineno]
                if any("cuda.set_device(" in line for line in lines):
                    yield node.name


def _uses_before_selection(unit: Unit, selecting: Collection[str]) -> Iterator[Divergence]:
    """Yield a tensor or model that a function puts on the current GPU before it selects one."""
    selections = [call for call in unit.calls if last_name(call.func) in selecting]
    first = min(selections, key=_line, default=None)
    if first is None:
        return
    function = unit.function_of(first)
    for used in unit.calls:
        if (
            starts_before(used, first)
            and unit.function_of(used) is function
            and _uses_cuda(used)
            and not any(isinstance(parent, _BLOCKS[:-2]) for parent, _ in unit.ancestors(used))
            and not any(isinstance(parent, ast.Lambda) for parent, _ in unit.ancestors(used))
        ):
            message = (
                f"all ranks of a host use GPU 0 here: the GPU of the rank is selected at line "
                f"{_line(first)} only; select it before"
            )
            yield habit(unit, used, "device", message)
            return


def _loads_onto_first(guards: RankGuards, unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield a load of all ranks onto GPU 0."""
    name = dotted_name(call.func)
    if name.endswith("load_file"):
        where = argument(call, 1, "device")
        first = where is not None and _names_first(unit, where, _CURRENT_GPU)
    elif name == "torch.load":
        where = argument(call, 1, "map_location")
        if (
            where is None
            and len(call.args) < 2
            and not any(item.arg is None for item in call.keywords)
        ):
            first = _is_training_state(unit, call)
        else:
            first = where is not None and _names_first(unit, where, _FIRST_GPU)
    else:
        return
    if first and not is_guarded(unit, call) and not _is_called_by_one(guards, unit, call):
        how = f"`{ast.unparse(where)}`" if where is not None else "where rank 0 saved it from"
        message = (
            f"all ranks of a host load onto GPU 0 ({how}): it needs the memory of all of them; "
            "load onto the CPU, or onto the GPU of the rank"
        )
        yield habit(unit, call, "device", message)


def _is_called_by_one(guards: RankGuards, unit: Unit, call: ast.Call) -> bool:
    """Return True if each visible call of the function around is of some ranks only."""
    function = unit.function_of(call)
    callers = [
        (caller, node)
        for caller, node in (guards.callers(unit, function) if function is not None else [])
        if isinstance(node, ast.Call) and means_function(caller, node, unit) and node is not call
    ]
    return bool(callers) and all(is_guarded(caller, node) for caller, node in callers)


def _is_training_state(unit: Unit, call: ast.Call) -> bool:
    """Return True for what rank 0 saved from GPU 0: a state that the file saves, an optimizer's."""
    text, module = unit.text(unit.node), unit.module.text
    if "rank" in ast.unparse(call) or "map_location" in text:
        return False
    saves = "torch.save(" in module and "state_dict()" in module and not _MOVES.search(module)
    return _OPTIMIZER_STATE.search(text) is not None or (
        saves and any(last_name(each.func) == "load_state_dict" for each in unit.calls)
    )


def _names_first(unit: Unit, where: ast.expr, first: re.Pattern[str]) -> bool:
    """Return True if a device, or all that its variable is set to, is the first GPU."""
    values = unit.assigned(where.id) if isinstance(where, ast.Name) else []
    texts = [ast.unparse(value) for value in values or [where]]
    return all(first.search(text) and "rank" not in text for text in texts)


def _cpu_tensors(unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield a tensor on the CPU that NCCL gets."""
    at = _TENSORS.get(last_name(call.func))
    if at is None or not isinstance(call.func, ast.Attribute) or call.keywords:
        return
    passed = argument(call, at, "tensor")
    if not isinstance(passed, ast.Name) or not _DIST.search(dotted_name(call.func.value)):
        return
    function = unit.function_of(call)
    values = [each for each in unit.assigned(passed.id) if unit.function_of(each) is function]
    last = max((each for each in values if starts_before(each, call)), key=_line, default=None)
    if last is not None and _is_on_cpu(last) and _leads_to(unit, last, call):
        message = (
            f"`{passed.id}` is on the CPU, and the only group is of NCCL, which takes tensors on a "
            "GPU: create it with `device=`"
        )
        yield habit(unit, call, "argument", message)


def _line(node: ast.AST) -> int:
    return getattr(node, "lineno", 0)


def _leads_to(unit: Unit, value: ast.expr, node: ast.AST) -> bool:
    """Return True if the block around an assignment contains a later node, too."""
    around = [parent for parent, _ in unit.ancestors(value)]
    block = next((each for each in around if isinstance(each, _BLOCKS)), None)
    return any(parent is block for parent, _ in unit.ancestors(node))


def _is_on_cpu(value: ast.expr) -> bool:
    """Return True for a new tensor without a device, of numbers."""
    if isinstance(value, ast.BinOp):
        return _is_on_cpu(value.left) and isinstance(value.right, ast.Constant)
    return (
        isinstance(value, ast.Call)
        and last_name(value.func) in _CONSTRUCTORS
        and dotted_name(value.func).startswith("torch.")
        and not any(keyword.arg in ("device", None) for keyword in value.keywords)
        and (last_name(value.func) != "as_tensor" or isinstance(value.args[0], ast.List))
    )


def _forks_after_cuda(unit: Unit, call: ast.Call) -> Iterator[Divergence]:
    """Yield a process that is forked after the function has used CUDA."""
    if not _FORKS.search(dotted_name(call.func)):
        return
    method = argument(call, 5, "start_method")
    is_process = last_name(call.func) == "Process"
    if not is_process and not (isinstance(method, ast.Constant) and method.value == "fork"):
        return
    worker = argument(call, 1 if is_process else 0, "target" if is_process else "fn")
    if not isinstance(worker, ast.Name) or not _CUDA_WORKER.search(_source(unit, worker.id)):
        return
    function = unit.function_of(call)
    for used in unit.calls:
        if unit.function_of(used) is function and starts_before(used, call) and _uses_cuda(used):
            message = (
                f"line {getattr(used, 'lineno', 0)} has initialized CUDA, which a forked process "
                f"cannot use: `{worker.id}` fails there; start it with the method `spawn`"
            )
            yield habit(unit, call, "device", message)
            return


def _source(unit: Unit, name: str) -> str:
    """Return the source of a function of the file, or nothing."""
    for node in unit.module.tree.body:
        if isinstance(node, FUNCTIONS) and node.name == name:
            return unit.text(node)
    return ""


def _uses_cuda(call: ast.Call) -> bool:
    """Return True for a call that puts a tensor on a GPU."""
    if last_name(call.func) == "cuda" and isinstance(call.func, ast.Attribute):
        return not call.args and not call.keywords
    passed = (*call.args, *(item.value for item in call.keywords if item.arg == "device"))
    is_placement = last_name(call.func) in ("to", *_CONSTRUCTORS)
    return is_placement and any(
        isinstance(value, ast.Constant) and value.value in ("cuda", "cuda:0") for value in passed
    )
