"""Classes of libraries: wrapped models, loaders, threads, and the program's own classes that come from them."""

from __future__ import annotations

import ast
import re

from msgspec.structs import replace

from holdfast.facts.code import library
from holdfast.facts.code.arguments import Arguments, LibraryCall
from holdfast.facts.code.effects import Group, Op
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.memory import SHARDED
from holdfast.facts.code.modules import Class, Names
from holdfast.facts.code.state import State
from holdfast.facts.code.things import Applied, Func, Made, Obj, given_in, made_names
from holdfast.facts.code.values import UNKNOWN, Kind, Sources, Value, merged

#: What a loader without a sampler holds: the data of all ranks.
WHOLE = Made("whole")
#: What a loader holds whose data or sampler were shared out by rank before.
OWN_PART = Made("sampler:own")
_OF_RANKS = frozenset({Kind.RANK, Kind.LOCAL_RANK})
#: What gives a model buffers.
_BUFFERS = re.compile(r"\bBatchNorm[123]d\b|\bregister_buffer\(")
#: Words of data that may be a rank's own.
_SHARES = re.compile(r"rank|world|shard|node|iterable|stream|split_|process|rand|worker|generat", re.IGNORECASE)


def library_base(names: Names, cls: Class) -> str:
    """The library class that a class of the program comes from, as the tables call it."""
    for base in names.bases(cls):
        if isinstance(base, str):
            made = library.CLASSES.get(base)
            if made is not None:
                return made
            if base.startswith("torchmetrics."):
                return "torchmetrics.Metric"
    return ""


def make(state: State, call: LibraryCall, made: str) -> Value:
    """An instance of a library's class, as the tables call it."""
    if made.startswith("wrapped:"):
        model = call.given.get(0, "module")
        return Value(things=(Made(made, unwrapped(model) if model is not None else None),), known=False)
    if made == "sampler":
        ordered = call.given.says("shuffle", answer=False)
        rank = call.given.get(2, "rank")
        of_group = UNKNOWN if rank is not None and not rank.content else None  # with others, who have the same data
        return Value(things=(Made("sampler:ordered" if ordered else "sampler", of_group),), known=False)
    if made == "loader":
        return _loader(state, call)
    if made == "thread":
        target = call.given.get(1, "target") or call.given.named.get("function")  # of a Timer
        if target is not None:
            run_thread(state, call.frame, call.node, target, _handed(call.given))
    return Value(things=(Made(made),), known=False)


def _loader(state: State, call: LibraryCall) -> Value:
    given = call.given
    sampler = given.get(3, "sampler") or given.named.get("batch_sampler")
    data = given.get(0, "dataset")
    even = any(name.startswith("sampler") for name in made_names(sampler))
    size = given.get(1, "batch_size")
    length: Sources = () if even or data is None else merged(data.length, sampler.length if sampler is not None else ())
    length = merged(length, size.content if size is not None else ())
    if sampler is None and data is not None and _is_whole(state, call, data):
        sampler = Value(things=(WHOLE,))
    parts = [each for one in (data, sampler) if one is not None for each in (*one.content, *one.length)]
    if not even and any(each.kind in _OF_RANKS for each in parts):
        sampler = Value(things=(OWN_PART,))
    return Value(length=length, known=even, things=(Made("loader", sampler),))


def _is_whole(state: State, call: LibraryCall, data: Value) -> bool:
    """Every rank has all of the data, as far as can be seen: nothing in its text or its class may share it out."""
    node = call.given.node(0, "dataset")
    if call.given.rest is not None or "generator" in call.given.named or node is None or data.content or data.length:
        return False
    texts = [state.text(node)]
    for thing in data.things:
        if isinstance(thing, Obj):
            cls = thing.cls
            texts += cls.module.lines[cls.node.lineno - 1 : cls.node.end_lineno]
            texts += [base for base in state.names.bases(cls) if isinstance(base, str)]
        elif isinstance(thing, Made):
            return False
    return not any(_SHARES.search(text) for text in texts)


