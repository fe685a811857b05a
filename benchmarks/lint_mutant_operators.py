"""Mutation operators: each breaks a correct distributed program mechanically, in one place.

An operator yields mutations of a file. It applies only where the result is a bug in any job with
more than one rank; the sentence of each operator says why.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.mutable_source import MutableSource, Mutation, is_one_rank_test

Operator = Callable[[MutableSource], Iterator[Mutation]]
_WRITES = re.compile(r"\.save\(|save_pretrained\(|makedirs|mkdir|copy|download|dump\(|'w[b]?'")
_READS = re.compile(r"\.load\(|load_|from_pretrained\(|open\(|listdir|glob|Dataset\(|read_")
_EVALUATION = re.compile(r"(^|[._])(eval|evaluate|validate|validation|valid|test)(_\w+)?$")
_DDP = re.compile(r"\bDistributedDataParallel\(|\bDDP\(|FullyShardedDataParallel\(|\bFSDP\(")
#: Paths that ranks do not share.
_OWN_FILE = re.compile(r"rank|devnull|BytesIO|buffer")
#: A function that already tests the rank's own loss, rightly or not.
_FINITE = re.compile(r"isfinite|isnan")
_REDUCTION = re.compile(r"all_reduce|reduce_|gather|broadcast")


@dataclass(frozen=True)
class NamedOperator:
    """An operator, why its mutants are bugs, and whether their finding may be anywhere."""

    name: str
    reason: str
    mutate: Operator
    anywhere: bool = False


def guard_collective(source: MutableSource) -> Iterator[Mutation]:
    """Put a collective under the file's own test of the rank."""
    for statement in _common_collectives(source):
        test = source.rank_test_at(statement)
        if test is not None:
            yield Mutation([statement], [_guarded(test, [statement])])


def guard_wrapper_call(source: MutableSource) -> Iterator[Mutation]:
    """Put the call of a function that enters a collective under a test of the rank."""
    for statement in _statements(source):
        if (
            isinstance(statement, ast.Expr)
            and source.calls_wrapper(statement.value)
            and not source.depends_on_rank(statement)
            and (test := source.rank_test_at(statement)) is not None
        ):
            yield Mutation([statement], [_guarded(test, [statement])])


def guard_method_call(source: MutableSource) -> Iterator[Mutation]:
    """Put the call of an own method that enters a collective under a test of the rank."""
    for statement in _statements(source):
        if (
            isinstance(statement, ast.Expr)
            and source.calls_own_method(statement.value)
            and not source.depends_on_rank(statement)
            and (test := source.rank_test_at(statement)) is not None
        ):
            yield Mutation([statement], [_guarded(test, [statement])])


def swap_order(source: MutableSource) -> Iterator[Mutation]:
    """Let one rank enter two collectives in the opposite order."""
    common = list(_common_collectives(source))
    for first, second in pairwise(common):
        names = {source.distributed_call(one.value) for one in (first, second)}  # type: ignore[attr-defined]
        test = source.rank_test_at(first)
        adjacent = any(
            pair == (first, second) for block in source.blocks for pair in pairwise(block)
        )
        if adjacent and len(names) > 1 and test is not None:
            branch = ast.If(test, [second, first], [first, second])
            yield Mutation([first, second], [branch])


def own_root(source: MutableSource) -> Iterator[Mutation]:
    """Use each rank itself as the root of a broadcast."""
    for statement in _common_collectives(source):
        call = statement.value  # type: ignore[attr-defined]
        keywords = {word.arg: word.value for word in call.keywords}
        root = keywords.get("src")
        if source.get_rank_test is not None and isinstance(root, ast.Constant):
            own = source.get_rank_test.left  # type: ignore[attr-defined]
            changed = [
                ast.keyword(word.arg, own if word.value is root else word.value)
                for word in call.keywords
            ]
            yield Mutation([statement], [ast.Expr(ast.Call(call.func, call.args, changed))])


def share_of_loop(source: MutableSource) -> Iterator[Mutation]:
    """Give each rank its share of the iterations of a loop with a collective."""
    for statement in _common_collectives(source):
        loop = source.loop(statement)
        if isinstance(loop, ast.For) and statement in loop.body and source.get_rank_test:
            own = ast.unparse(source.get_rank_test.left)  # type: ignore[attr-defined]
            size = own.replace("get_rank", "get_world_size")
            over = ast.parse(f"list({ast.unparse(loop.iter)})[{own}::{size}]", mode="eval").body
            yield Mutation([loop], [ast.For(loop.target, over, loop.body, loop.orelse)])


def stop_on_time(source: MutableSource) -> Iterator[Mutation]:
    """End the loop when the rank's own clock has passed a limit."""
    yield from _before_backward(source, "import time\nif time.time() - started > 60:\n    {stop}")


