"""Displays and comprehensions: what a list, a dict, a set or a text holds that is written out, or made in rounds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import ClassVar

from msgspec.structs import replace

from holdfast.facts.code.effects import Loop
from holdfast.facts.code.frames import Frame
from holdfast.facts.code.lookup import Lookup
from holdfast.facts.code.things import NAMED, Rows, given_in, listed, told
from holdfast.facts.code.values import (
    NONE,
    OTHER,
    SAME,
    Given,
    Kind,
    Sources,
    Value,
    asked,
    constant,
    derived,
    join,
    merged,
)  # fmt: skip

#: Of a longer display the elements are not told apart.
_MOST_ITEMS, _MOST_KEYS = 16, 64


class Displays(Lookup):
    """Part of the interpreter: what is written out, element by element or by a rule for all."""

    def _sequence(self, frame: Frame, node: ast.Tuple | ast.List | ast.Set) -> Value:
        items: list[Value] = []
        whole = True
        for each in node.elts:
            if isinstance(each, ast.Starred):
                inner = self.evaluate(frame, each.value)
                whole = whole and inner.items is not None
                items.extend(inner.items if inner.items is not None else [inner])
            else:
                items.append(self.evaluate(frame, each))
        joined = join(items) if items else SAME
        return Value(
            content=merged(*(each.content for each in items)),
            length=() if whole else merged(*(each.length for each in items)),
            inner=joined.length,
            known=all(each.known for each in items),
            things=listed(joined.things) if len(items) > _MOST_ITEMS else (),
            items=tuple(items) if whole and len(items) <= _MOST_ITEMS else None,
            agreed=any(each.agreed for each in items),
            homes=tuple(home for each in items for home in each.homes),
        )

    def _set(self, frame: Frame, node: ast.Set) -> Value:
        value = self._sequence(frame, node)
        numbers = all(isinstance(item.const, (int, float)) for item in value.items or ())
        return replace(value, items=None, order=() if numbers else self.source(frame, Kind.ORDER, node))

    def _dict(self, frame: Frame, node: ast.Dict) -> Value:
        values = [self.evaluate(frame, each) for each in (*node.keys, *node.values) if each is not None]
        content = merged(*(each.content for each in values))
        things = tuple(each for each in join(values).things if each not in (NONE, OTHER))  # a dict is there
        if None not in node.keys and len(node.keys) <= _MOST_KEYS:
            keys, held = [each.const for each in values[: len(node.keys)]], values[len(node.keys) :]
            if all(isinstance(each, str) for each in keys):
                own = Given(dict(zip(keys, held, strict=True)))
                things = (own, *(each for each in things if not isinstance(each, Given)))
        return Value(content, known=all(each.known for each in values), things=things)

    def _text(self, frame: Frame, node: ast.JoinedStr) -> Value:
        values = [self.evaluate(frame, each) for each in node.values]
        return told(derived(*values), tuple(NAMED for each in values if NAMED in each.things))

    def _slice(self, frame: Frame, node: ast.Slice) -> Value:
        return derived(*(self.evaluate(frame, each) for each in (node.lower, node.upper, node.step) if each))

    # ---- comprehensions

    def _comprehension(
        self, frame: Frame, node: ast.expr, generators: Sequence[ast.comprehension], *made: ast.expr
    ) -> Value:
        kept = dict(frame.scope.names)
        count: list[Sources] = []
        order: list[Sources] = []
        known = True
        with frame.apart() as inner:
            for each in generators:
                over = self.rounds(frame, each.iter, self.evaluate(frame, each.iter))
                count.append(over.length)
                order.append(over.order)
                known = known and over.known
                self.each(frame, each.target, each.iter, over)
                for test in each.ifs:
                    answer = asked(self.evaluate(frame, test))
                    count.append(answer.content)
                    known = known and answer.known
            values = [self.evaluate(frame, each) for each in made]
        frame.scope.names.clear()
        frame.scope.names.update(kept)
        length = merged(*count)
        if inner:
            text = self.text(generators[0].iter)
            frame.note(Loop(frame.place(node), text, length, merged(*order), tuple(inner)))
        one = join(values)
        rows = (Rows(one.items),) if one.items and len(values) == 1 else ()
        return Value(
            content=merged(*(each.content for each in values)),
            length=length,
            order=merged(*order),
            inner=merged(*(each.length for each in values)),
            known=known,
            things=listed((*rows, *(each for each in one.things if not isinstance(each, Rows)))),
        )

    def _listed(self, frame: Frame, node: ast.ListComp | ast.GeneratorExp) -> Value:
        return self._comprehension(frame, node, node.generators, node.elt)

    def _set_of(self, frame: Frame, node: ast.SetComp) -> Value:
        value = self._comprehension(frame, node, node.generators, node.elt)
        return replace(value, order=self.source(frame, Kind.ORDER, node))

    def _dict_of(self, frame: Frame, node: ast.DictComp) -> Value:
        keys = self._known_keys(frame, node.generators)
        if keys is None:
            return self._by_rounds(frame, node)
        kept = dict(frame.scope.names)
        held: dict[str, Value] = {}
        for round_ in keys:
            self.assign(frame, node.generators[0].target, round_)
            key, value = self.evaluate(frame, node.key), self.evaluate(frame, node.value)
            if not isinstance(key.const, str):
                break
            held[key.const] = value
        frame.scope.names.clear()
        frame.scope.names.update(kept)
        if len(held) < len(keys):
            return self._by_rounds(frame, node)
        return Value(merged(*(each.content for each in held.values())), things=(Given(held),))

    def _known_keys(self, frame: Frame, generators: Sequence[ast.comprehension]) -> list[Value] | None:
        """What each round has over a dict of plain keys, over its items, or over a display of plain names."""
        if len(generators) > 1 or generators[0].ifs:
            return None
        over = generators[0].iter
        called = over.func if isinstance(over, ast.Call) and not over.args else None
        asked = called.attr if isinstance(called, ast.Attribute) and called.attr in ("keys", "items") else ""
        value = self.evaluate(frame, called.value if isinstance(called, ast.Attribute) and asked else over)
        named = given_in(value)
        if named:
            pairs = ((constant(name), each) for name, each in named.items())
            return [Value(items=pair) if asked == "items" else pair[0] for pair in pairs]
        return list(value.items) if value.items and not asked else None

    def _by_rounds(self, frame: Frame, node: ast.DictComp) -> Value:
        return self._comprehension(frame, node, node.generators, node.key, node.value)

    by_node: ClassVar[dict[type[ast.expr], Callable[..., Value]]] = Lookup.by_node | {
        ast.Tuple: _sequence,
        ast.List: _sequence,
        ast.Set: _set,
        ast.Dict: _dict,
        ast.JoinedStr: _text,
        ast.Slice: _slice,
        ast.ListComp: _listed,
        ast.GeneratorExp: _listed,
        ast.SetComp: _set_of,
        ast.DictComp: _dict_of,
    }
