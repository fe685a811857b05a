"""What becomes of names: wrappers are taken off, then the user's own maps are applied, and collisions are refused.

Wrappers stand in names as they stand in modules: DistributedDataParallel and DeepSpeed's engine put ``module.`` in
front of all of them, torch.compile ``_orig_mod.``, FSDP1 and activation checkpointing theirs anywhere.
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

from holdfast.errors import BadValue, MissingFile
from holdfast.facts.checkpoints.contents import Contents, Group, Optimizer, Tensor

#: Components of a name that no module of a user has (torch: nn/parallel, distributed/fsdp, _dynamo/eval_frame.py).
WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_fpw_module", "_checkpoint_wrapped_module"})
#: What stands before every name under DistributedDataParallel, DataParallel and DeepSpeed's engine.
_OUTER = "module."
#: s/PATTERN/NEW/, with any of these between; none of them is in a name.
_REGULAR = re.compile(r"s([/|#,])(.+)\1(.*)\1", re.DOTALL)
_MOST_BYTES = 16 << 20
_Of = TypeVar("_Of")


class Rename(msgspec.Struct, frozen=True):
    """One map of the user's: ``text`` as it was written, and what it makes of a name."""

    text: str
    of: Callable[[str], str]


def parsed(text: str) -> tuple[Rename, ...]:
    """The maps of one ``--map``: OLD=NEW, s/PATTERN/NEW/, or @FILE with one of those a line or a JSON object.

    OLD is a tensor, or a module with all that is in it; an empty NEW takes it off, an empty OLD puts NEW in front.

    Raises:
        BadValue: it is none of these.
        MissingFile: FILE cannot be read.
    """
    return _of_file(Path(text[1:])) if text.startswith("@") else (_of_text(text),)


def ordered(file: Path) -> tuple[str, ...]:
    """The names in a file, one a line.

    Raises:
        MissingFile: it cannot be read.
        BadValue: it has none, or one of them twice.
    """
    found = tuple(line.strip() for line in _read(file, "--order").splitlines() if line.strip())
    twice = next((name for name, count in Counter(found).items() if count > 1), "")
    if not found or twice:
        raise BadValue("--order", why=f"{file} has {f'{twice!r} twice' if twice else 'no name'}")
    return found


def renamed(contents: Contents, maps: Sequence[Rename] = (), *, keep_wrappers: bool = False) -> Contents:
    """The contents under new names: wrappers off, unless they are to stay, then every map in order.

    Raises:
        BadValue: two tensors would have one name, a name would be empty, or a map fits no name.
    """
    known = (*contents.tensors, *contents.ties)
    bare = {name: name for name in _all(contents)} if keep_wrappers else _bare(_all(contents), known)
    names = _mapped(bare, maps)
    _refuse_collisions(contents, names)
    if all(old == new for old, new in names.items()):
        return contents
    return _replaced(contents, names)


def _bare(everything: Iterable[str], known: Sequence[str]) -> dict[str, str]:
    """Each name without wrappers; ``module.`` goes where all ``known`` begin with it, as often as they do."""
    found = {name: _inner(name) for name in everything}
    while known and all(found[name].startswith(_OUTER) and len(found[name]) > len(_OUTER) for name in known):
        found = {name: _inner(bare.removeprefix(_OUTER)) for name, bare in found.items()}
    return found


def _inner(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPERS) or name


def _mapped(names: Mapping[str, str], maps: Sequence[Rename]) -> dict[str, str]:
    found = dict(names)
    for each in maps:
        after = {old: each.of(new) for old, new in found.items()}
        if found and after == found:
            near = difflib.get_close_matches(each.text.partition("=")[0], list(found.values()), n=1, cutoff=0)
            raise BadValue("--map", why=f"{each.text!r} changes no name", next_step=f"names are such as {near[0]}")
        found = after
    return found


