"""Find files that ranks access at the same time: no collective is between the accesses."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.effects import (
    FILE_ACCESSES,
    TURN_BEGINS,
    Branch,
    Effect,
    EffectSummary,
    FileAccess,
    FunctionCall,
    LoopEffect,
    Marker,
    Operation,
    Try,
    final_exit,
)
from holdfast.lint.abstract_domain.values import RANK_KINDS, TaintKind, taint_kinds
from holdfast.lint.abstract_state.path_names import (
    RANK_PART,
    UNKNOWN_PART,
    comparable_path,
    is_inside,
    is_same_path,
    substitute,
)
from holdfast.lint.divergence.file_accesses import ONE_RANK_WORDS

#: Maximum number of effects to walk in one program or function.
_MAX_EFFECTS = 20_000
#: Maximum number of accesses since the last collective to compare with.
_MAX_ACCESSES = 50
_READS = frozenset({"reads", "tests", "lists"})
_WALKED = FILE_ACCESSES | {"init", "parallel"}
_PATH_NAME = re.compile(r"path|file|ckpt|checkpoint|fname|dir|folder|out", re.IGNORECASE)
#: The line of an unknown path, which distinguishes it from others.
_LINE = re.compile(r"(?<=\w):\d+(?=/|$)")
#: A path with an unknown part, of a temporary folder, or whose last part is a parameter.
_OPEN_PART = re.compile(rf"\?|{UNKNOWN_PART}|te?mp|/«\w+»$")
#: A part that counts what all ranks do together, such as steps.
_COUNTED_PART = re.compile(r"\?\w*(?:step|epoch|iter\w*|round|version):\d+")
#: Operations of which a program with one rank has no use.
_OF_RANKS = frozenset({"init", "creation", "forward", "backward"})
#: What only one rank can do, or should do.
_ALONE = {"removes": "removed", "makes": "created", "writes": "written"}
_FILES = frozenset({TaintKind.FILES})


def find_file_orders(body: EffectSummary, script: str = "") -> list[Divergence]:
    """Return the accesses of a program, or of a function that nothing calls, that race.

    ``script`` is the file of a program: a collective in a file that it imports does not show that
    it runs with several ranks, as libraries test for that.
    """
    if not body.tags & FILE_ACCESSES:
        return []
    walker = _OrderWalker(script)
    walker.walk(body.path, {})
    return walker.divergences


class _OrderWalker:
    """Walks a path with the accesses since the last collective: by one rank, and by all."""

    def __init__(self, script: str) -> None:
        self.divergences: list[Divergence] = []
        self._script = script
        self._one: list[FileAccess] = []
        self._all: list[FileAccess] = []
        self._clocked: list[FileAccess] = []
        self._parallel = False
        self._doubtful = 0
        self._by_rank = 0
        self._collectives = 0
        self._remaining = _MAX_EFFECTS

    def walk(self, path: Sequence[Effect], passed: Mapping[str, str]) -> None:
        """Walk a path in which parameters are the ``passed`` paths."""
        self._by_rank += any(map(_asserts_rank, path))  # other ranks are not meant to get here
        for effect in path:
            self._remaining -= 1
            if self._remaining < 0:
                return
            match effect:
                case FileAccess():
                    self._access(effect, substitute(effect.detail, passed))
                case Operation() | Marker(name="init" | "parallel"):
                    self._parallel = self._parallel or self._shows_ranks(effect)
                    self._collectives += 1
                    self._one, self._all = [], []
                case Marker(name="turn begins" | "turn ends" as name):
                    self._doubtful += 1 if name == TURN_BEGINS else -1
                case FunctionCall():
                    self._call(effect, passed)
                case Branch():
                    self._branch(effect, passed)
                case LoopEffect(body=first, orelse=second):
                    doubtful, by_rank = self._doubtful, self._by_rank
                    self.walk(first, passed)
                    self._doubtful, self._by_rank = doubtful, by_rank
                    self.walk(second, passed)
                case Try(body=first, final_body=second):
                    self.walk(first, passed)
                    self.walk(second, passed)
                case _:
                    pass

    def _shows_ranks(self, effect: Operation | Marker) -> bool:
        """Return True if the program runs with several ranks: it does more than offer to."""
        return (
            not self._script
            or not isinstance(effect, Operation)
            or effect.kind in _OF_RANKS
            or effect.location.file == self._script
        )

    def _call(self, call: FunctionCall, passed: Mapping[str, str]) -> None:
        if call.callee.sequence or call.callee.tags & _WALKED:
            inner = {name: substitute(text, passed) for name, text in call.paths}
            doubtful, by_rank = self._doubtful, self._by_rank
            self.walk(call.callee.path, inner)
            self._doubtful, self._by_rank = doubtful, by_rank

    def _branch(self, branch: Branch, passed: Mapping[str, str]) -> None:
        """Walk both sides; if one of them waits, so do the accesses that follow."""
        doubtful = not branch.taint and ONE_RANK_WORDS.search(branch.text) is not None
        by_rank = bool(taint_kinds(branch.taint) & RANK_KINDS)
        self._doubtful += doubtful
        self._by_rank += by_rank
        before, count = (self._one, self._all), self._collectives
        self.walk(branch.yes, passed)
        yes, yes_count = (self._one, self._all), self._collectives
        self._one, self._all = before
        self._collectives = count
        self.walk(branch.no, passed)
        if yes_count > count and self._collectives == count:
            self._one, self._all = yes
        elif yes_count == count and self._collectives == count:
            self._one, self._all = _merged(yes[0], self._one), _merged(yes[1], self._all)
        self._collectives = max(yes_count, self._collectives)
        leaves = (final_exit(branch.yes) is None) != (final_exit(branch.no) is None)
        if not leaves:  # else what follows in the function or loop is of the other ranks
            self._doubtful -= doubtful
            self._by_rank -= by_rank

    def _access(self, access: FileAccess, path: str) -> None:
        is_open = _is_open(path)
        access = replace(access, detail=comparable_path(path), own=access.own or RANK_PART in path)
        kinds = taint_kinds(access.control)
        if kinds & RANK_KINDS or self._by_rank:
            self._by_one(access)
        elif kinds <= _FILES and not self._doubtful:
            self._by_all(access)
            removes = access.name == "removes" and not _is_open(_COUNTED_PART.sub("*", path))
            if self._parallel and not (access.own or access.tolerant or (is_open and not removes)):
                kind = _ALONE.get(access.name)
                if kind is not None:
                    self._report(kind, access, access, access.detail)

    def _by_one(self, access: FileAccess) -> None:
        if access.clocked and access.name in ("makes", "writes"):
            self._clocked.append(access)
        for other in self._all:
            if access.name == "removes":
                if (
                    not access.own
                    and other.name != "tests"
                    and _touches(access.detail, other.detail)
                ):
                    self._report("folder", access, other, access.detail)
                    break
            elif (
                access.name in ("reads", "lists")
                and other.name == "writes"
                and (other.own or "*" in other.detail)
                and not access.own
                and (
                    is_same_path(access.detail, other.detail)
                    or (access.name == "lists" and is_inside(access.detail, other.detail))
                )
            ):
                self._report("merged", access, other, other.detail)
                break
        if access.name not in _READS:  # a later access sees the change
            self._one = [*self._one[-_MAX_ACCESSES:], access]

    def _by_all(self, access: FileAccess) -> None:
        for other in self._clocked if access.clocked else ():
            made = other.name == "makes" and access.name == "writes"
            read = other.name == "writes" and access.name in ("reads", "lists")
            if (made and is_inside(other.detail, access.detail)) or (
                read and _touches(*sorted((other.detail, access.detail), key=len))
            ):
                self._report("clocked", access, other, other.detail)
                break
        for other in self._one:
            changed = _change(other, access)
            if changed:
                self._report(changed, access, other, other.detail)
                break
        for other in self._all:
            if (
                access.name == "reads"
                and other.name == "writes"
                and other.own
                and not access.own
                and "*" in access.detail
                and is_same_path(access.detail, other.detail)
            ):
                self._report("merged", access, other, other.detail)
                break
        self._all = [*self._all[-_MAX_ACCESSES:], access]

    def _report(self, kind: str, access: FileAccess, other: FileAccess, path: str) -> None:
        text = readable_path(path)
        if kind == "file":
            text = f"{text} is {'removed' if other.name == 'removes' else 'written'}"
        self.divergences.append(Divergence(kind, access.location, other.location, text, ()))


def _asserts_rank(effect: Effect) -> bool:
    return (
        isinstance(effect, Branch)
        and effect.text.startswith("assert ")
        and bool(taint_kinds(effect.taint) & RANK_KINDS)
    )


def _merged(one: list[FileAccess], other: list[FileAccess]) -> list[FileAccess]:
    known = set(map(id, other))
    return [*other, *(access for access in one if id(access) not in known)]


def _change(other: FileAccess, access: FileAccess) -> str:
    """Return the kind of race of all ranks' access with one rank's; empty without one."""
    if other.own or access.name == "removes":
        return ""
    if access.name in ("writes", "makes"):
        prepared = other.name in ("makes", "removes") and (
            is_inside(other.detail, access.detail)
            or (other.name == "removes" and is_same_path(other.detail, access.detail))
        )
        return "unready" if prepared and not (access.name == "makes" and access.tolerant) else ""
    if access.own or other.name == "makes":
        return ""
    if access.name == "lists":
        return "file" if is_inside(access.detail, other.detail) else ""
    return "file" if is_same_path(other.detail, access.detail) else ""


def _is_open(path: str) -> bool:
    """Return True for a path that was passed whole, may be rank-specific, or is no path."""
    return bool(_OPEN_PART.search(path)) or (
        "/" not in path
        and (path.endswith("»") or (path.startswith("°") and not _PATH_NAME.search(path)))
    )


def _touches(removed: str, used: str) -> bool:
    return is_same_path(removed, used) or is_inside(removed, used)


def readable_path(text: str) -> str:
    """Return a path's text for a message."""
    return _LINE.sub("", text).translate(str.maketrans("", "", "«»°?"))
