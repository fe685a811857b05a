"""Partings in notebooks, told by the cells that people see."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.facts.code.effects import Place
from holdfast.facts.code.notebooks import Notebook
from holdfast.facts.code.partings import Parting
from holdfast.facts.code.values import Source


def told(parting: Parting, notebooks: Mapping[str, Notebook]) -> Parting:
    """The same parting, with its places as people name them: ``file.ipynb:cell 3``, and the line of the cell."""
    op = parting.op
    return replace(
        parting,
        place=_place(parting.place, notebooks),
        guard=_place(parting.guard, notebooks),
        sources=tuple(_source(each, notebooks) for each in parting.sources),
        op=op if op is None else replace(op, place=_place(op.place, notebooks)),
        chain=tuple(_place(each, notebooks) for each in parting.chain),
    )


def _place(place: Place, notebooks: Mapping[str, Notebook]) -> Place:
    if place.file not in notebooks:
        return place
    cell, line = notebooks[place.file].place(place.line)
    return Place(f"{place.file}:cell {cell}", line, place.function)


def _source(source: Source, notebooks: Mapping[str, Notebook]) -> Source:
    if source.file not in notebooks:
        return source
    cell, line = notebooks[source.file].place(source.line)
    return replace(source, file=f"{source.file}:cell {cell}", line=line)