def _refuse_collisions(contents: Contents, names: Mapping[str, str]) -> None:
    optimizer = contents.optimizer
    for group in (contents.tensors, contents.halves, optimizer.tensors if optimizer else ()):
        seen: dict[str, str] = {}
        for old in group:
            new = names[old]
            if not all(new.split(".")):
                raise BadValue("--map", why=f"{old} would be called {new!r}", next_step="give it a whole name")
            if new in seen:
                raise _collision(seen[new], old, new)
            seen[new] = old
    taken = {names[old]: old for old in contents.tensors}
    for old, first in contents.ties.items():
        if taken.get(names[old], first) != first:
            raise _collision(taken[names[old]], old, names[old])


def _collision(one: str, two: str, name: str) -> BadValue:
    return BadValue(
        "--map", why=f"{one} and {two} would both be called {name}",
        next_step="map one of them to another name, or keep the wrappers (--keep-wrappers)",
    )  # fmt: skip


def _replaced(contents: Contents, names: Mapping[str, str]) -> Contents:
    def keys(found: Mapping[str, _Of]) -> dict[str, _Of]:
        return {names[name]: value for name, value in found.items()}

    def tensors(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {names[name]: replace(each, name=names[name]) for name, each in found.items()}

    ties = {names[name]: names[first] for name, first in contents.ties.items() if names[name] != names[first]}
    return replace(
        contents, tensors=tensors(contents.tensors), halves=tensors(contents.halves), ties=ties,
        frozen=frozenset(names[each] for each in contents.frozen),
        buffers=frozenset(names[each] for each in contents.buffers),
        optimizer=contents.optimizer and Optimizer(
            tensors=keys(contents.optimizer.tensors), numbers=keys(contents.optimizer.numbers),
            groups=tuple(
                Group(params=tuple(names[name] for name in each.params), options=each.options)
                for each in contents.optimizer.groups
            ),
        ),
    )  # fmt: skip


def _all(contents: Contents) -> tuple[str, ...]:
    """Every name that the contents have, in order."""
    found = [*contents.tensors, *contents.halves, *contents.ties, *contents.ties.values()]
    found += [*contents.frozen, *contents.buffers]
    if contents.optimizer is not None:
        found += [*contents.optimizer.tensors, *contents.optimizer.numbers]
        found += [name for group in contents.optimizer.groups for name in group.params]
    return tuple(dict.fromkeys(found))


def _of_text(text: str) -> Rename:
    regular = _REGULAR.fullmatch(text)
    if regular is not None:
        return _of_pattern(text, regular[2], regular[3])
    old, equals, new = text.partition("=")
    if not equals or (not old and not new):
        raise BadValue("--map", why=f"{text!r} is no map", next_step="write OLD=NEW, s/PATTERN/NEW/ or @FILE")
    return Rename(text, _of_prefix(old.rstrip("."), new.rstrip(".")))


def _of_prefix(old: str, new: str) -> Callable[[str], str]:
    def of(name: str) -> str:
        if not old:
            return f"{new}.{name}"
        if name == old:
            return new
        if not name.startswith(old + "."):
            return name
        return name[len(old) + 1 :] if not new else new + name[len(old) :]

    return of


def _of_pattern(text: str, pattern: str, new: str) -> Rename:
    try:
        compiled = re.compile(pattern)
        compiled.sub(new, "")
    except (re.error, IndexError, RecursionError) as error:
        raise BadValue("--map", why=f"{text!r} is no regular expression: {error}") from error
    return Rename(text, lambda name: compiled.sub(new, name))


def _read(path: Path, option: str) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise BadValue(option, why=f"{path} has more than {_MOST_BYTES >> 20} MiB")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise MissingFile(path, why=(error.strerror or str(error)).lower()) from error
    except UnicodeDecodeError as error:
        raise BadValue(option, why=f"{path} is not text in UTF-8") from error


def _of_file(path: Path) -> tuple[Rename, ...]:
    text = _read(path, "--map")
    if text.lstrip().startswith("{"):
        try:
            pairs = msgspec.json.decode(text, type=dict[str, str])
        except msgspec.DecodeError as error:
            raise BadValue("--map", why=f"{path} is no JSON object of names: {error}") from error
        return tuple(Rename(f"{old}={new}", _of_prefix(old.rstrip("."), new.rstrip("."))) for old, new in pairs.items())
    lines = (line.strip() for line in text.splitlines())
    return tuple(_of_text(line) for line in lines if line and not line.startswith("#"))
