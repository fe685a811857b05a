"""Parses variables in YAML and JSON: manifests, compose files, workflows, configurations.

Recognized are ``{name: X, value: Y}``, ``X: Y``, ``"X=Y"`` in lists, and shell lines in texts
(``args``, ``run``). Only nodes are parsed and no objects constructed, so that a malicious file
cannot execute anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from msgspec.structs import replace

from holdfast.host.launch_files import shell
from holdfast.host.launch_files.shell import ShellUnreadable, is_of_interest
from holdfast.host.variable_sources import VariableSetting

_NAME = re.compile(r"[A-Z][A-Z0-9_]*[A-Z0-9]")
_NULL = "tag:yaml.org,2002:null"
#: Files without any of these words are not parsed, to save time.
_RELEVANT = re.compile(
    r"CCL|TORCH|GLOO|PET_|CUDA_|OMP_|MASTER_|UCX_|FI_|OFI_|WORLD_SIZE|NNODES|NPROC|NODE_RANK"
)


def read_yaml(text: str, origin: str) -> Iterator[VariableSetting]:
    """Yield the variables of all documents.

    Raises Unreadable if it is not valid YAML (such as a template).
    """
    if not _RELEVANT.search(text):
        return
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1})" if mark else ""
        raise ShellUnreadable(
            f"not valid YAML{where}: {getattr(error, 'problem', None) or 'nested too deeply'}"
        ) from error
    visited: set[int] = set()
    for document in documents:
        yield from _node(document, origin, visited)


def read_json(text: str, origin: str) -> Iterator[VariableSetting]:
    """Parse JSON as YAML without tabs; JSON Lines is not supported."""
    yield from read_yaml(text.replace("\t", " "), origin)


def _node(node: yaml.Node | None, origin: str, visited: set[int]) -> Iterator[VariableSetting]:
    """Traverse depth first without recursion; an aliased node is visited once.

    The variables of one mapping or list are for one process, identified by the line on which it
    begins.
    """
    pending: list[tuple[yaml.Node | None, int]] = [(node, 0)]
    while pending:
        current, parent_line = pending.pop()
        if current is None or id(current) in visited:
            continue
        visited.add(id(current))
        line = current.start_mark.line + 1
        if isinstance(current, yaml.MappingNode):
            yield from _mapping(current, origin, parent_line)
            pending += [(value, line) for _, value in reversed(current.value)]
        elif isinstance(current, yaml.SequenceNode):
            pending += [(value, line) for value in reversed(current.value)]
        elif isinstance(current, yaml.ScalarNode):
            yield from _scalar(current, origin, parent_line)


def _mapping(node: yaml.MappingNode, origin: str, parent_line: int) -> Iterator[VariableSetting]:
    named: dict[str, yaml.ScalarNode] = {}
    for key, value in node.value:
        if (
            isinstance(key, yaml.ScalarNode)
            and isinstance(value, yaml.ScalarNode)
            and value.tag != _NULL
        ):
            named[key.value] = value
            if _NAME.fullmatch(key.value) and is_of_interest(key.value):
                yield _setting(key.value, value.value, origin, key, node.start_mark.line + 1)
    name, value_node = named.get("name"), named.get("value")
    if (
        name is not None
        and value_node is not None
        and _NAME.fullmatch(name.value)
        and is_of_interest(name.value)
    ):
        yield _setting(name.value, value_node.value, origin, name, parent_line)


def _scalar(node: yaml.ScalarNode, origin: str, parent_line: int) -> Iterator[VariableSetting]:
    """Parse a scalar as one or several shell lines."""
    if "=" not in node.value:
        return
    block = node.style in ("|", ">")
    first = node.start_mark.line + (2 if block else 1)
    for setting in shell.read_shell(node.value, origin):
        offset, sender_offset = (
            (line or 1) - 1 if node.style == "|" else 0 for line in (setting.line, setting.sender)
        )
        is_list_item = "\n" not in node.value and not block
        yield replace(
            setting,
            line=first + offset,
            exported=setting.exported or is_list_item,
            command_line=first if block else parent_line,
            sender=first + sender_offset if setting.sender else None,
        )


def _setting(name: str, value: str, origin: str, at: yaml.Node, scope: int) -> VariableSetting:
    is_template = re.search(r"\$[({]|\{\{", value) is not None
    return VariableSetting(
        name=name,
        value=None if is_template else value,
        origin=origin,
        line=at.start_mark.line + 1,
        command_line=scope,
    )
