"""Find habits in code for training frameworks: schedules, gathered results, hooks, start of ranks.

All rest on names, and are advice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.by_name.devices import habit
from holdfast.lint.patterns.rank_guards import Unit, is_guarded, iter_units
from holdfast.lint.patterns.scopes import LOOPS, argument, starts_before
from holdfast.lint.patterns.step_counts import steps_of_schedule
from holdfast.lint.sources.modules import Function, Module, SymbolTable, dotted_name, last_name

_COUNTS_PROCESSES = re.compile(r"num_processes|world_size|n_gpus|num_gpus")
_OWN_STEPS = re.compile(r"step_scheduler_with_optimizer|split_batches")
_EVALUATION_NAME = re.compile(r"eval|valid|test|\bval_|_val\b|predict")
_COUNTED = frozenset({"add_batch", "update", "append", "extend", "add"})
_DROPS_REPEATS = re.compile(
    r"\[\s*:|gather_for_metrics|even_batches|drop_last|remainder|num_samples|samples_seen"
)
_SPAWN = re.compile(r"(?:^|\.)(?:mp|multiprocessing)\.spawn$")
_INDEX = re.compile(r"rank|gpu|proc|id|index|worker|device|^i$|node|local|^n$|^_")
_RANK = re.compile(r"^(?:local_|global_|process_|proc_)?rank$|^gpu(?:_id)?$")
_OWN_PORT = re.compile(r"rand|free_?port|find_\w*port|unused_port|open_port|getpid|time\(")
SEVERAL_RANKS = re.compile(
    r"\bddp\b|[\"']fsdp|[\"']deepspeed|num_nodes|devices\s*=\s*(?!1\b|None|\[0\])"
)
_LIGHTNING_BASE = re.compile(r"Lightning(?:Data)?Module$")
_RUN_USES = frozenset({"log", "watch"})
_RUN_TEST = re.compile(r"wandb|log|track|report|main|master|rank|run\b|dist", re.IGNORECASE)
_MAX_DEPTH = 4
_Finder = Callable[[Unit], Iterator[Divergence]]


def find_framework_habits(modules: Collection[Module], names: SymbolTable) -> Iterator[Divergence]:
    """Yield the habits of all modules but tests."""
    own = [module for module in modules if not module.is_test]
    finders: list[tuple[str, str, _Finder]] = [
        ("ccelerator", ".prepare(", _unscaled_schedules),
        ("ccelerator", "ccelerator.gather(", _repeated_samples),
        ("spawn(", "spawn(", partial(_spawned, names)),
        ("MASTER_PORT", "MASTER_PORT", _own_port),
        ("wandb.init(", "wandb.init(", _absent_runs),
    ]
    if any(SEVERAL_RANKS.search(module.text) for module in own):
        finders.append(("prepare_data", "def prepare_data(", partial(_lost_state, own)))
    for module in own:
        for word, part, find in finders:
            if word in module.text:
                for unit in iter_units(module, part):
                    yield from find(unit)


# ---- Accelerate


def _unscaled_schedules(unit: Unit) -> Iterator[Divergence]:
    """Yield prepared schedules whose length counts the steps of this process.

    Source: accelerate 1.15 scheduler.py: without ``split_batches``, a step of the prepared schedule
    is ``num_processes`` steps of the one inside.
    """
    if _OWN_STEPS.search(unit.module.text):
        return
    prepared = _prepared(unit)
    for name, line in prepared.items():
        made = [each for each in unit.assigned(name) if isinstance(each, ast.Call)]
        for home, call in _schedules_of(unit, [each for each in made if each.lineno <= line]):
            steps = steps_of_schedule(call)
            known = prepared if home is unit else {}
            if steps is not None and _counts_own_steps(home, steps, call.lineno, known):
                message = (
                    f"`{ast.unparse(steps)}` is the number of steps of each process, and "
                    f"Accelerate advances the prepared `{name}` by num_processes in each: it ends "
                    "too early; multiply by `accelerator.num_processes`"
                )
                yield habit(home, steps, "state", message)


def _schedules_of(unit: Unit, made: Sequence[ast.Call]) -> Iterator[tuple[Unit, ast.Call]]:
    """Yield calls, and those that a function or method of the file returns, with their homes."""
    for call in made:
        yield unit, call
        name = last_name(call.func)
        for home in iter_units(unit.module, f"def {name}(") if name else ():
            for node in home.nodes if getattr(home.node, "name", "") == name else ():
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Call):
                    yield home, node.value


def _prepared(unit: Unit) -> dict[str, int]:
    """Return the variables that an accelerator prepares, with the first line that does."""
    lines: dict[str, int] = {}
    for call in unit.calls:
        if last_name(call.func) == "prepare" and isinstance(call.func, ast.Attribute):
            if not last_name(call.func.value).endswith("accelerator"):
                continue
            for passed in call.args:
                if isinstance(passed, ast.Name):
                    lines[passed.id] = min(call.lineno, lines.get(passed.id, call.lineno))
    return lines


def _counts_own_steps(unit: Unit, steps: ast.expr, line: int, prepared: dict[str, int]) -> bool:
    """Return True for the length of a prepared loader, or the number at which training ends."""
    parts = list(_origins(unit, steps, line))
    texts = list(map(ast.unparse, parts))
    if any(map(_COUNTS_PROCESSES.search, texts)):
        return False
    sizes = [
        node
        for part in parts
        for node in ast.walk(part)
        if isinstance(node, ast.Call) and last_name(node.func) == "len" and node.args
    ]
    if sizes:
        return all(
            isinstance(size.args[0], ast.Name)
            and prepared.get(size.args[0].id, size.lineno) < size.lineno
            for size in sizes
        )
    units = [unit, *iter_units(unit.module, last_name(steps) or ast.unparse(steps))]
    return bool({ast.unparse(steps), *texts} & {bound for each in units for bound in _bounds(each)})


def _origins(unit: Unit, node: ast.expr, line: int, depth: int = 0) -> Iterator[ast.expr]:
    """Yield an expression, and what its variables were assigned before a line."""
    yield node
    if depth == _MAX_DEPTH:
        return
    for part in ast.walk(node):
        if isinstance(part, (ast.Name, ast.Attribute)):
            for value in unit.assigned(ast.unparse(part)):
                if value.lineno < line:
                    yield from _origins(unit, value, value.lineno, depth + 1)


def _bounds(unit: Unit) -> Iterator[str]:
    """Yield the numbers of steps after which a loop ends."""
    for node in unit.nodes:
        match node:
            case ast.If(test=ast.Compare(ops=[ast.GtE() | ast.Eq()], comparators=[bound])):
                if isinstance(node.body[-1], (ast.Break, ast.Return)):
                    yield ast.unparse(bound)
            case ast.While(test=ast.Compare(ops=[ast.Lt()], comparators=[bound])):
                yield ast.unparse(bound)
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[*_, bound])):
                yield ast.unparse(bound)
            case _:
                pass


def _repeated_samples(unit: Unit) -> Iterator[Divergence]:
    """Yield gathered results of an evaluation that count repeated samples.

    Source: accelerate 1.15 accelerator.py, ``gather_for_metrics``: it drops the samples with which
    a prepared loader fills its last batch.
    """
    if _DROPS_REPEATS.search(unit.text(unit.node)):
        return
    for call in unit.calls:
        if last_name(call.func) != "gather" or not call.args:
            continue
        around = [parent for parent, _ in unit.ancestors(call)]
        loop = next((node for node in around if isinstance(node, ast.For)), None)
        if loop is None or not _EVALUATION_NAME.search(ast.unparse(loop.iter) + _unit_name(unit)):
            continue
        target = next((node.targets[0] for node in around if isinstance(node, ast.Assign)), None)
        names = {node.id for node in ast.walk(target or call) if isinstance(node, ast.Name)}
        if isinstance(call.args[0], ast.Tuple) and _is_counted(unit, names):
            message = (
                "gather keeps the samples that Accelerate repeats to fill the last batch, and they "
                "count twice: use `gather_for_metrics`"
            )
            yield habit(unit, call, "result", message)


def _unit_name(unit: Unit) -> str:
    """Return the name of a function, or nothing."""
    return getattr(unit.node, "name", "")


def _is_counted(unit: Unit, names: set[str]) -> bool:
    return any(
        last_name(call.func) in _COUNTED
        and names
        & {
            node.id
            for value in (*call.args, *(keyword.value for keyword in call.keywords))
            for node in ast.walk(value)
            if isinstance(node, ast.Name)
        }
        for call in unit.calls
    )


# ---- the start of ranks


def _spawned(names: SymbolTable, unit: Unit) -> Iterator[Divergence]:
    """Yield calls of ``mp.spawn`` whose function takes other arguments than it gets."""
    for call in unit.calls:
        worker, passed = argument(call, 0, "fn"), argument(call, 1, "args")
        if not _SPAWN.search(dotted_name(call.func)) or not isinstance(worker, ast.Name):
            continue
        function = names.resolve_member(unit.module, worker.id)
        if not isinstance(function, Function) or function.node.args.vararg is not None:
            continue
        parameters = function.parameters
        if isinstance(passed, ast.Tuple) and not any(
            isinstance(item, ast.Starred) for item in passed.elts
        ):
            count, most = 1 + len(passed.elts), len(parameters)
            if not most - len(function.node.args.defaults) <= count <= most:
                message = (
                    f"spawn passes the index of the process and {count - 1} arguments to "
                    f"{function.name}, which takes {most} in all"
                )
                yield habit(unit, call, "local-rank", message)
                continue
        if parameters and not _INDEX.search(parameters[0]):
            rank = next(filter(_RANK.match, parameters[1:]), None)
            if rank is not None:
                message = (
                    f"spawn passes the index of the process first: {function.name} takes it as "
                    f"`{parameters[0]}`, not as `{rank}`"
                )
                yield habit(unit, call, "local-rank", message)


def _own_port(unit: Unit) -> Iterator[Divergence]:
    """Yield a port that each rank chooses for itself."""
    parameters = getattr(getattr(unit.node, "args", None), "args", [])
    if not any(_RANK.match(parameter.arg) for parameter in parameters):
        return
    for node in unit.nodes:
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Subscript)
            and "MASTER_PORT" in ast.unparse(node.targets[0])
            and any(
                isinstance(part, ast.Call) and _OWN_PORT.search(f"{dotted_name(part.func)}(")
                for part in ast.walk(node.value)
            )
            and not any(isinstance(parent, (ast.If, *LOOPS)) for parent, _ in unit.ancestors(node))
        ):
            message = (
                "each rank chooses its own MASTER_PORT here, and no two of them meet: choose it "
                "once, in the process that starts the ranks"
            )
            yield habit(unit, node, "name", message)


# ---- Lightning and W&B


def _lost_state(modules: Collection[Module], unit: Unit) -> Iterator[Divergence]:
    """Yield attributes that ``prepare_data`` sets and other methods read.

    Source: lightning 2.6 core/hooks.py: prepare_data is called on one process of each node, so it
    must not set state.
    """
    owner = unit.owner
    if owner is None or not any(_LIGHTNING_BASE.search(ast.unparse(base)) for base in owner.bases):
        return
    if any(".prepare_data(" in module.text for module in modules):
        return
    used = [
        node
        for node in ast.walk(owner)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self"
    ]
    inside = set(map(id, unit.nodes))
    for node in unit.nodes:
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store):
            continue
        others = [other for other in used if other.attr == node.attr and id(other) not in inside]
        if ast.unparse(node.value) != "self" or not others:
            continue
        if not any(isinstance(other.ctx, ast.Store) for other in others):
            message = (
                f"prepare_data runs on one process of each host: on the other ranks, "
                f"`self.{node.attr}` is missing; set it in `setup`"
            )
            yield habit(unit, node, "state", message)


def _absent_runs(unit: Unit) -> Iterator[Divergence]:
    """Yield uses of a W&B run on ranks that did not create it."""
    if "WANDB_MODE" in unit.module.text:
        return
    created = [call for call in unit.calls if dotted_name(call.func) == "wandb.init"]
    if len(created) != 1 or not is_guarded(unit, created[0]) or _is_alternative(unit, created[0]):
        return
    for node in unit.nodes:
        uses_run = (
            isinstance(node, ast.Attribute)
            and dotted_name(node.value) in ("wandb.run", "wandb.config")
        ) or (
            isinstance(node, ast.Attribute)
            and dotted_name(node.value) == "wandb"
            and node.attr in _RUN_USES
        )
        if not uses_run or not starts_before(created[0], node) or is_guarded(unit, node):
            continue
        tests = [
            ast.unparse(parent.test)
            for parent, _ in unit.ancestors(node)
            if isinstance(parent, (ast.If, ast.IfExp, ast.While))
        ]
        if not any(map(_RUN_TEST.search, tests)):
            message = (
                f"`{ast.unparse(node)}` fails on the ranks that do not call wandb.init, which "
                f"line {created[0].lineno} calls on one rank only"
            )
            yield habit(unit, node, "branch", message)
            return


def _is_alternative(unit: Unit, call: ast.Call) -> bool:
    """Return True if a test around a call has another side, which may do the same otherwise."""
    return any(isinstance(parent, ast.If) and parent.orelse for parent, _ in unit.ancestors(call))
