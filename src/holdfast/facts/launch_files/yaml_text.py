"""Variables in YAML and JSON: Kubernetes manifests, compose files, workflows, configurations of launchers.

Taken are ``{name: X, value: Y}``, ``X: Y``, ``"X=Y"`` in lists, and shell lines in texts (``args``, ``run``). Nodes
are read and nothing is built from them, so that a hostile file cannot start anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from msgspec.structs import replace

from holdfast.facts.launch_files import shell
from holdfast.facts.launch_files.shell import Unreadable, of_interest
from holdfast.facts.variables import Given

_NAME = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")
_NULL = "tag:yaml.org,2002:null"
#: Only a file in which such a word stands is worth the parser's time.
_WORTH = re.compile(r"CCL|TORCH|GLOO|PET_|CUDA_|OMP_|MASTER_|UCX_|FI_|OFI_|WORLD_SIZE|NNODES|NPROC|NODE_RANK")


def read(text: str, origin: str) -> Iterator[Given]:
    """All documents of a YAML file. Raises Unreadable where it is none (a template, say)."""
    if not _WORTH.search(text):
        return
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise Unreadable(
            f"it is no YAML that can be read{where}: {getattr(error, 'problem', None) or 'too deep'}"
        ) from error
    seen: set[int] = set()
    for document in documents:
        yield from _node(document, origin, seen)


def read_json(text: str, origin: str) -> Iterator[Given]:
    """JSON is YAML but for its tabs; lines of objects are documents without marks, and are not read."""
    yield from read(text.replace("\t", " "), origin)


def _node(node: yaml.Node | None, origin: str, seen: set[int]) -> Iterator[Given]:
    """Depth first without recursion; a node that an alias names again is read once.

    What stands in one mapping or list is for one process, which is told by the line on which that begins.
    """
    left: list[tuple[yaml.Node | None, int]] = [(node, 0)]
    while left:
        here, above = left.pop()
        if here is None or id(here) in seen:
            continue
        seen.add(id(here))
        line = here.start_mark.line + 1
        if isinstance(here, yaml.MappingNode):
            yield from _mapping(here, origin, above)
            left += [(value, line) for _, value in reversed(here.value)]
        elif isinstance(here, yaml.SequenceNode):
            left += [(value, line) for value in reversed(here.value)]
        elif isinstance(here, yaml.ScalarNode):
            yield from _scalar(here, origin, above)


def _mapping(node: yaml.MappingNode, origin: str, above: int) -> Iterator[Given]:
    named: dict[str, yaml.ScalarNode] = {}
    for key, value in node.value:
        if isinstance(key, yaml.ScalarNode) and isinstance(value, yaml.ScalarNode) and value.tag != _NULL:
            named[key.value] = value
            if _NAME.fullmatch(key.value) and of_interest(key.value):
                yield _given(key.value, value.value, origin, key, node.start_mark.line + 1)
    name, value_node = named.get("name"), named.get("value")
    if name is not None and value_node is not None and _NAME.fullmatch(name.value) and of_interest(name.value):
        yield _given(name.value, value_node.value, origin, name, above)


def _scalar(node: yaml.ScalarNode, origin: str, above: int) -> Iterator[Given]:
    """A text of its own is a line of a shell, or several."""
    if "=" not in node.value:
        return
    block = node.style in ("|", ">")
    first = node.start_mark.line + (2 if block else 1)
    for given in shell.read(node.value, origin):
        below = [(each or 1) - 1 if node.style == "|" else 0 for each in (given.line, given.sender)]
        listed = "\n" not in node.value and not block
        scope = first if block else above
        sender = first + below[1] if given.sender else None
        yield replace(
            given, line=first + below[0], handed_on=given.handed_on or listed, of_command=scope, sender=sender
        )


def _given(name: str, value: str, origin: str, at: yaml.Node, scope: int) -> Given:
    unknown = re.search(r"\$[({]|\{\{", value) is not None
    return Given(
        name=name, value=None if unknown else value, origin=origin, line=at.start_mark.line + 1, of_command=scope
    )
