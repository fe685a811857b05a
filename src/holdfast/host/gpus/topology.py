"""Parses the matrix of ``nvidia-smi topo -m``: how each pair of GPUs is connected."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.core.findings import Unknown
from holdfast.host import programs
from holdfast.host.gpus import GpuPair

COMMAND = ("nvidia-smi", "topo", "-m")
_GPU = re.compile(r"GPU(\d{1,4})")
_UNDERLINE = re.compile(r"\x1b\[[\d;]*m")
_NVLINK = re.compile(r"NV\d+")


def query_topology(limit_s: float) -> tuple[GpuPair, ...] | Unknown:
    """Run nvidia-smi and parse its matrix."""
    output = programs.run_program(COMMAND, limit_s)
    return (
        output if isinstance(output, Unknown) else parse_topology(output.decode(errors="replace"))
    )


def parse_topology(text: str) -> tuple[GpuPair, ...] | Unknown:
    """Return all pairs of GPUs; whether they have peer access is not in the matrix ("U")."""
    rows = [line.split() for line in _UNDERLINE.sub("", text).splitlines()]
    header = next((row for row in rows if row and _GPU.fullmatch(row[0])), [])
    columns = [int(match[1]) for word in header if (match := _GPU.fullmatch(word))]
    pairs = tuple(_pairs_of_rows(rows, columns))
    return pairs or Unknown("`nvidia-smi topo -m` has no matrix of GPUs")


def _pairs_of_rows(rows: list[list[str]], columns: list[int]) -> Iterator[GpuPair]:
    for row in rows:
        match = _GPU.fullmatch(row[0]) if len(row) > len(columns) else None
        if match is None or _GPU.fullmatch(row[1]):  # the header
            continue
        for column, link in zip(columns, row[1:], strict=False):
            if int(match[1]) < column:
                name = "NVLink" if _NVLINK.fullmatch(link) else link
                yield GpuPair(int(match[1]), column, name, "U")
