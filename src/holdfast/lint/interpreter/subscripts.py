"""Evaluate elements and slices: by a constant index or key, by the rank, by bounds."""

from __future__ import annotations

import ast

from holdfast.lint.abstract_domain.values import (
    NO_CONSTANT,
    RANK_KINDS,
    UNKNOWN,
    Taint,
    TaintKind,
    Value,
    as_selection,
    is_rank_only,
    join_values,
    merge_content,
    merge_taint,
    taint_kinds,
)
from holdfast.lint.abstract_state.abstract_objects import (
    BATCH,
    CONTAINED,
    MASK,
    RANK_SHARE,
    TRIMMED,
    DeviceMesh,
    Instance,
    LibraryName,
    dict_entries,
    join_rows,
    open_entry,
)
from holdfast.lint.abstract_state.elements import PIECES, with_held_data
from holdfast.lint.abstract_state.frames import Frame
from holdfast.lint.abstract_state.function_summaries import ITEMS
from holdfast.lint.abstract_state.shares import is_equal_piece, is_equal_share
from holdfast.lint.abstract_state.state import InterpreterState
from holdfast.lint.divergence.orders import record_unordered_share
from holdfast.lint.library_models.meshes import mesh_part
from holdfast.lint.sources.modules import last_name


class SubscriptEvaluator:
    """Evaluates ``base[index]``."""

    def __init__(self, state: InterpreterState) -> None:
        self.state = state

    def evaluate(self, frame: Frame, node: ast.Subscript) -> Value:
        """Return the value of ``base[index]``."""
        base, index = self.state.evaluate(frame, node.value), self.state.evaluate(frame, node.slice)
        at = index.const
        mesh = self._mesh(base, index)
        if mesh is not None:
            return Value(objects=(mesh,))
        entry, base = open_entry(base, at if isinstance(at, str) else "")
        if entry is not None:
            return entry
        known = self._known_element(frame, node, base, at)
        if known is not None:
            return known
        if isinstance(at, int):
            base = with_held_data(base)
        if isinstance(node.slice, ast.Slice):
            return self._slice_value(frame, base, node.slice)
        first = (
            node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else None
        )
        trimmed = self._trimmed(frame, node.slice)
        rows = (
            base.length if isinstance(first, ast.Slice) and not (first.lower or first.upper) else ()
        )
        inner = join_values(base.items) if base.items else join_rows(base)
        pieces = PIECES in base.objects
        piece = index.content if pieces else ()
        if pieces:
            record_unordered_share(self.state, frame, node, base, index.content)
        masked = (
            index.content or self.state.taint_source(frame, TaintKind.DATA, node)
            if MASK in index.objects
            else ()
        )
        why = index.content if base.known or pieces or base.content else as_selection(index.content)
        content = as_selection(base.content) if isinstance(at, str) else base.content
        return Value(
            content=merge_taint(content, why),
            length=merge_taint(
                inner.length if inner is not None else base.element_length,
                piece,
                masked,
                rows,
                trimmed,
            ),
            order=base.order if pieces else index.order,
            absent=why,
            known=base.known and index.known,
            objects=inner.objects
            if inner is not None
            else tuple(obj for obj in base.objects if obj != CONTAINED),
            agreed=base.agreed,
            stored_in=base.stored_in,
        )

    @staticmethod
    def _mesh(base: Value, index: Value) -> DeviceMesh | None:
        """Return the part of a mesh that ``mesh["dp"]`` or ``mesh["dp", "cp"]`` is."""
        meshes = base.objects_of(DeviceMesh)
        names = [item.const for item in index.items or (index,)]
        known = [name for name in names if isinstance(name, str)]
        if len(meshes) != 1 or len(known) != len(names):
            return None
        return mesh_part(meshes[0], known)

    def _trimmed(self, frame: Frame, index: ast.expr) -> Taint:
        """Return why a dimension after the first is cut to a length of the rank's own data."""
        cut: list[Value] = []
        for part in index.elts if isinstance(index, ast.Tuple) else ():
            if isinstance(part, ast.Slice):
                nodes = [node for node in (part.lower, part.upper) if node is not None]
                bounds = [self.state.evaluate(frame, node) for node in nodes]
                if not is_equal_share(self.state, nodes, bounds):
                    cut += bounds
        return tuple(source for source in merge_content(cut) if source.kind is TaintKind.DATA)

    def _known_element(
        self, frame: Frame, node: ast.Subscript, base: Value, at: object
    ) -> Value | None:
        """Return the element at a constant index or key; None if it is not known apart."""
        if isinstance(at, str) and any(
            isinstance(obj, LibraryName) and obj.name == "os.environ" for obj in base.objects
        ):
            return self.state.environment_variable(frame, at, node)
        if isinstance(at, str) and at in (
            named := dict_entries(base) or self._registry_entries(base)
        ):
            return named[at]
        if (
            base.items is not None
            and isinstance(at, int)
            and -len(base.items) <= at < len(base.items)
        ):
            return base.items[at]
        if is_equal_piece(node):
            return Value(known=False, objects=(BATCH,))
        if _is_width(node, at) and is_rank_only(base.content):
            return UNKNOWN  # a rank's share of the data differs in rows
        return None

    def _registry_entries(self, base: Value) -> dict[str, Value]:
        """Return the entries of a registry class without ``__getitem__``."""
        for cls in (obj.cls for obj in base.objects_of(Instance)):
            self.state.summaries.record_read(cls, ITEMS)
            held = cls.attributes.get(ITEMS)
            if held is not None and self.state.symbols.find_method(cls, "__getitem__") is None:
                return dict_entries(held) or {}
        return {}

    def _slice_value(self, frame: Frame, base: Value, cut: ast.Slice) -> Value:
        bounds = [
            self.state.evaluate(frame, node)
            for node in (cut.lower, cut.upper, cut.step)
            if node is not None
        ]
        varying = merge_content(bounds)
        record_unordered_share(self.state, frame, cut, base, varying)
        nodes = [node for node in (cut.lower, cut.upper, cut.step) if node is not None]
        equal = is_equal_share(self.state, nodes, bounds, of_data=TRIMMED not in base.objects)
        moved = () if equal else varying
        if cut.lower is None and cut.step is None and not moved:
            trimmed = (TRIMMED,) if cut.upper is not None and bounds[0].const is NO_CONSTANT else ()
            # at most a constant number
            return Value(
                base.content, order=base.order, known=False, agreed=base.agreed, objects=trimmed
            )
        if TRIMMED in base.objects and cut.step is not None:  # equal for all ranks
            return Value(
                merge_taint(base.content, moved), base.length, order=base.order, known=False
            )
        own = moved and taint_kinds(moved) & RANK_KINDS
        return Value(
            merge_taint(base.content, moved),
            merge_taint(base.length, moved),
            base.order,
            known=base.known,
            objects=(RANK_SHARE,) if own else (),
        )


def _is_width(node: ast.Subscript, at: object) -> bool:
    """Return True for ``x.shape[1]``, further dimensions, and ``x.shape[1:]``."""
    if isinstance(node.slice, ast.Slice):
        lower = node.slice.lower
        at = lower.value if isinstance(lower, ast.Constant) else None
    return isinstance(at, int) and at > 0 and last_name(node.value) == "shape"
