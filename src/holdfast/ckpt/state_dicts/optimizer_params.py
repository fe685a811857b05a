"""Maps the numbered parameters of an optimizer to names.

``Optimizer.state_dict()`` numbers the parameters group by group without names (since torch 2.6 it
stores names if it was given named parameters). Each group lists its parameters in model order;
which of the model's parameters belong to it follows from the shapes of the states: an assignment of
model parameters to groups in which all shapes match. If several assignments match, only those that
take each module's own parameters completely are considered, because users freeze whole modules. If
that is still ambiguous, the mapping is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

import msgspec

Shape = tuple[int, ...]
Groups = Sequence[Sequence[Shape | None]]
Names = tuple[tuple[str, ...], ...]
#: Maximum search states, summed over all parameters.
_MAX_STATES = 400_000
_AMBIGUOUS = 2
#: Constraint on the rest of a module's parameters, when modules are taken completely.
_FREE, _TAKE, _SKIP = 0, 1, 2
_OUT = -1
#: Number of parameters assigned to each group, and the constraint on the rest of the module.
_StateKey = tuple[tuple[int, ...], int]


class ParameterMapping(msgspec.Struct, frozen=True):
    """The names of each group, or ``why`` not. ``assumed``: names assumed in no group."""

    groups: Names = ()
    why: str = ""
    assumed: tuple[str, ...] = ()


class MappingHints(msgspec.Struct, frozen=True):
    """User knowledge about a model whose optimizer numbers its parameters.

    ``frozen``: patterns of names that no optimizer has; ``order``: names in
    ``model.named_parameters()`` order, if the checkpoint has a different order.
    """

    frozen: tuple[str, ...] = ()
    order: tuple[str, ...] = ()

    def left(self, candidates: Sequence[tuple[str, Shape]]) -> list[tuple[str, Shape]]:
        """Return the candidates that may be in the optimizer, in model order."""
        trainable = [
            candidate
            for candidate in candidates
            if not any(fnmatchcase(candidate[0], pattern) for pattern in self.frozen)
        ]
        position = {name: at for at, name in enumerate(self.order)}
        return (
            sorted(
                (candidate for candidate in trainable if candidate[0] in position),
                key=lambda candidate: position[candidate[0]],
            )
            if position
            else trainable
        )


class _AmbiguousError(Exception):
    """There are several assignments, or too many to search."""


class _SearchState(msgspec.Struct):
    """How many ways reach this state (2: several), and the last step of the first way."""

    ways: int
    before: _StateKey | None
    group: int


def map_parameters(candidates: Sequence[tuple[str, Shape]], groups: Groups) -> ParameterMapping:
    """Map groups of shapes (None: unknown) to candidate names, which are in model order."""
    wanted = sum(map(len, groups))
    if wanted > len(candidates):
        return ParameterMapping(
            why=f"it has {wanted:,} parameters, but the model {len(candidates):,} trainable ones"
        )
    try:
        only = _search(candidates, groups, whole_modules=False)
    except _AmbiguousError:
        return _map_whole_modules(candidates, groups)
    if only is None:
        return ParameterMapping(
            why="the shapes of its states do not match the model's parameters in order"
        )
    return ParameterMapping(groups=only)


def map_unordered_parameters(
    candidates: Sequence[tuple[str, Shape]], groups: Groups
) -> ParameterMapping:
    """Map groups without knowing the model's order: every shape must be unique."""
    by_shape: dict[Shape | None, list[str]] = {}
    for name, shape in candidates:
        by_shape.setdefault(shape, []).append(name)
    wanted = [shape for group in groups for shape in group]
    if any(len(by_shape.get(shape, ())) != 1 for shape in wanted) or len(set(wanted)) < len(wanted):
        return ParameterMapping(
            why="the model file does not preserve parameter order, and the shapes are ambiguous"
        )
    return ParameterMapping(
        groups=tuple(tuple(by_shape[shape][0] for shape in group) for group in groups)
    )


def _map_whole_modules(candidates: Sequence[tuple[str, Shape]], groups: Groups) -> ParameterMapping:
    wanted = sum(map(len, groups))
    try:
        only = _search(candidates, groups, whole_modules=True)
    except _AmbiguousError:
        only = None
    if only is None:
        return ParameterMapping(
            why=f"it has {wanted:,} of {len(candidates):,} model parameters; shapes are ambiguous"
        )
    taken = {name for group in only for name in group}
    return ParameterMapping(
        groups=only, assumed=tuple(name for name, _ in candidates if name not in taken)
    )


def _search(
    candidates: Sequence[tuple[str, Shape]], groups: Groups, *, whole_modules: bool
) -> Names | None:
    """Return the only assignment, or None.

    ``whole_modules``: take all or none of a module's parameters.

    Raises:
        _AmbiguousError: there are several.
    """
    total = 0
    layers: list[dict[_StateKey, _SearchState]] = [
        {((0,) * len(groups), _FREE): _SearchState(1, None, _OUT)}
    ]
    for number, (name, shape) in enumerate(candidates):
        fresh = (
            not whole_modules
            or number == 0
            or _module_name(name) != _module_name(candidates[number - 1][0])
        )
        layer: dict[_StateKey, _SearchState] = {}
        for state, search_state in layers[-1].items():
            at, mode = state[0], _FREE if fresh else state[1]
            for further, group in _next_counts(
                at, mode, shape, groups, len(candidates) - number - 1
            ):
                then = _FREE if not whole_modules else _SKIP if group == _OUT else _TAKE
                known = layer.setdefault(
                    (further, then), _SearchState(search_state.ways, state, group)
                )
                if (known.before, known.group) != (state, group):
                    known.ways = _AMBIGUOUS
        total += len(layer)
        if total > _MAX_STATES:
            raise _AmbiguousError
        layers.append(layer)
    return _trace_back(candidates, layers, len(groups))


def _next_counts(
    at: tuple[int, ...], mode: int, shape: Shape, groups: Groups, left: int
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield where one more parameter of this shape can go, if ``left`` can fill the groups."""
    if mode != _TAKE and sum(map(len, groups)) - sum(at) <= left:
        yield at, _OUT
    if mode == _SKIP:
        return
    for group, shapes in enumerate(groups):
        if at[group] < len(shapes) and shapes[at[group]] in (None, shape):
            yield (*at[:group], at[group] + 1, *at[group + 1 :]), group


def _trace_back(
    candidates: Sequence[tuple[str, Shape]],
    layers: Sequence[dict[_StateKey, _SearchState]],
    groups: int,
) -> Names | None:
    """Return the names by group, from the last parameter back. Raises _AmbiguousError."""
    ends = list(layers[-1])
    if not ends:
        return None
    if len(ends) > 1 or layers[-1][ends[0]].ways > 1:
        raise _AmbiguousError
    names_by_group: list[list[str]] = [[] for _ in range(groups)]
    state = ends[0]
    for number in range(len(candidates) - 1, -1, -1):
        search_state = layers[number + 1][state]
        if search_state.group != _OUT:
            names_by_group[search_state.group].append(candidates[number][0])
        if search_state.before is not None:
            state = search_state.before
    return tuple(tuple(reversed(names)) for names in names_by_group)


def _module_name(name: str) -> str:
    return name.rpartition(".")[0]
