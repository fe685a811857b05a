"""Literals and comprehensions: lists, dicts, sets and formatted strings."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.lint.abstract_domain.effects import LoopEffect
from holdfast.lint.abstract_domain.truth import as_test
from holdfast.lint.abstract_domain.values import (
    NONE_OBJECT,
    UNIFORM,
    UNKNOWN_OBJECT,
    DictEntries,
    Taint,
    TaintKind,
    Value,
    combine_values,
    constant_value,
    dict_of,
    join_values,
    merge_content,
    merge_length,
    merge_taint,
    set_order,
)
from holdfast.lint.abstract_state.abstract_objects import (
    ALL_RANKS,
    MASK,
    RANK_SHARE,
    RANK_TEXT,
    WORLD_SIZE,
    GroupNumber,
    OnePerRank,
    TupleElements,
    as_text,
    dict_entries,
    mark_contained,
)
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.process_stamps import (
    stamps_of,
)
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.misused_values import record_device_name
from holdfast.lint.divergence.orders import record_filtered_share, record_unordered_numbers
from holdfast.lint.interpreter.assignments import assign, assign_round
from holdfast.lint.interpreter.branch_merge import restore_names
from holdfast.lint.interpreter.iteration import iterated_value
from holdfast.lint.interpreter.narrowing import narrow

#: Longer literals are not tracked element by element.
_MAX_ITEMS, _MAX_KEYS = 16, 64


class LiteralEvaluator:
    """Evaluates literals and comprehensions."""

    def __init__(self, state: InterpreterState) -> None:
        self.state = state

    def _sequence(self, frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items: list[Value] = []
        complete = True
        for element in node.elts:
            if isinstance(element, ast.Starred):
                inner = self.state.evaluate(frame, element.value)
                complete = complete and inner.items is not None
                items.extend(inner.items if inner.items is not None else [inner])
            else:
                items.append(self.state.evaluate(frame, element))
        joined = join_values(items) if items else UNIFORM
        return Value(
            content=merge_content(items),
            length=() if complete else merge_length(items),
            element_length=joined.length,
            known=all(item.known for item in items),
            objects=mark_contained(joined.objects) if len(items) > _MAX_ITEMS else (),
            items=tuple(items) if complete and len(items) <= _MAX_ITEMS else None,
            agreed=any(item.agreed for item in items),
            stored_in=tuple(home for item in items for home in item.stored_in),
        )

    def _set(self, frame: Frame, node: ast.Set) -> Value:
        value = self._sequence(frame, node)
        numbers = all(isinstance(item.const, (int, float)) for item in value.items or ())
        return replace(
            value,
            items=None,
            order=() if numbers else self.state.taint_source(frame, TaintKind.ORDER, node),
        )

    def _dict(self, frame: Frame, node: ast.Dict) -> Value:
        values = [
            self.state.evaluate(frame, value)
            for value in (*node.keys, *node.values)
            if value is not None
        ]
        content = merge_content(values)
        # a dict is not None
        objects = tuple(
            obj for obj in join_values(values).objects if obj not in (NONE_OBJECT, UNKNOWN_OBJECT)
        )
        if None not in node.keys and len(node.keys) <= _MAX_KEYS:
            keys = [value.const for value in values[: len(node.keys)]]
            contents = values[len(node.keys) :]
            if all(isinstance(key, str) for key in keys):
                entries = dict_of(dict(zip(keys, contents, strict=True)))
                objects = (entries, *(obj for obj in objects if not isinstance(obj, DictEntries)))
        return Value(content, known=all(value.known for value in values), objects=objects)

    def _formatted_string(self, frame: Frame, node: ast.JoinedStr) -> Value:
        values = [self.state.evaluate(frame, value) for value in node.values]
        record_device_name(self.state, frame, node, values)
        return as_text(
            combine_values(*values),
            (*(RANK_TEXT for value in values if RANK_TEXT in value.objects), *stamps_of(values)),
        )

    def _slice(self, frame: Frame, node: ast.Slice) -> Value:
        return combine_values(
            *(
                self.state.evaluate(frame, child)
                for child in (node.lower, node.upper, node.step)
                if child
            )
        )

    # ---- comprehensions

    def _comprehension(
        self,
        frame: Frame,
        node: ast.expr,
        generators: Sequence[ast.comprehension],
        *results: ast.expr,
    ) -> Value:
        saved_names = dict(frame.scope.names)
        count: list[Taint] = []
        order: list[Taint] = []
        known = True
        first = self.state.evaluate(frame, generators[0].iter)  # once, before the first round
        with frame.collect_effects() as inner:
            for at, generator in enumerate(generators):
                base = self.state.evaluate(frame, generator.iter) if at else first
                over = iterated_value(self.state, frame, generator.iter, base)
                count.append(over.length)
                order.append(over.order)
                known = known and over.known
                assign_round(self.state, frame, generator.target, generator.iter, over)
                for test in generator.ifs:
                    answer = as_test(self.state.evaluate(frame, test))
                    record_filtered_share(self.state, frame, test, over, answer)
                    if MASK in answer.objects:
                        count.append(self.state.taint_source(frame, TaintKind.DATA, test))
                    count.append(answer.content)
                    known = known and answer.known
                    narrowing = narrow(self.state, frame, test)
                    if narrowing is not None:
                        frame.scope.names[narrowing.name] = narrowing.yes
            values = [self.state.evaluate(frame, result) for result in results]
        restore_names(frame.scope.names, saved_names)
        length = merge_taint(*count)
        if inner:
            text = self.state.unparse(generators[0].iter)
            unordered = set_order(merge_taint(*order))
            frame.add_effect(
                LoopEffect(frame.location(node), text, length, unordered, tuple(inner))
            )
        joined = join_values(values)
        share = (RANK_SHARE,) if RANK_SHARE in first.objects else ()
        parts = self._one_per_rank(generators, first)
        rows = (TupleElements(joined.items),) if joined.items and len(values) == 1 else ()
        return Value(
            content=merge_content(values),
            length=length,
            order=merge_taint(*order),
            element_length=merge_length(values),
            known=known,
            agreed=bool(values) and all(value.agreed for value in values),
            objects=mark_contained(
                (
                    *rows,
                    *share,
                    *parts,
                    *(obj for obj in joined.objects if not isinstance(obj, TupleElements)),
                )
            ),
        )

    @staticmethod
    def _one_per_rank(generators: Sequence[ast.comprehension], over: Value) -> list[OnePerRank]:
        """Return what a list made for each position of the ranks of a group, or of the job, is."""
        if len(generators) > 1 or generators[0].ifs:
            return []
        if ALL_RANKS in over.objects:
            return [OnePerRank(WORLD_SIZE)]
        numbers = over.objects_of(GroupNumber)
        return [
            OnePerRank(replace(each, kind="size")) for each in numbers if each.kind == "positions"
        ]

    def _list_comprehension(self, frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> Value:
        return self._comprehension(frame, node, node.generators, node.elt)

    def _set_comprehension(self, frame: Frame, node: ast.SetComp) -> Value:
        value = self._comprehension(frame, node, node.generators, node.elt)
        return replace(value, order=self.state.taint_source(frame, TaintKind.ORDER, node))

    def _dict_comprehension(self, frame: Frame, node: ast.DictComp) -> Value:
        keys = self._known_keys(frame, node.generators)
        if keys is None:
            return self._dict_by_rounds(frame, node)
        saved_names = dict(frame.scope.names)
        entries: dict[str, Value] = {}
        for round_ in keys:
            assign(self.state, frame, node.generators[0].target, round_)
            key = self.state.evaluate(frame, node.key)
            value = self.state.evaluate(frame, node.value)
            if not isinstance(key.const, str):
                break
            entries[key.const] = value
        restore_names(frame.scope.names, saved_names)
        if len(entries) < len(keys):
            return self._dict_by_rounds(frame, node)
        return Value(
            merge_taint(*(entry.content for entry in entries.values())),
            objects=(dict_of(entries),),
        )

    def _known_keys(
        self, frame: Frame, generators: Sequence[ast.comprehension]
    ) -> list[Value] | None:
        """Return the loop values over a dict's known keys or items, or over a short literal."""
        if len(generators) > 1 or generators[0].ifs:
            return None
        over = generators[0].iter
        called = over.func if isinstance(over, ast.Call) and not over.args else None
        method = (
            called.attr
            if isinstance(called, ast.Attribute) and called.attr in ("keys", "items")
            else ""
        )
        value = self.state.evaluate(
            frame, called.value if isinstance(called, ast.Attribute) and method else over
        )
        named = dict_entries(value)
        if named:
            pairs = ((constant_value(name), entry) for name, entry in named.items())
            return [Value(items=pair) if method == "items" else pair[0] for pair in pairs]
        return list(value.items) if value.items and not method else None

    def _dict_by_rounds(self, frame: Frame, node: ast.DictComp) -> Value:
        record_unordered_numbers(self.state, frame, node)
        return self._comprehension(frame, node, node.generators, node.key, node.value)

    @property
    def evaluators(self) -> dict[type[ast.expr], Callable[..., Value]]:
        """Return the method for each kind of expression."""
        return {
            ast.Tuple: self._sequence,
            ast.List: self._sequence,
            ast.Set: self._set,
            ast.Dict: self._dict,
            ast.JoinedStr: self._formatted_string,
            ast.Slice: self._slice,
            ast.ListComp: self._list_comprehension,
            ast.GeneratorExp: self._list_comprehension,
            ast.SetComp: self._set_comprehension,
            ast.DictComp: self._dict_comprehension,
        }
