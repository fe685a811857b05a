"""Find values passed to the wrong call: another kind of rank, a temporary tensor, a late group."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    MAX_EVENTS,
    Branch,
    Effect,
    EffectSummary,
    FunctionCall,
    LoopEffect,
    Marker,
    Operation,
    Try,
)
from holdfast.lint.abstract_domain.values import RANK_KINDS, Taint, TaintKind, Value, taint_kinds
from holdfast.lint.abstract_state.abstract_objects import LAUNCHER_RANK
from holdfast.lint.abstract_state.arguments import LibraryCall
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.divided_sums import record_method_division
from holdfast.lint.divergence.group_numbers import record_group_numbers
from holdfast.lint.divergence.orders import record_habit
from holdfast.lint.divergence.sizes_by_rank import record_size_by_rank
from holdfast.lint.divergence.wrapped_models import record_wrapped_misuse
from holdfast.lint.patterns.scopes import walk
from holdfast.lint.sources.modules import last_name

#: Calls that select the share of one rank of the world: positions of the rank and their number.
_SHARES = {
    "torch.utils.data.DistributedSampler": (2, "rank", 1, "num_replicas"),
    "torch.utils.data.distributed.DistributedSampler": (2, "rank", 1, "num_replicas"),
    "datasets.distributed.split_dataset_by_node": (1, "rank", 2, "world_size"),
    "torch.distributed.init_process_group": (4, "rank", 3, "world_size"),
}
#: A class of the program that selects a share, and the parameters for the number of shares.
_SELECTS = re.compile(r"sampler|shard|loader|dataset|split|partition", re.IGNORECASE)
_COUNTS = frozenset({"num_replicas", "world_size", "num_shards", "total_ranks"})
_LOCAL_COUNT = re.compile(r"local|node|device_count|gpus?\b|nproc", re.IGNORECASE)
#: A query of the global rank, and not that of a process that the program itself started.
_GLOBAL_RANK = re.compile(r"(?:^|\.)get_rank\(\)$|['\"]RANK['\"]|global_rank|process_index$")
_DEVICE_CALLS = {
    "torch.device": 1, "torch.cuda.set_device": 0, "torch.accelerator.set_device_index": 0,
}  # fmt: skip
_DEVICE_METHODS = frozenset({"cuda", "to"})
#: Collectives that change their argument in place.
_IN_PLACE = frozenset({"torch.distributed.all_reduce", "torch.distributed.broadcast"})
#: Methods that return another tensor.
_COPYING_METHODS = frozenset({"clone", "float", "double", "half", "mean", "sum"})
_BROADCASTS_OBJECTS = "torch.distributed.broadcast_object_list"
_QUERIES = frozenset({"torch.distributed.get_rank", "torch.distributed.get_world_size"})
_CREATES = "torch.distributed.init_process_group"
#: A function of an unread file that creates the process group, by its name.
_JOINS_GROUP = re.compile(
    r"^_?(?:init|setup|initialize|launch|prepare|start)\w*(?:dist|ddp|process_group|parallel|torch)"
    r"|^(?:dist|ddp|distributed)_(?:init|setup)|^launch|^initialize$|^Trainer$|^Accelerator$"
)
_CREATES_GROUP = re.compile(r"init\w*(?:dist|process_group)|dist\w*_init")
_TESTS_GROUP = re.compile(r"initialized|is_available|distributed|world_size|is_dist|ddp")


def record_misuse(state: InterpreterState, call: LibraryCall) -> None:
    """Record a call whose argument has another meaning, and queries of the process group."""
    if call.name in _QUERIES and not call.arguments.all_values:
        call.frame.add_effect(Marker("query", call.location))
    elif call.name != _CREATES and _JOINS_GROUP.search(name := call.name.rpartition(".")[2]):
        call.frame.add_effect(Marker("joins", call.location, name))
    record_wrapped_misuse(state, call)
    record_size_by_rank(state, call)
    record_group_numbers(state, call)
    record_method_division(state, call)
    message = (
        _lost_result(state, call)
        or _lost_objects(call)
        or _wrong_share(state, call)
        or _own_order(call)
    )
    if message:
        record_habit(state, call.frame, call.node, *message)
    elif call.name.endswith(".DistributedDataParallel"):
        _record_device_ids(state, call)
    elif call.name in _DEVICE_CALLS or call.name in _DEVICE_METHODS:
        _record_device(state, call)


def record_own_split(state: InterpreterState, call: LibraryCall, seeds: Taint) -> None:
    """Record a random split with a seed of the rank, of a data set that is not the rank's own."""
    if seeds and not taint_kinds(call.first("dataset").content) & RANK_KINDS:
        message = (
            f"each rank splits the data with its own seed ({seeds[0].text}): what one rank keeps "
            "for validation, others train on; pass a `generator` with the same seed"
        )
        record_habit(state, call.frame, call.node, "habit-order", message)


