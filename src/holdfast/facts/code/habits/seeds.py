"""Seeds: ranks that draw the same numbers where each should draw its own, and weights that each rank draws alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from holdfast.facts.code.habits.passages import Passage, inside
from holdfast.facts.code.modules import Class
from holdfast.facts.code.partings import Parting

_SEEDING = frozenset({"torch.manual_seed", "torch.cuda.manual_seed", "torch.cuda.manual_seed_all"})
_DRAWING = frozenset(f"torch.{name}" for name in ("randn", "rand", "randint", "normal", "multinomial", "bernoulli"))
_GATHERING = re.compile(r"(?:^|\.)(?:all_)?gather(?:_into_tensor|_object|_for_metrics)?$")
_RANK = re.compile(r"rank|process_index|device_specific|initial_seed", re.IGNORECASE)
_MADE_SAME = re.compile(
    r"broadcast|DistributedDataParallel|\bDDP\b|\bFSDP\b|FullyShard|fully_shard|load_state_dict|prepare"
)


def seeds(seen: Sequence[Passage]) -> Iterator[Parting]:
    """The partings of the passages of one module."""
    given = [(passage, call) for passage in seen for call in _seedings(passage)]
    if not given or PurePath(given[0][0].module.file).name.startswith(("test_", "conftest")):
        return
    if not any(_RANK.search(ast.unparse(call)) for _, call in given):
        for passage in seen:
            if not passage.name.startswith("test"):
                yield from _copies(passage, given[0])
    text = seen[0].module.text
    if ".grad" in text and "all_reduce" in text and not _MADE_SAME.search(text):
        for passage, call in given:
            yield from _own_weights(passage, call)


def _seedings(passage: Passage) -> Iterator[ast.Call]:
    for node in passage.nodes:
        if isinstance(node, ast.Call) and node.args:
            method = isinstance(node.func, ast.Attribute) and node.func.attr == "manual_seed"
            if method or passage.called(node) in _SEEDING:
                yield node


def _copies(passage: Passage, seeded: tuple[Passage, ast.Call]) -> Iterator[Parting]:
    """What is drawn after the same seed on all ranks is gathered from all of them: so many copies of one."""
    drawn: dict[str, ast.AST] = {}
    for node in passage.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names = {each.id for each in inside(node.value) if isinstance(each, ast.Name)}
            draws = [each for each in inside(node.value) if passage.called(each) in _DRAWING]
            name = node.targets[0].id
            if _RANK.search(ast.unparse(node.value)):
                drawn.pop(name, None)
            elif draws:
                drawn[name] = draws[0]
            elif len(names & set(drawn)) == 1 and names <= {*drawn, "torch"}:
                drawn[name] = drawn[(names & set(drawn)).pop()]
        elif isinstance(node, ast.Call) and _GATHERING.search(ast.unparse(node.func)) and not _is_index(node):
            for each in node.args:
                if isinstance(each, ast.Name) and each.id in drawn:
                    where, call = seeded
                    yield Parting("same-draws", passage.place(drawn[each.id]), where.place(call), each.id, ())
                    return


def _is_index(node: ast.Call) -> bool:
    """``scores.gather(1, chosen)``: a tensor's elements, and no other rank's."""
    return bool(node.args) and isinstance(node.args[0], (ast.Constant, ast.UnaryOp))


def _own_weights(passage: Passage, call: ast.Call) -> Iterator[Parting]:
    """A model whose weights come from a seed of the rank, and whose gradients are averaged as if they were the same."""
    if not _RANK.search(ast.unparse(call)):
        return
    for node in passage.nodes:
        if isinstance(node, ast.Call) and node is not call and node in _seedings(passage) and node.lineno > call.lineno:
            return
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.lineno > call.lineno:
            made = passage.entity(node.value.func)
            if isinstance(made, Class):
                made = next((base for base in passage.names.bases(made) if isinstance(base, str)), "")
            if isinstance(made, str) and made.startswith("torch.nn.") and made[9:10].isupper():
                place = passage.place(node)
                yield Parting("own-weights", place, passage.place(call), ast.unparse(node.targets[0]), ())
                return