def move_into_guard(source: MutableSource) -> Iterator[Mutation]:
    """Move a collective into the block of one rank in front of it."""
    for block in source.blocks:
        for guard, statement in pairwise(block):
            if (
                isinstance(guard, ast.If)
                and not guard.orelse
                and is_one_rank_test(guard.test)
                and not isinstance(guard.body[-1], ast.Return | ast.Raise | ast.Continue)
                and source.is_collective_statement(statement)
                and not source.depends_on_rank(guard)
            ):
                yield Mutation([guard, statement], [_guarded(guard.test, [*guard.body, statement])])


def return_before_collective(source: MutableSource) -> Iterator[Mutation]:
    """Let all ranks but one return before a collective."""
    for statement in _common_collectives(source):
        test = source.rank_test_at(statement)
        if test is not None and source.function(statement) is not None:
            leave = _guarded(ast.UnaryOp(ast.Not(), test), [ast.Return()])
            yield Mutation([statement], [leave, statement])


def guard_new_group(source: MutableSource) -> Iterator[Mutation]:
    """Create a group under a test of the rank."""
    for statement in _statements(source):
        if (
            isinstance(statement, ast.Assign | ast.Expr)
            and source.distributed_call(statement.value) == "new_group"
            and not source.depends_on_rank(statement)
            and (test := source.rank_test_at(statement)) is not None
        ):
            yield Mutation([statement], [_guarded(test, [statement])])


def guard_evaluation(source: MutableSource) -> Iterator[Mutation]:
    """Evaluate the wrapped model under a test of the rank."""
    wrapped = _wrapped_models(source)
    for statement in _statements(source):
        call = getattr(statement, "value", None)
        if (
            isinstance(statement, ast.Assign | ast.Expr)
            and isinstance(call, ast.Call)
            and _EVALUATION.search(source.full_name(call.func))
            and any(isinstance(word, ast.Name) and word.id in wrapped for word in call.args)
            and not source.depends_on_rank(statement)
            and (test := source.rank_test_at(statement)) is not None
        ):
            yield Mutation([statement], [_guarded(test, [statement])])


def skip_nonfinite_loss(source: MutableSource) -> Iterator[Mutation]:
    """Skip the backward pass of a wrapped model if the rank's own loss is not finite."""
    yield from _before_backward(source, "if not torch.isfinite({loss}):\n    {leave}")


def break_on_loss(source: MutableSource) -> Iterator[Mutation]:
    """End the loop if the rank's own loss is small enough."""
    yield from _before_backward(source, "if {loss}.item() < 0.001:\n    {stop}")


def swallow_failed_step(source: MutableSource) -> Iterator[Mutation]:
    """Continue after a failed backward pass."""
    for statement, _, leave in _training_steps(source):
        handler = ast.ExceptHandler(ast.Name("RuntimeError"), None, [_statement(leave)])
        yield Mutation([statement], [ast.Try([statement], [handler], [], [])])


def drop_group(source: MutableSource) -> Iterator[Mutation]:
    """Drop the group of a collective, where the file creates this group of some of the ranks."""
    groups = {
        ast.unparse(target)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and source.distributed_call(node.value) == "new_group"
        and (node.value.args or "ranks=" in ast.unparse(node.value))  # type: ignore[attr-defined]
        for target in node.targets
    }
    for statement in _statements(source):
        if source.is_collective_statement(statement) and not source.depends_on_rank(statement):
            call = statement.value  # type: ignore[attr-defined]
            kept = [word for word in call.keywords if word.arg != "group"]
            if any(
                word.arg == "group" and ast.unparse(word.value) in groups for word in call.keywords
            ):
                yield Mutation([statement], [ast.Expr(ast.Call(call.func, call.args, kept))])


def root_outside_group(source: MutableSource) -> Iterator[Mutation]:
    """Use rank 0 as the root of a broadcast in a group, most of which do not contain it."""
    for statement in _statements(source):
        if not source.is_collective_statement(statement):
            continue
        call = statement.value  # type: ignore[attr-defined]
        keywords = {word.arg: word.value for word in call.keywords}
        root = keywords.get("src", keywords.get("dst"))
        if "group" in keywords and isinstance(root, ast.Call | ast.Attribute | ast.Subscript):
            changed = [
                ast.keyword(word.arg, ast.Constant(0) if word.value is root else word.value)
                for word in call.keywords
            ]
            yield Mutation([statement], [ast.Expr(ast.Call(call.func, call.args, changed))])