def _handed(given: Arguments) -> Arguments:
    """What a thread hands to its function."""
    args, named = given.named.get("args"), given.named.get("kwargs")
    items = list(args.items or ()) if args is not None else []
    rest = UNKNOWN if args is not None and args.items is None else None
    known = given_in(named) if named is not None else {}
    return Arguments(items, [None] * len(items), known or {}, rest=rest if known is not None else UNKNOWN)


def run_thread(state: State, frame: Frame, node: ast.expr, target: Value, given: Arguments) -> None:
    """What a thread enters, it enters beside the others: not in the order of this function."""
    things = tuple(each for each in target.things if isinstance(each, (Func, Applied)))
    if not things:
        return
    with frame.apart() as inner:
        state.call(frame, node, replace(target, things=things), given)
    if inner:
        state.memory.now.threads.append((frame.place(node), tuple(inner)))


def instance_call(call: LibraryCall) -> Value | None:
    """An instance of a library's class is called: a wrapped model, a metric."""
    if call.kind.startswith("wrapped:") or call.kind == "deepspeed.Engine":
        how = call.kind.partition(":")[2] or "zero"
        weak = how == "ddp" and not _sends_buffers(call)
        call.frame.note(Op("forward", call.place, Group.WORLD, "forward", weak=weak))
        content = merged(*(each.content for each in call.given.all))
        return Value(content, known=False, things=(Made(f"output:{how}"),))
    return Value(known=False) if call.kind == "torchmetrics.Metric" else None


def _sends_buffers(call: LibraryCall) -> bool:
    """DDP's forward broadcasts the model's buffers, in evaluation too; they are looked for where its class stands.

    Source: torch.nn.parallel.DistributedDataParallel._pre_forward (2.13.0).
    """
    held = [thing.holds for thing in call.receiver.things if isinstance(thing, Made) and thing.holds is not None]
    files = {each.cls.module for value in held for each in value.things if isinstance(each, Obj)}
    texts = [module.text for module in (*files, call.frame.scope.module)]
    return any(map(_BUFFERS.search, texts[:-1])) and not any("broadcast_buffers=False" in text for text in texts)


def prepared(given: Arguments) -> Value:
    """What Accelerate and Fabric give back for models, optimizers and loaders: these, wrapped."""
    items = []
    for value in given.positional:
        if "loader" in made_names(value):
            even = Made("loader", Value(things=(Made("sampler:ordered"),)))
            items.append(replace(value, length=(), things=(even,)))  # all ranks get as many batches
        elif "scaler" in made_names(value):
            items.append(value)
        else:
            items.append(Value(things=(Made("wrapped:ddp", unwrapped(value)),), known=False))
    return items[0] if len(items) == 1 else Value(items=tuple(items), known=False)


def deepspeed_engine(given: Arguments) -> Value:
    """What ``deepspeed.initialize`` gives: the engine, and what else comes with it."""
    engine = Value(things=(Made("deepspeed.Engine", given.get(1, "model")),), known=False)
    return Value(items=(engine, UNKNOWN, UNKNOWN, UNKNOWN), known=False)


def fully_shard(state: State, call: LibraryCall) -> Value:
    """FSDP2 shards a model where it stands: whoever holds it holds a sharded one."""
    value = call.first("module")
    objects = tuple(each for each in value.things if isinstance(each, Obj))
    for thing in objects:
        if thing.cls not in state.sharded:
            state.sharded.add(thing.cls)
            state.memory.wrote(thing.cls, SHARDED)
    wrapped = Value(things=(*objects, Made("wrapped:fsdp", unwrapped(value))), known=False)
    if objects:
        return wrapped
    for cls, name in value.homes:
        state.write_attribute(cls, name, Value(things=(Made("wrapped:fsdp"),), known=False))
    argument = call.given.node(0, "module")
    if isinstance(argument, ast.Name) and argument.id in call.frame.scope.names:
        call.frame.scope.names[argument.id] = wrapped
    return wrapped


def unwrapped(value: Value) -> Value:
    """What a wrapper holds."""
    things = tuple(each for each in value.things if not (isinstance(each, Made) and each.name.startswith("wrapped:")))
    return replace(value, things=things, homes=(), items=None)
