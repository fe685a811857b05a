"""Renames tensors: removes wrappers, applies the user's maps, refuses collisions.

Wrappers appear in names as in modules: DistributedDataParallel and DeepSpeed's engine prefix all
names with ``module.``, torch.compile with ``_orig_mod.``; FSDP1 and activation checkpointing add
components anywhere.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.ckpt.contents import CheckpointContents, OptimizerState, ParamGroup, Tensor
from holdfast.core.errors import InvalidValue, MissingFile
from holdfast.core.text import os_error_reason

#: Components added by wrappers (torch: nn/parallel, distributed/fsdp, _dynamo/eval_frame.py).
WRAPPERS = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module"}
)
#: Prefix of every name under DistributedDataParallel, DataParallel and DeepSpeed's engine.
_OUTER = "module."
#: s/PATTERN/NEW/ with one of these delimiters, none of which occurs in a name.
_REGEX_MAP = re.compile(r"s([/|#,])(.+)\1(.*)\1", re.DOTALL)
_MAX_BYTES = 16 << 20
_Value = TypeVar("_Value")


class NameMap(msgspec.Struct, frozen=True):
    """One name map of the user: its ``text`` and function."""

    text: str
    rename: Callable[[str], str]


def parse_name_maps(text: str) -> tuple[NameMap, ...]:
    """Parse one ``--map``: OLD=NEW, s/PATTERN/NEW/, or @FILE with one map per line or JSON.

    OLD is a tensor or a module; an empty NEW removes the prefix, an empty OLD adds NEW as a prefix.

    Raises:
        InvalidValue: it is not a valid map.
        MissingFile: FILE cannot be read.
    """
    return _read_map_file(Path(text[1:])) if text.startswith("@") else (_parse_map(text),)


def read_parameter_order(file: Path) -> tuple[str, ...]:
    """Return the names in a file, one per line.

    Raises:
        MissingFile: it cannot be read.
        InvalidValue: it is empty, or contains a name twice.
    """
    names = tuple(line.strip() for line in _read_text(file, "--order").splitlines() if line.strip())
    duplicate = next((name for name, count in Counter(names).items() if count > 1), "")
    if not names or duplicate:
        raise InvalidValue(
            "--order", why=f"{file} contains {f'{duplicate!r} twice' if duplicate else 'no names'}"
        )
    return names


def rename_contents(
    contents: CheckpointContents, maps: Sequence[NameMap] = (), *, keep_wrappers: bool = False
) -> CheckpointContents:
    """Return the contents with wrappers removed (by default) and every map applied in order.

    Raises:
        InvalidValue: names collide or become empty, or a map matches nothing.
    """
    known = (*contents.tensors, *contents.ties)
    stripped = (
        {name: name for name in _all_names(contents)}
        if keep_wrappers
        else _strip_wrappers(_all_names(contents), known)
    )
    names = _apply_maps(stripped, maps)
    _refuse_collisions(contents, names)
    if all(old == new for old, new in names.items()):
        return contents
    return _replace_names(contents, names)


def _strip_wrappers(all_names: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Return names without wrappers; ``module.`` is removed if all ``known`` start with it."""
    renamed = {name: _strip_components(name) for name in all_names}
    while known and all(
        renamed[name].startswith(_OUTER) and len(renamed[name]) > len(_OUTER) for name in known
    ):
        renamed = {
            name: _strip_components(stripped.removeprefix(_OUTER))
            for name, stripped in renamed.items()
        }
    return renamed


def _strip_components(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) or name


def _apply_maps(names: Mapping[str, str], maps: Sequence[NameMap]) -> dict[str, str]:
    renamed = dict(names)
    for name_map in maps:
        after = {old: name_map.rename(new) for old, new in renamed.items()}
        if renamed and after == renamed:
            near = difflib.get_close_matches(
                name_map.text.partition("=")[0], list(renamed.values()), n=1, cutoff=0
            )
            raise InvalidValue(
                "--map",
                why=f"{name_map.text!r} matches no name",
                next_step=f"the closest name is {near[0]}",
            )
        renamed = after
    return renamed