def remove_set_epoch(source: MutableSource) -> Iterator[Mutation]:
    """Remove the call of ``set_epoch``."""
    calls = [
        statement
        for statement in _statements(source)
        if isinstance(statement, ast.Expr) and _method(statement.value) == "set_epoch"
    ]
    if len(calls) == 1 and "DistributedSampler(" in source.text:
        yield Mutation(calls, [])


def shuffle_instead_of_sampler(source: MutableSource) -> Iterator[Mutation]:
    """Shuffle instead of sharing out the data by a DistributedSampler."""
    samplers = {
        ast.unparse(node.targets[0])
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).endswith("DistributedSampler")
    }
    for statement in _statements(source):
        call = getattr(statement, "value", None)
        if not (
            isinstance(statement, ast.Assign)
            and isinstance(call, ast.Call)
            and ast.unparse(call.func).endswith("DataLoader")
        ):
            continue
        keywords = {word.arg: ast.unparse(word.value) for word in call.keywords}
        if keywords.get("sampler") in samplers:
            kept = [word for word in call.keywords if word.arg not in ("sampler", "shuffle")]
            changed = [*kept, ast.keyword("shuffle", ast.Constant(value=True))]
            loader = ast.Assign(statement.targets, ast.Call(call.func, call.args, changed))
            yield Mutation([statement], [loader])


def remove_wait(source: MutableSource) -> Iterator[Mutation]:
    """Remove the wait for an asynchronous collective."""
    handles = {
        ast.unparse(node.targets[0])
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and source.distributed_call(node.value)
        and "async_op=True" in ast.unparse(node.value)
    }
    for statement in _statements(source):
        if (
            isinstance(statement, ast.Expr)
            and _method(statement.value) == "wait"
            and ast.unparse(statement.value.func.value) in handles  # type: ignore[attr-defined]
        ):
            yield Mutation([statement], [])


def remove_file_barrier(source: MutableSource) -> Iterator[Mutation]:
    """Remove the barrier between a file's creation by one rank and its use by all."""
    for block in source.blocks:
        for at, statement in enumerate(block[1:-1], 1):
            guard = block[at - 1]
            if (
                source.is_collective_statement(statement)
                and source.distributed_call(statement.value) == "barrier"  # type: ignore[attr-defined]
                and isinstance(guard, ast.If)
                and is_one_rank_test(guard.test)
                and _WRITES.search(ast.unparse(guard))
                and any(_READS.search(ast.unparse(later)) for later in block[at + 1 : at + 4])
            ):
                yield Mutation([statement], [])


def drop_save_guard(source: MutableSource) -> Iterator[Mutation]:
    """Let all ranks write the checkpoint that one rank wrote."""
    for statement in _statements(source):
        if (
            isinstance(statement, ast.If)
            and not statement.orelse
            and is_one_rank_test(statement.test)
            and "torch.save(" in ast.unparse(statement)
            and not _OWN_FILE.search("".join(map(ast.unparse, statement.body)))
            and not source.depends_on_rank(statement)
        ):
            yield Mutation([statement], statement.body)


def remove_stop_reduction(source: MutableSource) -> Iterator[Mutation]:
    """Remove the reduction of a value by which a loop ends."""
    for statement in _common_collectives(source):
        call = statement.value  # type: ignore[attr-defined]
        loop = source.loop(statement)
        if loop is None or not call.args or not isinstance(call.args[0], ast.Name):
            continue
        value = call.args[0].id
        stops = [
            node
            for node in ast.walk(loop)
            if isinstance(node, ast.If)
            and node.lineno > statement.lineno
            and re.search(rf"\b{value}\b", ast.unparse(node.test))
            and any(isinstance(end, ast.Break | ast.Return) for end in ast.walk(node))
        ]
        if stops:
            yield Mutation([statement], [])


def send_first_on_both(source: MutableSource) -> Iterator[Mutation]:
    """Let both partners send before they receive."""
    for block in source.blocks:
        for first, second in pairwise(block):
            calls = [
                source.distributed_call(getattr(one, "value", None)) for one in (first, second)
            ]
            branch = source.parents[first]
            if calls == ["recv", "send"] and isinstance(branch, ast.If) and branch.orelse:
                yield Mutation([first, second], [second, first])


def _before_backward(source: MutableSource, template: str) -> Iterator[Mutation]:
    for statement, loss, leave in _training_steps(source):
        stop = "break" if leave == "continue" else leave
        code = template.format(loss=loss, leave=leave, stop=stop)
        yield Mutation([statement], [*ast.parse(code).body, statement])


