"""Convert divergence locations in notebooks to cells."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.core.rank_table import SourceLine
from holdfast.lint.abstract_domain.divergences import Divergence
from holdfast.lint.abstract_domain.values import TaintSource
from holdfast.lint.sources.notebooks import Notebook


def with_cell_locations(divergence: Divergence, notebooks: Mapping[str, Notebook]) -> Divergence:
    """Return the divergence with locations such as ``file.ipynb:cell 3`` and the cell's line."""
    op = divergence.op
    return replace(
        divergence,
        location=_cell_location(divergence.location, notebooks),
        guard=_cell_location(divergence.guard, notebooks),
        sources=tuple(_cell_source(source, notebooks) for source in divergence.sources),
        op=op if op is None else replace(op, location=_cell_location(op.location, notebooks)),
        call_chain=tuple(_cell_location(location, notebooks) for location in divergence.call_chain),
    )


def _cell_location(location: SourceLine, notebooks: Mapping[str, Notebook]) -> SourceLine:
    if location.file not in notebooks:
        return location
    cell, line = notebooks[location.file].cell_of_line(location.line)
    return SourceLine(f"{location.file}:cell {cell}", line, location.function)


def _cell_source(source: TaintSource, notebooks: Mapping[str, Notebook]) -> TaintSource:
    if source.file not in notebooks:
        return source
    cell, line = notebooks[source.file].cell_of_line(source.line)
    return replace(source, file=f"{source.file}:cell {cell}", line=line)
