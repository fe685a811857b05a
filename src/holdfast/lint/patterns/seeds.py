"""Find ranks that draw equal numbers where they should differ, and weights that differ."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.patterns.scopes import CodeScope, walk_nodes
from holdfast.lint.sources.modules import Class

_SEED_CALLS = frozenset(
    {"torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"}
)
_RANDOM_CALLS = frozenset(
    f"torch.{name}" for name in ("randn", "rand", "randint", "normal", "multinomial", "bernoulli")
)
_GATHER_NAME = re.compile(r"(?:^|\.)(?:all_)?gather(?:_into_tensor|_object|_for_metrics)?$")
_RANK_WORDS = re.compile(r"rank|process_index|device_specific|initial_seed", re.IGNORECASE)
_SYNCHRONIZES_WEIGHTS = re.compile(
    r"broadcast|DistributedDataParallel|\bDDP\b|\bFSDP\b|FullyShard|fully_shard|load_state_dict"
    r"|prepare"
)


def find_seed_patterns(scopes: Sequence[CodeScope]) -> Iterator[Divergence]:
    """Yield the divergences in the scopes of one module."""
    seed_calls = [(scope, call) for scope in scopes for call in _seed_calls(scope)]
    if not seed_calls or PurePath(seed_calls[0][0].module.file).name.startswith(
        ("test_", "conftest")
    ):
        return
    if not any(_RANK_WORDS.search(ast.unparse(call)) for _, call in seed_calls):
        for scope in scopes:
            if not scope.name.startswith("test"):
                yield from _gathered_copies(scope, seed_calls[0])
    text = scopes[0].module.text
    if ".grad" in text and "all_reduce" in text and not _SYNCHRONIZES_WEIGHTS.search(text):
        for scope, call in seed_calls:
            yield from _rank_seeded_weights(scope, call)


def _seed_calls(scope: CodeScope) -> Iterator[ast.Call]:
    for call in scope.calls:
        if call.args:
            method = isinstance(call.func, ast.Attribute) and call.func.attr == "manual_seed"
            if method or scope.library_call_name(call) in _SEED_CALLS:
                yield call


def _gathered_copies(scope: CodeScope, seeded: tuple[CodeScope, ast.Call]) -> Iterator[Divergence]:
    """Yield tensors drawn with the same seed on all ranks that are then gathered."""
    random_tensors: dict[str, ast.AST] = {}
    for node in scope.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names = {child.id for child in walk_nodes(node.value) if isinstance(child, ast.Name)}
            draws = [
                child
                for child in walk_nodes(node.value)
                if scope.library_call_name(child) in _RANDOM_CALLS
            ]
            name = node.targets[0].id
            if _RANK_WORDS.search(ast.unparse(node.value)):
                random_tensors.pop(name, None)
            elif draws:
                random_tensors[name] = draws[0]
            elif len(names & set(random_tensors)) == 1 and names <= {*random_tensors, "torch"}:
                random_tensors[name] = random_tensors[(names & set(random_tensors)).pop()]
        elif (
            isinstance(node, ast.Call)
            and _GATHER_NAME.search(ast.unparse(node.func))
            and not _is_indexing(node)
        ):
            for arg in node.args:
                if isinstance(arg, ast.Name) and arg.id in random_tensors:
                    seed_scope, call = seeded
                    yield Divergence(
                        "same-draws",
                        scope.location(random_tensors[arg.id]),
                        seed_scope.location(call),
                        arg.id,
                        (),
                    )
                    return


def _is_indexing(node: ast.Call) -> bool:
    """Return True for ``scores.gather(1, chosen)``, which is indexing and no collective."""
    return bool(node.args) and isinstance(node.args[0], (ast.Constant, ast.UnaryOp))


def _rank_seeded_weights(scope: CodeScope, call: ast.Call) -> Iterator[Divergence]:
    """Yield models whose weights depend on a rank's seed and whose gradients are averaged."""
    if not _RANK_WORDS.search(ast.unparse(call)):
        return
    for node in scope.nodes:
        if (
            isinstance(node, ast.Call)
            and node is not call
            and node in _seed_calls(scope)
            and node.lineno > call.lineno
        ):
            return
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and node.lineno > call.lineno
        ):
            definition = scope.resolve(node.value.func)
            if isinstance(definition, Class):
                definition = next(
                    (base for base in scope.symbols.bases(definition) if isinstance(base, str)), ""
                )
            if (
                isinstance(definition, str)
                and definition.startswith("torch.nn.")
                and definition[9:10].isupper()
            ):
                location = scope.location(node)
                yield Divergence(
                    "own-weights", location, scope.location(call), ast.unparse(node.targets[0]), ()
                )
                return