def _training_steps(source: MutableSource) -> Iterator[tuple[ast.stmt, str, str]]:
    """Yield backward statements of a wrapped model, the loss and the statement to skip them."""
    if not _DDP.search(source.text) or "import torch" not in source.text:
        return
    for statement in _statements(source):
        loss = _backward_loss(statement)
        scope = source.function(statement)
        if not loss or source.depends_on_rank(statement):
            continue
        text = ast.unparse(scope or source.tree)
        if _FINITE.search(text) or any(
            _REDUCTION.search(line) and loss in line for line in text.splitlines()
        ):
            continue
        if source.loop(statement) is not None:
            yield statement, loss, "continue"
        elif scope is not None:
            yield statement, loss, "return"


def _backward_loss(statement: ast.stmt) -> str:
    """Return the variable whose ``backward`` a statement calls, perhaps through a scaler."""
    if not isinstance(statement, ast.Expr) or _method(statement.value) != "backward":
        return ""
    receiver = statement.value.func.value  # type: ignore[attr-defined]
    if _method(receiver) == "scale" and len(receiver.args) == 1:
        receiver = receiver.args[0]
    return receiver.id if isinstance(receiver, ast.Name) else ""


def _wrapped_models(source: MutableSource) -> set[str]:
    """Return the variables to which a model wrapped in DDP or FSDP is assigned."""
    return {
        node.targets[0].id
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and _DDP.search(ast.unparse(node.value))
    }


def _common_collectives(source: MutableSource) -> Iterator[ast.stmt]:
    """Yield collectives of the default group that all ranks reach."""
    for statement in _statements(source):
        if source.is_collective_statement(statement) and not source.depends_on_rank(statement):
            call = statement.value  # type: ignore[attr-defined]
            if not any(word.arg == "group" for word in call.keywords):
                yield statement


def _statements(source: MutableSource) -> list[ast.stmt]:
    return [statement for block in source.blocks for statement in block]


def _method(node: ast.expr) -> str:
    called = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    return node.func.attr if called else ""  # type: ignore[attr-defined]


def _guarded(test: ast.expr, body: Sequence[ast.stmt]) -> ast.If:
    return ast.If(test, list(body), [])


def _statement(code: str) -> ast.stmt:
    return ast.parse(code).body[0] if code not in ("continue", "break", "return") else _leave(code)


def _leave(code: str) -> ast.stmt:
    return {"continue": ast.Continue, "break": ast.Break, "return": ast.Return}[code]()


_WAITS = "One rank waits for ranks that never enter."
OPERATORS = (
    NamedOperator("guard-collective", _WAITS, guard_collective),
    NamedOperator("guard-wrapper-call", _WAITS, guard_wrapper_call),
    NamedOperator("guard-method-call", _WAITS, guard_method_call),
    NamedOperator("move-into-guard", _WAITS, move_into_guard),
    NamedOperator("swap-order", "Each waits in another collective.", swap_order),
    NamedOperator("own-root", "Each rank sends, and none receives.", own_root),
    NamedOperator(
        "share-of-loop", "Ranks with one iteration less do not enter the last.", share_of_loop
    ),
    NamedOperator("stop-on-time", "Ranks leave the loop at different steps.", stop_on_time),
    NamedOperator("return-before-collective", _WAITS, return_before_collective),
    NamedOperator("guard-new-group", "new_group waits for all ranks.", guard_new_group),
    NamedOperator(
        "guard-evaluation",
        "The forward pass of a wrapped model may enter collectives.",
        guard_evaluation,
    ),
    NamedOperator(
        "skip-nonfinite-loss",
        "The other ranks wait in the backward pass's reduction.",
        skip_nonfinite_loss,
    ),
    NamedOperator("break-on-loss", "Ranks leave the loop at different steps.", break_on_loss),
    NamedOperator(
        "swallow-failed-step",
        "The other ranks wait in the reduction of the failed step.",
        swallow_failed_step,
    ),
    NamedOperator("drop-group", "Values of other groups are mixed in.", drop_group),
    NamedOperator(
        "root-outside-group", "A group without rank 0 has no such root.", root_outside_group
    ),
    NamedOperator(
        "remove-set-epoch", "Each epoch has the same order.", remove_set_epoch, anywhere=True
    ),
    NamedOperator(
        "shuffle-instead-of-sampler",
        "Each rank trains on all data.",
        shuffle_instead_of_sampler,
        anywhere=True,
    ),
    NamedOperator(
        "remove-wait", "The result is used before it is complete.", remove_wait, anywhere=True
    ),
    NamedOperator(
        "remove-file-barrier", "Ranks read the file before it is complete.", remove_file_barrier
    ),
    NamedOperator("drop-save-guard", "Ranks overwrite each other's file.", drop_save_guard),
    NamedOperator(
        "remove-stop-reduction", "Ranks leave the loop at different steps.", remove_stop_reduction
    ),
    NamedOperator(
        "send-first-on-both", "Both wait for the partner to receive.", send_first_on_both
    ),
)
