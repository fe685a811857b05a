"""Which parameters the numbers of an optimizer stand for.

``Optimizer.state_dict()`` of torch counts the parameters, group by group, and names none (since torch 2.6 it does where
it was given named ones). Each group's are in the model's order, as everybody makes groups; which of the model's
parameters are in it is found from the shapes of the states: a way to deal the model's parameters out to the groups
such that all shapes fit. Where there are several ways, those are looked at that take each module's own parameters
whole: people freeze modules. Where there are several of these, the answer is that it is not known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

Shape = tuple[int, ...]
Groups = Sequence[Sequence[Shape | None]]
Names = tuple[tuple[str, ...], ...]
#: Ways that are followed at the same time, summed over all parameters.
_MOST_WAYS = 400_000
_SEVERAL = 2
#: What the rest of a module's own parameters must do, where modules are taken whole.
_FREE, _TAKE, _SKIP = 0, 1, 2
_OUT = -1
#: How many parameters of each group are dealt out, and what the rest of the module must do.
_State = tuple[tuple[int, ...], int]


class Dealt(msgspec.Struct, frozen=True):
    """The names of each group; or none, and ``why``. ``assumed`` are names taken to be in no group, without proof."""

    groups: Names = ()
    why: str = ""
    assumed: tuple[str, ...] = ()


class Hints(msgspec.Struct, frozen=True):
    """What the user knows of a model whose optimizer counts its parameters.

    ``frozen`` are patterns of names that no optimizer has; ``order`` the names as ``model.named_parameters()`` gives
    them, where the checkpoint has another order.
    """

    frozen: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    def left(self, candidates: Sequence[tuple[str, Shape]]) -> list[tuple[str, Shape]]:
        """Those that may be in the optimizer, in the model's order."""
        kept = [each for each in candidates if not any(fnmatchcase(each[0], pattern) for pattern in self.frozen)]
        places = {name: at for at, name in enumerate(self.order)}
        return (
            sorted((each for each in kept if each[0] in places), key=lambda each: places[each[0]]) if places else kept
        )


class _Several(Exception):
    """There are several ways, or too many to follow."""


class _Way(msgspec.Struct):
    """One state of the search: in how many ways it was reached (2: several), and the last step of the first one."""

    ways: int
    before: _State | None
    group: int


def deal(candidates: Sequence[tuple[str, Shape]], groups: Groups) -> Dealt:
    """The names of each group, whose shapes are given by number (None: not known); candidates are in model order."""
    wanted = sum(map(len, groups))
    if wanted > len(candidates):
        return Dealt(why=f"it has {wanted:,} parameters, and the model {len(candidates):,} that may be trained")
    try:
        only = _search(candidates, groups, whole=False)
    except _Several:
        return _deal_modules(candidates, groups)
    if only is None:
        return Dealt(why="the shapes of its states do not fit the model's parameters in their order")
    return Dealt(groups=only)


def deal_unordered(candidates: Sequence[tuple[str, Shape]], groups: Groups) -> Dealt:
    """The same where the model's order is not known: each shape must be that of one parameter alone."""
    by_shape: dict[Shape | None, list[str]] = {}
    for name, shape in candidates:
        by_shape.setdefault(shape, []).append(name)
    wanted = [shape for group in groups for shape in group]
    if any(len(by_shape.get(shape, ())) != 1 for shape in wanted) or len(set(wanted)) < len(wanted):
        return Dealt(why="the file of the model does not keep the parameters' order, and shapes do not tell them apart")
    return Dealt(groups=tuple(tuple(by_shape[shape][0] for shape in group) for group in groups))


def _deal_modules(candidates: Sequence[tuple[str, Shape]], groups: Groups) -> Dealt:
    wanted = sum(map(len, groups))
    try:
        only = _search(candidates, groups, whole=True)
    except _Several:
        only = None
    if only is None:
        return Dealt(why=f"it has {wanted:,} of the model's {len(candidates):,}, and their shapes do not tell which")
    taken = {name for group in only for name in group}
    return Dealt(groups=only, assumed=tuple(name for name, _ in candidates if name not in taken))


def _search(candidates: Sequence[tuple[str, Shape]], groups: Groups, *, whole: bool) -> Names | None:
    """The only way; None: there is none. ``whole``: each module's own parameters are all taken or none is."""
    total = 0
    layers: list[dict[_State, _Way]] = [{((0,) * len(groups), _FREE): _Way(1, None, _OUT)}]
    for number, (name, shape) in enumerate(candidates):
        fresh = not whole or number == 0 or _module(name) != _module(candidates[number - 1][0])
        layer: dict[_State, _Way] = {}
        for state, way in layers[-1].items():
            at, mode = state[0], _FREE if fresh else state[1]
            for further, group in _steps(at, mode, shape, groups, len(candidates) - number - 1):
                then = _FREE if not whole else _SKIP if group == _OUT else _TAKE
                known = layer.setdefault((further, then), _Way(way.ways, state, group))
                if (known.before, known.group) != (state, group):
                    known.ways = _SEVERAL
        total += len(layer)
        if total > _MOST_WAYS:
            raise _Several
        layers.append(layer)
    return _followed(candidates, layers, len(groups))


def _steps(
    at: tuple[int, ...], mode: int, shape: Shape, groups: Groups, left: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Where one more parameter of this shape can go, so that those that are ``left`` can fill the groups."""
    if mode != _TAKE and sum(map(len, groups)) - sum(at) <= left:
        yield at, _OUT
    if mode == _SKIP:
        return
    for group, shapes in enumerate(groups):
        if at[group] < len(shapes) and shapes[at[group]] in (None, shape):
            yield (*at[:group], at[group] + 1, *at[group + 1 :]), group


def _followed(
    candidates: Sequence[tuple[str, Shape]], layers: Sequence[dict[_State, _Way]], groups: int
) -> Names | None:
    """The names by group, from the last parameter back to the first. Raises _Several."""
    ends = list(layers[-1])
    if not ends:
        return None
    if len(ends) > 1 or layers[-1][ends[0]].ways > 1:
        raise _Several
    found: list[list[str]] = [[] for _ in range(groups)]
    state = ends[0]
    for number in range(len(candidates) - 1, -1, -1):
        way = layers[number + 1][state]
        if way.group != _OUT:
            found[way.group].append(candidates[number][0])
        if way.before is not None:
            state = way.before
    return tuple(tuple(reversed(names)) for names in found)


def _module(name: str) -> str:
    return name.rpartition(".")[0]