def _lost_result(state: InterpreterState, call: LibraryCall) -> tuple[str, str] | None:
    """Return the message for a collective that changes a temporary tensor."""
    node = call.arguments.node(0, "tensor")
    if call.name not in _IN_PLACE or node is None:
        return None
    is_temporary = isinstance(node, ast.BinOp) or (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _COPYING_METHODS
    )
    if not is_temporary:
        return None
    text = state.unparse(node)
    name = call.name.rpartition(".")[2]
    return "habit-result", (
        f"{name} changes the temporary `{text}`: its result is lost, and the rank goes on with its "
        "own value"
    )


def _lost_objects(call: LibraryCall) -> tuple[str, str] | None:
    """Return the message for a broadcast of a list that is not read afterwards.

    torch replaces the elements of the list; the variables that they came from stay as they are.
    """
    node, frame = call.arguments.node(0, "object_list"), call.frame
    if call.name != _BROADCASTS_OBJECTS or frame.function is None or frame.control or frame.exited:
        return None
    nodes = walk(frame.tree)
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    if sum(last_name(each.func) == "broadcast_object_list" for each in calls) > 1:
        return None  # one for the root
    sent = node
    if isinstance(node, ast.Name):
        made = [each for each in nodes if isinstance(each, ast.Assign) and _names(each, node.id)]
        uses = [each for each in nodes if isinstance(each, ast.Name) and each.id == node.id]
        sent = made[0].value if len(made) == 1 and len(uses) == 2 else None
    if not isinstance(sent, ast.List) or not sent.elts:
        return None
    names = {each.id for each in sent.elts if isinstance(each, ast.Name)}
    read = [
        each.id
        for each in nodes
        if isinstance(each, ast.Name)
        and each.id in names
        and isinstance(each.ctx, ast.Load)
        and each.lineno > call.location.line
    ]
    if not read:
        return None
    return "habit-result", (
        f"the result of broadcast_object_list is lost: it is in the list, and `{read[0]}` is still "
        "the rank's own; read it from the list afterwards"
    )


def _names(node: ast.Assign, name: str) -> bool:
    return any(isinstance(target, ast.Name) and target.id == name for target in node.targets)


def _wrong_share(state: InterpreterState, call: LibraryCall) -> tuple[str, str] | None:
    """Return the message for the local rank in place of the global one."""
    share = _SHARES.get(call.name)
    return None if share is None else _local_share(state, call, *share)


def _own_order(call: LibraryCall) -> tuple[str, str] | None:
    """Return the message for a sampler that shuffles with a seed of the rank.

    Source: torch.utils.data.DistributedSampler: ``seed`` should be identical across all processes.
    """
    if not call.name.endswith(".DistributedSampler"):
        return None
    seed = call.arguments.get(4, "seed")
    if (
        seed is None
        or not taint_kinds(seed.content) & RANK_KINDS
        or call.arguments.is_constant("shuffle", answer=False)
    ):
        return None
    return "habit-order", (
        f"each rank shuffles with its own seed ({seed.content[0].text}) before it takes its share: "
        "shares overlap, and some samples are in none; pass the same seed on all ranks"
    )


def record_own_share(state: InterpreterState, call: LibraryCall, parameters: Sequence[str]) -> None:
    """Record the local rank passed to a class of the program that selects a rank's share."""
    counts = [name for name in parameters if name in _COUNTS]
    if "rank" in parameters and counts and _SELECTS.search(call.name):
        share = (parameters.index("rank"), "rank", parameters.index(counts[0]), counts[0])
        message = _local_share(state, call, *share)
        if message is not None:
            record_habit(state, call.frame, call.node, *message)


def _local_share(
    state: InterpreterState, call: LibraryCall, at: int, name: str, count_at: int, count_name: str
) -> tuple[str, str] | None:
    rank, count = call.arguments.get(at, name), call.arguments.node(count_at, count_name)
    if (
        rank is None
        or taint_kinds(rank.content) != {TaintKind.LOCAL_RANK}
        or (count is not None and _LOCAL_COUNT.search(state.unparse(count)))
    ):
        return None
    node = call.arguments.node(at, name)
    text = state.unparse(node) if node is not None else name
    return "habit-local-rank", (
        f"`{text}` is the local rank ({rank.content[0].text}): on several hosts ranks share a "
        f"number; pass the global rank to {call.name.rpartition('.')[2]}"
    )