def _refuse_collisions(contents: CheckpointContents, names: Mapping[str, str]) -> None:
    optimizer = contents.optimizer
    for names_in_section in (
        contents.tensors,
        contents.halves,
        optimizer.tensors if optimizer else (),
    ):
        old_by_new: dict[str, str] = {}
        for old in names_in_section:
            new = names[old]
            if not all(new.split(".")):
                raise InvalidValue(
                    "--map", why=f"{old} would be named {new!r}", next_step="use a complete name"
                )
            if new in old_by_new:
                raise _collision(old_by_new[new], old, new)
            old_by_new[new] = old
    old_by_new_name = {names[old]: old for old in contents.tensors}
    for old, first in contents.ties.items():
        if old_by_new_name.get(names[old], first) != first:
            raise _collision(old_by_new_name[names[old]], old, names[old])


def _collision(first: str, second: str, name: str) -> InvalidValue:
    return InvalidValue(
        "--map",
        why=f"{first} and {second} would both be named {name}",
        next_step="map one of them to another name, or use --keep-wrappers",
    )


def _replace_names(contents: CheckpointContents, names: Mapping[str, str]) -> CheckpointContents:
    def keys(values: Mapping[str, _Value]) -> dict[str, _Value]:
        return {names[name]: value for name, value in values.items()}

    def tensors(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {names[name]: replace(item, name=names[name]) for name, item in values.items()}

    ties = {
        names[name]: names[first]
        for name, first in contents.ties.items()
        if names[name] != names[first]
    }
    return replace(
        contents,
        tensors=tensors(contents.tensors),
        halves=tensors(contents.halves),
        ties=ties,
        frozen=frozenset(names[item] for item in contents.frozen),
        buffers=frozenset(names[item] for item in contents.buffers),
        optimizer=contents.optimizer
        and OptimizerState(
            tensors=keys(contents.optimizer.tensors),
            numbers=keys(contents.optimizer.numbers),
            groups=tuple(
                ParamGroup(params=tuple(names[name] for name in item.params), options=item.options)
                for item in contents.optimizer.groups
            ),
        ),
    )


def _all_names(contents: CheckpointContents) -> tuple[str, ...]:
    """Return every name in the contents, in order."""
    all_names = [*contents.tensors, *contents.halves, *contents.ties, *contents.ties.values()]
    all_names += [*contents.frozen, *contents.buffers]
    if contents.optimizer is not None:
        all_names += [*contents.optimizer.tensors, *contents.optimizer.numbers]
        all_names += [name for group in contents.optimizer.groups for name in group.params]
    return tuple(dict.fromkeys(all_names))


def _parse_map(text: str) -> NameMap:
    regular = _REGEX_MAP.fullmatch(text)
    if regular is not None:
        return _regex_map(text, regular[2], regular[3])
    old, equals, new = text.partition("=")
    if not equals or (not old and not new):
        raise InvalidValue(
            "--map", why=f"{text!r} is not a map", next_step="use OLD=NEW, s/PATTERN/NEW/ or @FILE"
        )
    return NameMap(text, _prefix_map(old.rstrip("."), new.rstrip(".")))


def _prefix_map(old: str, new: str) -> Callable[[str], str]:
    def rename(name: str) -> str:
        if not old:
            return f"{new}.{name}"
        if name == old:
            return new
        if not name.startswith(old + "."):
            return name
        return name[len(old) + 1 :] if not new else new + name[len(old) :]

    return rename


def _regex_map(text: str, pattern: str, new: str) -> NameMap:
    try:
        compiled = re.compile(pattern)
        compiled.sub(new, "")
    except (re.error, IndexError, RecursionError) as error:
        raise InvalidValue("--map", why=f"invalid regular expression {text!r}: {error}") from error
    return NameMap(text, lambda name: compiled.sub(new, name))


def _read_text(path: Path, option: str) -> str:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise InvalidValue(option, why=f"{path} is larger than {_MAX_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingFile(path, why=os_error_reason(error)) from error
    except UnicodeDecodeError as error:
        raise InvalidValue(option, why=f"{path} is not UTF-8 text") from error


def _read_map_file(path: Path) -> tuple[NameMap, ...]:
    text = _read_text(path, "--map")
    if text.lstrip().startswith("{"):
        try:
            pairs = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise InvalidValue(
                "--map", why=f"{path} is not a JSON object of names: {error}"
            ) from error
        return tuple(
            NameMap(f"{old}={new}", _prefix_map(old.rstrip("."), new.rstrip(".")))
            for old, new in pairs.items()
        )
    lines = (line.strip() for line in text.splitlines())
    return tuple(_parse_map(line) for line in lines if line and not line.startswith("#"))
