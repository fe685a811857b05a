"""One execution of a function: variables, control taint, and effects so far."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

import msgspec

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.effects import Effect, EffectSummary
from holdfast.lint.abstract_domain.values import (
    HEAP,
    NO_FACTS,
    Taint,
    Value,
    is_rank_only,
    join_values,
    merge_taint,
)
from holdfast.lint.abstract_state.abstract_objects import VariableScope
from holdfast.lint.sources.modules import Function, Module


class FunctionSummary(msgspec.Struct, frozen=True):
    """The result of a function in one context: value, effects, and parameters mutated in place.

    ``facts`` hold at its end, ``entered`` in the block of a context manager.
    """

    value: Value
    effects: EffectSummary
    mutated: dict[str, Value]
    facts: Value = NO_FACTS
    entered: Value | None = None


@dataclass(slots=True)
class Frame:
    """One execution of a function; ``function`` is None at module level.

    control: taint of the conditions under which ranks get here
    caller_control, caller_own_control: the part of it from the caller, and what the caller adds
    exited: taint of conditions under which some ranks left the block or the function
    skipped: the part of it under which ranks left only the round of a loop, or the loop
    lazily_created: attributes and variables that are created here because they are missing
    assigns_simple: the assigned value is a flag or number
    effects, mutated: effects so far, and values mutated in place
    returns, returned_values: returned values with and without control taint
    join_depth, loop_depth, try_depth: nesting of ``with model.join()``, loops and ``try`` blocks
    single_process_depth: nesting of tests that only a single process passes
    pads_rounds: it adds iterations to match other ranks
    assigned_under: why not all ranks assign a local variable, where it was assigned last
    exit_facts, yield_facts: facts where it returns, and where a context manager yields
    entered_facts: facts in the block of the context manager that was called last
    loop_variables, rebound: names of loop variables, and of parameters that were reassigned
    loop_order: why the order of the loops around differs between ranks
    element_names: names of variables that hold an element of what a loop iterates over
    elements: loop variable -> the list or dict of which it is an element itself
    in_tried_loop: it was called in a ``try`` block in a loop, so that its failure may be survived
    used_names: names that may be those of facts or in ``lazily_created``, and that were used here
    """

    function: Function | None
    scope: VariableScope
    control: Taint = ()
    caller_control: Taint = ()
    caller_own_control: Taint = ()
    exited: Taint = ()
    skipped: Taint = ()
    lazily_created: tuple[str, ...] = ()
    assigns_simple: bool = False
    effects: list[Effect] = field(default_factory=list)
    returns: list[Value] = field(default_factory=list)
    returned_values: list[Value] = field(default_factory=list)
    yields: list[Value] = field(default_factory=list)
    mutated: dict[str, Value] = field(default_factory=dict)
    join_depth: int = 0
    loop_depth: int = 0
    try_depth: int = 0
    single_process_depth: int = 0
    pads_rounds: bool = False
    ended: bool = False
    exit_facts: list[Value] = field(default_factory=list)
    yield_facts: Value | None = None
    entered_facts: Value | None = None
    globals: set[str] = field(default_factory=set)
    loop_variables: set[str] = field(default_factory=set)
    rebound: set[str] = field(default_factory=set)
    element_names: set[str] = field(default_factory=set)
    elements: dict[str, ast.expr] = field(default_factory=dict)
    assigned_under: dict[str, Taint] = field(default_factory=dict)
    loop_order: Taint = ()
    in_tried_loop: bool = False
    used_names: set[str] = field(default_factory=set)

    @property
    def may_survive(self) -> bool:
        """Return True in a ``try`` block in a loop, of this function or of a caller."""
        return self.in_tried_loop or bool(self.try_depth and self.loop_depth)

    @property
    def file(self) -> str:
        """Return the file of the code."""
        return self.scope.module.file

    @property
    def tree(self) -> ast.AST:
        """Return the syntax tree of the function, or of the module at its level."""
        return self.function.node if self.function is not None else self.scope.module.tree

    def location(self, node: ast.AST) -> SourceLine:
        """Return the source line of a node in this function."""
        name = self.function.name if self.function else "<module>"
        return SourceLine(self.file, getattr(node, "lineno", 0), name)

    def collect_effects(self, control: Taint = ()) -> _EffectCollector:
        """Collect effects separately, under an additional condition."""
        return _EffectCollector(self, control)

    @property
    def own_control(self) -> Taint:
        """Return the control taint that this function itself adds."""
        return tuple(source for source in self.control if source not in self.caller_control)

    def write_control(self, name: str, *, simple: bool = False) -> Taint:
        """Return why not all ranks may assign this attribute or variable here.

        Conditions of lazily created names are ignored, and those of callers further up unless they
        are tests of the rank around the assignment of a ``simple`` value, a flag or number.
        """
        self.used_names.add(name)
        if name in self.lazily_created:
            return ()
        if simple and is_rank_only(self.control):
            return self.control
        return merge_taint(self.own_control, self.caller_own_control)

    def divergent_sources(self, test: Taint) -> Taint:
        """Return the sources of a test that can still separate the ranks that get here."""
        if not test or not (self.caller_control or self.exited) or not is_rank_only(test):
            return test
        passed = {(source.file, source.line) for source in (*self.caller_control, *self.exited)}
        return tuple(source for source in test if (source.file, source.line) not in passed)

    @property
    def facts(self) -> Value:
        """Return the facts that hold here."""
        return self.scope.names.get(HEAP, NO_FACTS)

    @property
    def final_facts(self) -> Value:
        """Return the facts that hold where the function ends."""
        ends = self.exit_facts if self.ended and self.exit_facts else [*self.exit_facts, self.facts]
        return ends[0] if all(end is ends[0] for end in ends) else join_values(ends)

    def add_effect(self, effect: Effect) -> None:
        """Append an effect."""
        self.effects.append(effect)


def module_frame(module: Module) -> Frame:
    """Return a frame at the level of a module."""
    return Frame(None, VariableScope(module.variables, module))


class _EffectCollector:
    """Context manager of :meth:`Frame.collect_effects`; a class, as it is entered very often."""

    __slots__ = ("_control", "_frame", "_saved")

    def __init__(self, frame: Frame, control: Taint) -> None:
        self._frame = frame
        self._control = control
        self._saved = frame.effects, frame.control, frame.ended

    def __enter__(self) -> list[Effect]:
        frame = self._frame
        frame.effects, frame.control, frame.ended = (
            [],
            merge_taint(frame.control, self._control),
            False,
        )
        return frame.effects

    def __exit__(self, *_: object) -> None:
        self._frame.effects, self._frame.control, self._frame.ended = self._saved