def _record_device(state: InterpreterState, call: LibraryCall) -> None:
    """Record the global rank as the index of a GPU."""
    at = _DEVICE_CALLS.get(call.name, 0)
    node, value = call.arguments.node(at, "index"), call.arguments.get(at, "index")
    if node is not None and value is not None and _is_global_rank(value):
        record_habit(state, call.frame, call.node, "habit-device", _device_message(state, node))


def _record_device_ids(state: InterpreterState, call: LibraryCall) -> None:
    """Record the global rank as the only GPU that DDP uses."""
    listed, node = call.arguments.get(1, "device_ids"), call.arguments.node(1, "device_ids")
    items = listed.items if listed is not None else None
    if items and len(items) == 1 and isinstance(node, ast.List) and _is_global_rank(items[0]):
        record_habit(
            state, call.frame, call.node, "habit-device", _device_message(state, node.elts[0])
        )


def record_device_name(
    state: InterpreterState, frame: Frame, node: ast.JoinedStr, values: Sequence[Value]
) -> None:
    """Record the global rank in the name of a GPU, such as ``f"cuda:{rank}"``."""
    if len(values) < 2 or not _is_global_rank(values[-1]):
        return
    before, hole = node.values[-2:]
    prefix = str(before.value) if isinstance(before, ast.Constant) else ""
    first = state.unparse(node.values[0])
    if prefix.endswith(("cuda:", "npu:")) or (prefix == ":" and "device" in first):
        index = hole.value if isinstance(hole, ast.FormattedValue) else hole
        record_habit(state, frame, node, "habit-device", _device_message(state, index))


def _device_message(state: InterpreterState, index: ast.expr) -> str:
    return (
        f"the global rank `{state.unparse(index)}` is used as the index of a GPU: on the second "
        "host there is no such GPU; use LOCAL_RANK"
    )


def _is_global_rank(value: Value) -> bool:
    return (
        LAUNCHER_RANK in value.objects
        and TaintKind.RANK in taint_kinds(value.content)
        and any(_GLOBAL_RANK.search(source.text) for source in value.content)
    )


def find_early_queries(body: EffectSummary) -> list[Divergence]:
    """Return the queries of the process group before a program creates it."""
    if "query" not in body.tags or not body.tags & {"init", "joins"}:
        return []
    walker = _QueryWalker()
    walker.walk(body.path)
    return walker.divergences if walker.created is not None else []


class _QueryWalker:
    """Walks a program up to the creation of the process group."""

    def __init__(self) -> None:
        self.divergences: list[Divergence] = []
        self.created: SourceLine | None = None
        self._joined = False
        self._remaining = MAX_EVENTS

    def walk(self, path: Sequence[Effect]) -> None:
        """Walk a path and the calls in it."""
        for effect in path:
            self._remaining -= 1
            if self._joined or self._remaining < 0:
                return
            match effect:
                case Marker(name="query", location=location):
                    self.divergences.append(Divergence("early", location, location, "", ()))
                case Operation() | Marker(name="init" | "joins" | "parallel"):
                    self._join(effect)
                case FunctionCall(callee=callee):
                    if callee.tags & {"query", "init", "joins", "parallel"} or callee.sequence:
                        self.walk(callee.path)
                case Branch(yes=yes, no=no, text=text):
                    self._guarded((yes, no), handled=_TESTS_GROUP.search(text) is not None)
                case Try(body=body, handlers=handlers):
                    self._guarded((body,), handled=bool(handlers))
                case LoopEffect(body=body):
                    self.walk(body)
                case _:
                    pass

    def _join(self, effect: Operation | Marker) -> None:
        self._joined = True
        if isinstance(effect, Marker) and (
            effect.name == "init" or _CREATES_GROUP.search(effect.detail)
        ):
            self.created = effect.location

    def _guarded(self, sides: Sequence[Sequence[Effect]], *, handled: bool) -> None:
        """Walk sides of a test or a ``try``; ``handled``: they expect that there is no group."""
        found = len(self.divergences)
        for side in sides:
            self.walk(side)
        if handled:
            del self.divergences[found:]
