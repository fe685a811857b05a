"""A function that runs: its variables, under which conditions, and what it has entered so far."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import msgspec

from holdfast.facts.code.effects import Body, Effect, Place
from holdfast.facts.code.modules import Function
from holdfast.facts.code.things import Scope
from holdfast.facts.code.values import Sources, Value, by_rank, merged


class Summary(msgspec.Struct, frozen=True):
    """What a function did in one context: what it gives, what it enters, and which parameters it changed in place."""

    value: Value
    body: Body
    mutated: dict[str, Value]


@dataclass(slots=True)
class Frame:
    """One run of a function; ``function`` is None at the top of a module.

    ``control`` are the reasons why not all ranks may be here, ``base`` those of the caller among them, ``near`` those
    that the caller itself adds, ``left`` those for which some have left the function. ``lazy`` are the attributes and
    variables that are made here because they are missing; ``plain`` says that a flag or a number is assigned.
    ``joined`` counts the ``with model.join()`` around, ``looped`` the loops, ``alone`` the
    tests around that only a process passes that is the only one. ``padded``: it makes up for rounds that others have
    more. ``effects`` are what was entered so far,
    ``mutated`` what was changed in place; ``returns`` are what it gives where it ends, and ``given`` that without what
    it is under. ``rounds`` are the variables of loops,
    ``rebound`` those that are given something else than the caller's.
    """

    function: Function | None
    scope: Scope
    control: Sources = ()
    base: Sources = ()
    near: Sources = ()
    left: Sources = ()
    lazy: tuple[str, ...] = ()
    plain: bool = False
    effects: list[Effect] = field(default_factory=list)
    returns: list[Value] = field(default_factory=list)
    given: list[Value] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    mutated: dict[str, Value] = field(default_factory=dict)
    joined: int = 0
    looped: int = 0
    alone: int = 0
    padded: bool = False
    ended: bool = False
    globals: set[str] = field(default_factory=set)
    rounds: set[str] = field(default_factory=set)
    rebound: set[str] = field(default_factory=set)

    @property
    def file(self) -> str:
        """The file that it is written in."""
        return self.scope.module.file

    def place(self, node: ast.AST) -> Place:
        """A line of this function."""
        name = self.function.name if self.function else "<module>"
        return Place(self.file, getattr(node, "lineno", 0), name)

    def apart(self, control: Sources = ()) -> _Apart:
        """Effects are gathered apart, under one more condition."""
        return _Apart(self, control)

    @property
    def own_control(self) -> Sources:
        """The reasons that this function itself adds."""
        return tuple(source for source in self.control if source not in self.base)

    def writing(self, name: str) -> Sources:
        """Why not all ranks may give this attribute or variable its value here.

        That a function further up is called by some alone says little of what it sets, and nothing of what is made
        where it is asked for first.
        """
        return () if name in self.lazy else merged(self.own_control, self.near)

    def parts(self, test: Sources) -> Sources:
        """Why a test parts those who are here: not by what the caller let only some through for, and parts all."""
        if not test or not (self.base or self.left) or not by_rank(test):
            return test
        passed = {(source.file, source.line) for source in (*self.base, *self.left)}
        return tuple(source for source in test if (source.file, source.line) not in passed)

    def note(self, effect: Effect) -> None:
        """Something was entered."""
        self.effects.append(effect)


class _Apart:
    """Gives the list of what is entered inside; a class, because it is opened more often than anything else."""

    __slots__ = ("_control", "_frame", "_kept")

    def __init__(self, frame: Frame, control: Sources) -> None:
        self._frame = frame
        self._control = control
        self._kept = frame.effects, frame.control, frame.ended

    def __enter__(self) -> list[Effect]:
        frame = self._frame
        frame.effects, frame.control, frame.ended = [], merged(frame.control, self._control), False
        return frame.effects

    def __exit__(self, *_: object) -> None:
        self._frame.effects, self._frame.control, self._frame.ended = self._kept
