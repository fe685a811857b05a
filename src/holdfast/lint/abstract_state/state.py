"""The state of an interpreter, and the dispatch of syntax nodes to its parts."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property

from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint import library, varying_values
from holdfast.lint.abstract_domain.truth import as_test
from holdfast.lint.abstract_domain.values import (
    MAX_OBJECTS,
    NONE_OBJECT,
    RANK_OR_SELECTED,
    UNIFORM,
    UNKNOWN,
    Taint,
    TaintKind,
    TaintSource,
    Value,
    join_values,
    merge_taint,
    persistent_taint,
    weak_taint,
    without_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    CONFIGURED_MODEL,
    COUNT,
    LAUNCHER_RANK,
    LOCAL_SIZE,
    FunctionObject,
    Instance,
    LibraryInstance,
    ProcessGroup,
    mark_contained,
    reuse_methods,
)
from holdfast.lint.abstract_state.arguments import Arguments
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.function_summaries import SummaryCache
from holdfast.lint.abstract_state.heap import FactKey, Heap, set_fact
from holdfast.lint.abstract_state.process_stamps import (
    with_stamp,
    without_stamps,
)
from holdfast.lint.framework_calls import HOOK_CLASSES, HOOK_PARAMETERS
from holdfast.lint.sources.modules import (
    Class,
    Definition,
    Function,
    Module,
    SymbolTable,
    dotted_name,
)
from holdfast.lint.sources.relevance import Relevance

#: In programs with at most this many functions, a configuration attribute is identified by name,
#: and an attribute of a class shows that ranks differ.
_SMALL_PROGRAM = 300
_NEVER_EMPTY = frozenset({TaintKind.TIME, TaintKind.HOST})
_MAX_TEXT = 80
#: Classes, as the tables name them, whose methods enter collectives.
_ANNOTATED = ("accelerate.", "lightning.", "deepspeed.", "transformers.", "wrapped:")
_HOOK = re.compile(r"on_|\w+_step$|before_|after_|compute_loss$")
#: What shows that the program lets FSDP or DeepSpeed's ZeRO-3 shard its models, by settings.
_SHARDS_MODELS = re.compile(
    r"\bfsdp(?:_plugin)?\s*=\s*[\"'\[A-Z]|FullyShardedDataParallelPlugin\(|FSDPStrategy\("
    r"|strategy[\"']?\s*[:=]\s*[\"'](?:fsdp|deepspeed_stage_3)|\bfully_shard\(|\bFSDP\("
    r"|FullyShardedDataParallel\(|[\"']stage[\"']\s*:\s*3\b|DeepSpeedStrategy\([^)]*stage\s*=\s*3|zero_?(?:stage)?_?3\b"
    r"|zero_stage[\"']?\s*[:=]\s*3\b|stage3_",
    re.IGNORECASE,
)
_STARTS_RANKS = re.compile(r"spawn\(|launcher\(|Process\(|start_processes\(|Popen\(|\bray\.remote")
#: A plugin with which transformers partitions each model over the ranks while it loads it.
_PARTITIONS_LOADED = re.compile(
    r"DeepSpeedPlugin\((?![^)]*zero3_init_flag)[^)]*zero_stage\s*=\s*3\b"
)


class InterpreterState:
    """One interpreter and its program.

    evaluators, executors: the method for each kind of expression and statement
    call: evaluates a call; several objects that may be called become a branch
    invoke: runs a function with these arguments and records its effects
    evaluate_attribute: returns the value of an attribute
    nested_functions, nested_classes: nested definitions, by the id of their node
    sharded: classes whose instances are sharded
    synchronized: classes whose normalization is over all ranks in training
    events: why some ranks set an event, by its name
    wrapped_models: the models that a wrapper holds, and variables and attributes with such models
    optimized_models: those whose parameters an optimizer got, and where
    runs: why some ranks create a W&B run, by its line
    lone_weights: models into which only some ranks load weights, and where
    summaries: results and divergences of functions, by context
    alarm_exception: the exception that the program's alarm handler raises
    first_uses: places that create a group on first use, and that all ranks reach
    group_timeouts: "default" or "own" for each process group
    untyped_attributes: in a small program, rank-dependent attributes of unknown objects, by the
    last part of the owner's name: ``("args", "rank")``
    agreed_names: those attributes that are set to what ranks have agreed on, at some time
    in_tests: the running module is a test, whose assignments are not the program's
    root: the function that runs though nothing was seen to call it; None: the module
    reassigned_attributes: per function, ids of attribute nodes that are set again later
    saved_states: lines that save a random state; True: on one rank, to a path of all
    file_changes: lines with accesses to files: False: by all ranks to one path; True: by one rank,
    or each to its own path
    """

    evaluators: dict[type[ast.expr], Callable[..., Value]]
    executors: dict[type[ast.stmt], Callable[..., None]]
    call: Callable[[Frame, ast.expr, Value, Arguments], Value]
    invoke: Callable[[Frame, ast.expr, FunctionObject, Arguments], Value]
    evaluate_attribute: Callable[[Frame, Value, str, ast.expr], Value]

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self.modules = modules
        self.symbols = SymbolTable(modules)
        self.relevance = Relevance(self.symbols)
        functions = sum(1 for module in modules.values() for _ in module.functions())
        self.is_small = functions <= _SMALL_PROGRAM
        self.nested_functions: dict[int, Function] = {}
        self.nested_classes: dict[int, Class] = {}
        self.sharded: set[Class] = set()
        self.synchronized: set[Class] = set()
        self.wrapped_models: set[Hashable] = set()
        self.optimized_models: dict[Hashable, SourceLine] = {}
        self.lone_weights: dict[Hashable, SourceLine] = {}
        self.events: dict[str, Taint] = {}
        self.runs: dict[SourceLine, Taint] = {}
        self.heap = Heap(modules)
        self.first_uses: set[tuple[str, str]] = set()
        self.summaries = SummaryCache(name for name in self.heap.tested if "." in name)
        self.in_tests = False
        self.alarm_exception = ""
        self.group_timeouts: set[str] = set()
        self.untyped_attributes: dict[tuple[str, str], Value] = {}
        self.agreed_names: set[tuple[str, str]] = set()
        self.reassigned_attributes: dict[int, set[int]] = {}
        self.file_changes: dict[bool, set[tuple[str, int]]] = {False: set(), True: set()}
        self.saved_states: dict[SourceLine, bool] = {}
        self._seeds: dict[str, dict[SourceLine, Taint]] = {}
        self.root: Function | None = None
        self._creating_roots: dict[SourceLine, set[Function | None]] = {}
        self._called: set[Function | None] = set()
        self._annotated: dict[tuple[int, str], tuple[LibraryInstance, ...]] = {}
        self._texts: dict[int, str] = {}
        self._dotted: dict[int, str] = {}

    def release(self) -> None:
        """Break the reference cycles with the parts of the interpreter, and drop the summaries."""
        self.evaluators, self.executors = {}, {}
        del self.call, self.invoke, self.evaluate_attribute, self.summaries

    @cached_property
    def shards_models(self) -> bool:
        """Return True if the program configures a framework to shard its models."""
        return any(_SHARDS_MODELS.search(module.text) for module in self.modules.values())

    @cached_property
    def partitions_loaded_models(self) -> bool:
        """Return True if ``from_pretrained`` broadcasts and partitions the parameters.

        Sources: accelerate 1.15 DeepSpeedPlugin (``zero3_init_flag`` is set for stage 3),
        transformers 5.24 from_pretrained (deepspeed.zero.Init), deepspeed 0.19.8
        partition_parameters.py (``_post_init_method`` broadcasts).
        """
        return any(_PARTITIONS_LOADED.search(module.text) for module in self.modules.values())

    def known_objects(self, function: Function, name: str) -> tuple[LibraryInstance, ...]:
        """Return what a parameter is by its annotation, or as that of a framework's hook."""
        key = (id(function), name)
        if key not in self._annotated:
            annotation = self.symbols.annotation(function, name)
            named = library.CLASSES.get(annotation, "") if isinstance(annotation, str) else ""
            known = named.startswith(_ANNOTATED)
            self._annotated[key] = (
                (LibraryInstance(named),) if known else self._hook_objects(function, name)
            )
        return self._annotated[key]

    def _hook_objects(self, function: Function, name: str) -> tuple[LibraryInstance, ...]:
        """Return what a framework passes to a hook or step of a class derived from its own."""
        if function.owner is None or not _HOOK.match(function.name):
            return ()
        bases = [base for base in self.symbols.bases(function.owner) if isinstance(base, str)]
        hooks = [HOOK_CLASSES[base] for base in bases if base in HOOK_CLASSES]
        named = HOOK_PARAMETERS[hooks[0]].get(name, ()) if hooks else ()
        return tuple(
            LibraryInstance(each)
            for each in named
            if each != CONFIGURED_MODEL.name or self.shards_models
        )

    def record_seed(self, generator: str, location: SourceLine, sources: Taint) -> None:
        """Record a seed and why it differs between ranks; a line's uniform seed prevails."""
        seeds = self._seeds.setdefault(generator, {})
        if location not in seeds or (seeds[location] and not sources):
            seeds[location] = sources
            self.summaries.record_write("<seed>", generator)

    def seed_sources(self, generator: str) -> Taint:
        """Return why each rank has its own random numbers; empty if any seed is uniform."""
        self.summaries.record_read("<seed>", generator)
        seeds = list(self._seeds.get(generator, {}).values())
        return merge_taint(*seeds) if all(seeds) else ()

    @cached_property
    def starts_ranks(self) -> bool:
        """Return True if a process of the program starts the ranks, and passes its objects."""
        return any(_STARTS_RANKS.search(module.text) for module in self.modules.values())

    @property
    def has_own_random_numbers(self) -> bool:
        """Return True if ranks draw different numbers: a seed depends on the rank, or none is set.

        Torch starts each process with the same seed, Python and NumPy do not.
        """
        return self.never_seeds or any(any(seeds.values()) for seeds in self._seeds.values())

    @cached_property
    def never_seeds(self) -> bool:
        """Return True for a complete program, which creates its group, without any seed."""
        texts = [module.text for module in self.modules.values()]
        return any("init_process_group(" in text for text in texts) and not any(
            "seed" in text for text in texts
        )

    def add_creation(self, location: SourceLine) -> None:
        """Record that all ranks create the group of this line, if they run :attr:`root`."""
        roots = self._creating_roots.setdefault(location, set())
        if self.root not in roots:
            roots.add(self.root)
            self.summaries.record_write("<created>", "")

    def mark_called(self, function: Function) -> None:
        """Record that the program calls a function, which is no root then."""
        if function not in self._called:
            self._called.add(function)
            self.summaries.record_write("<created>", "")

    def is_created_on_all_ranks(self, location: SourceLine) -> bool:
        """Return True if all ranks create the group of this line, at this time or another."""
        self.summaries.record_read("<created>", "")
        return not self._creating_roots.get(location, set()) <= self._called

    # ---- dispatch

    def evaluate(self, frame: Frame, node: ast.expr | None) -> Value:
        """Return the value of ``node``."""
        if node is None:
            return UNIFORM
        evaluator = self.evaluators.get(type(node))
        return UNKNOWN if evaluator is None else evaluator(frame, node)

    def evaluate_test(self, frame: Frame, node: ast.expr) -> Value:
        """Return the value of ``node`` as a test."""
        value = self.as_presence(node, as_test(self.evaluate(frame, node)))
        if COUNT not in value.objects:
            return value
        return replace(
            value,
            content=merge_taint(value.content, self.taint_source(frame, TaintKind.DATA, node)),
            objects=(),
        )

    @staticmethod
    def as_presence(node: ast.expr, value: Value) -> Value:
        """Return a tested value: a path with the time or host in its name is empty on no rank.

        And usually each rank is in one group of those that a program creates.
        """
        if value.content and isinstance(node, (ast.Name, ast.Attribute)):
            if value.objects_of(ProcessGroup):
                return replace(value, content=without_kinds(value.content, RANK_OR_SELECTED))
            return replace(value, content=without_kinds(value.content, _NEVER_EMPTY))
        return value

    def run_block(self, frame: Frame, body: Sequence[ast.stmt]) -> None:
        """Run statements until one leaves the block."""
        control, exited = frame.control, frame.exited
        for statement in body:
            if frame.ended:
                break
            executor = self.executors.get(type(statement))
            if executor is None:
                continue
            try:
                executor(frame, statement)
            except RecursionError:
                continue  # expressions nested thousands deep: skip the statement
        frame.control, frame.exited = control, exited

    # ---- source text

    def unparse(self, node: ast.AST) -> str:
        """Return a node's source text, cached."""
        text = self._texts.get(id(node))
        if text is None:
            text = self._texts[id(node)] = ast.unparse(node)
        return text

    def dotted_name(self, node: ast.Attribute) -> str:
        """Return :func:`holdfast.lint.sources.modules.dotted_name`, cached."""
        name = self._dotted.get(id(node))
        if name is None:
            name = self._dotted[id(node)] = dotted_name(node)
        return name

    # ---- values

    def environment_variable(self, frame: Frame, name: str, node: ast.expr) -> Value:
        """Return an environment variable's value, tainted if the launcher sets it per rank."""
        kind = varying_values.VARYING_VARIABLES.get(name)
        if kind is not None:
            return Value(self.taint_source(frame, kind, node), objects=(LAUNCHER_RANK,))
        return Value(known=False, objects=(LOCAL_SIZE,)) if name == "LOCAL_WORLD_SIZE" else UNKNOWN

    def taint_source(self, frame: Frame, kind: TaintKind, node: ast.AST, text: str = "") -> Taint:
        """Return a new taint source."""
        if frame.single_process_depth:
            return ()
        description = text or self.unparse(node)
        description = (
            description if len(description) < _MAX_TEXT else description[: _MAX_TEXT - 3] + "..."
        )
        is_weak = kind is TaintKind.FILES and not self.is_small
        line = getattr(node, "lineno", 0)
        return (TaintSource(kind, frame.file, line, description, weak=is_weak),)

    def nested_function(self, frame: Frame, node: Definition, name: str) -> Function:
        """Return the function of a nested definition, the same object each time."""
        function = self.nested_functions.get(id(node))
        if function is None:
            function = self.nested_functions[id(node)] = Function(name, node, frame.scope.module)
        return function

    # ---- attributes and variables, for all functions

    def write_attribute(self, owner: Class | Instance, name: str, value: Value) -> None:
        """Join a value into an attribute of a class, or of the instances of a site."""
        cls = owner.cls if isinstance(owner, Instance) else owner
        if self.in_tests and not cls.module.is_test:
            return
        if self.starts_ranks:
            value = without_stamps(value)
        if value.agreed and name not in cls.shared_attributes:
            cls.shared_attributes.add(name)
            self.summaries.record_write(cls, name)
        if value.content or value.length or value.absent:
            keep = persistent_taint if self.is_small else weak_taint
            value = replace(
                value if self.starts_ranks else with_stamp(value),
                content=keep(value.content),
                length=keep(value.length),
                absent=keep(value.absent),
            )
        if not value.absent and value.const is not None and NONE_OBJECT not in value.objects:
            cls.always_set.add(name)
        old = cls.attributes.get(name)
        value = value if old is None else reuse_methods(old, value)
        if name in cls.always_set:
            value = replace(value, absent=()) if value.absent else value
            old = replace(old, absent=()) if old is not None and old.absent else old
        new = value if old is None else _join_containers(old, value)
        changed = isinstance(owner, Instance) and self.heap.write(owner, name, value)
        if new != old:
            cls.attributes[name] = new
        if changed or new != old:
            self.summaries.record_write(cls, name)

    def set_fact(self, frame: Frame, key: FactKey, value: Value | None) -> None:
        """Set what is known of an attribute or module variable from here on; None: nothing."""
        self.summaries.record_fact(key[1], known=value is not None)
        set_fact(frame.scope.names, key, value)

    def write_variable(self, module: Module, name: str, value: Value) -> None:
        """Join a value into a variable of a module."""
        if self.in_tests and not module.is_test:
            return
        written = module.set_by_functions.get(name)
        module.set_by_functions[name] = (
            value if written is None else join_values((written, reuse_methods(written, value)))
        )
        old = module.variables.get(name)
        new = value if old is None else join_values((old, reuse_methods(old, value)))
        if new != old:
            module.variables[name] = new
            self.summaries.record_write(module, name)


def _join_containers(old: Value, new: Value) -> Value:
    """Return the join of two values, with the objects in a list that the other one is not."""
    joined = join_values((old, new))
    if joined.items is not None or not (old.items or new.items):
        return joined
    inner = join_values([*(old.items or ()), *(new.items or ())]).objects
    objects = (*joined.objects, *mark_contained(inner))
    return replace(joined, objects=tuple(dict.fromkeys(objects))[:MAX_OBJECTS])
