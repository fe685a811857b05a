"""Columns of findings: where on its line the reported call or statement begins."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.sources.modules import Module, last_name
from holdfast.report.source_findings import cell_of, path_of


class ColumnFinder:
    """Finds the column of a divergence; each module is searched once, when it is first needed."""

    def __init__(self, modules: Mapping[str, Module]) -> None:
        self._modules = {module.file: module for module in modules.values()}
        self._nodes: dict[str, dict[int, list[ast.stmt | ast.expr]]] = {}

    def column(self, divergence: Divergence) -> int | None:
        """Return the column, from 1 in characters; None if nothing begins on the line.

        The call of the collective, or of the function that leads to it, comes first; then an
        expression with the reported text; then the outermost call, unless the divergence is the
        statement itself.
        """
        location = divergence.location
        module = self._modules.get(path_of(location.file))
        if module is None:
            return None
        line = location.line
        if module.notebook is not None:
            line = module.notebook.line_of_cell(cell_of(location.file), line)
        nodes = self._nodes_of(module).get(line, [])
        node = _reported_node(divergence, nodes)
        if node is None:
            return None
        before = module.lines[line - 1].encode(errors="surrogatepass")[: node.col_offset]
        return len(before.decode(errors="replace")) + 1

    def _nodes_of(self, module: Module) -> dict[int, list[ast.stmt | ast.expr]]:
        """Return the statements and expressions that begin on each line, outermost first."""
        nodes = self._nodes.get(module.file)
        if nodes is None:
            nodes = self._nodes[module.file] = {}
            for node in ast.walk(module.tree):
                if isinstance(node, (ast.stmt, ast.expr)):
                    nodes.setdefault(node.lineno, []).append(node)
        return nodes


def _reported_node(
    divergence: Divergence, nodes: list[ast.stmt | ast.expr]
) -> ast.stmt | ast.expr | None:
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    names = {divergence.op.name} if divergence.op is not None else set()
    if divergence.location in divergence.call_chain[:1]:
        names |= {callee.function for callee in divergence.call_chain[1:2]}
    for call in calls:
        if last_name(call.func) in names:
            return call
    for node in nodes:
        if isinstance(node, ast.expr) and ast.unparse(node) == divergence.text:
            return node
    if calls and (divergence.guard != divergence.location):
        return calls[0]
    return nodes[0] if nodes else None
