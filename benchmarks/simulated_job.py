"""Simulates the calls of a job and writes them to real trace files, for ranks on made-up hosts.

``LANES`` ranks per host. In each step a rank computes four times and makes a tensor-parallel
all-reduce inside its host after each, then a data-parallel one with the same lane of all hosts,
then a small one with all ranks.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from holdfast.core import trace_file
from holdfast.core.trace_file import TraceNote, TraceWriter
from holdfast.watcher.trace_reader import RECORD_DTYPE

LANES = 8
CHUNKS = 4
TENSOR_S, DATA_S, WORLD_S = 0.002, 0.05, 0.002
COMPUTE_S = 0.1
TENSOR_ELEMENTS, DATA_ELEMENTS, WORLD_ELEMENTS = 1 << 20, 1 << 24, 1
_ALL_REDUCE = trace_file.OPERATIONS.index("all_reduce")


@dataclass
class JobModel:
    """``speed`` multiplies the compute time of each rank, ``lane_s`` is the transfer of each lane.

    ``noise`` is the relative deviation of each computation, ``stalls`` the probability that a rank
    needs three times as long in a step, ``pause`` a step and the seconds that rank 0 is away in it.
    ``factors`` and ``extra_s`` are by (step, rank): of all computations of the step, and seconds
    before its first collective.
    """

    hosts: int
    steps: int
    speed: np.ndarray
    lane_s: np.ndarray = field(default_factory=lambda: np.full(LANES, DATA_S))
    noise: float = 0.03
    stalls: float = 0.0
    pause: tuple[int, float] = (-1, 0.0)
    factors: np.ndarray | None = None
    extra_s: np.ndarray | None = None


@dataclass
class Timeline:
    """Times in seconds by (step, call, rank); the calls of a step are CHUNKS, data, world."""

    entered: np.ndarray
    completed: np.ndarray
    computed: np.ndarray  # (step, chunk, rank)


def simulate(model: JobModel, random: np.random.Generator) -> Timeline:
    """Return the times of all calls."""
    ranks = model.hosts * LANES
    host, lane = np.divmod(np.arange(ranks), LANES)
    shape = (model.steps, CHUNKS + 2, ranks)
    times = Timeline(np.zeros(shape), np.zeros(shape), np.zeros((model.steps, CHUNKS, ranks)))
    now = np.zeros(ranks)
    for step in range(model.steps):
        factor = np.where(random.random(ranks) < model.stalls, 3.0, 1.0) * model.speed
        if model.factors is not None:
            factor = factor * model.factors[step]
        for call in range(CHUNKS + 2):
            if call < CHUNKS:
                jitter = random.lognormal(0.0, model.noise, ranks)
                times.computed[step, call] = COMPUTE_S * factor * jitter
                now = now + times.computed[step, call]
            if call == 0 and step == model.pause[0]:
                now[0] += model.pause[1]
            if call == 0 and model.extra_s is not None:
                now = now + model.extra_s[step]
            times.entered[step, call] = now
            if call < CHUNKS:
                ready = now.reshape(model.hosts, LANES).max(axis=1)[host]
                took = TENSOR_S
            elif call == CHUNKS:
                ready = now.reshape(model.hosts, LANES).max(axis=0)[lane]
                took = (model.lane_s * random.lognormal(0.0, 0.05, LANES))[lane]
            else:
                ready, took = np.full(ranks, now.max()), WORLD_S
            now = ready + took
            times.completed[step, call] = now
    return times


def group_members(hosts: int, rank: int) -> dict[str, list[int]]:
    """Return the members of the groups of ``rank``: tensor, data and world."""
    host, lane = divmod(rank, LANES)
    return {
        f"tp{host}": list(range(host * LANES, (host + 1) * LANES)),
        f"dp{lane}": list(range(lane, hosts * LANES, LANES)),
        "world": list(range(hosts * LANES)),
    }


def write_traces(folder: Path, times: Timeline, hosts: int, ranks: range, begin: float) -> None:
    """Write the trace files of ``ranks``; ``begin`` is the start of the job in Unix seconds."""
    for rank in ranks:
        writer = TraceWriter(folder / f"rank{rank}.trace", rank=rank, world_size=hosts * LANES)
        members = group_members(hosts, rank)
        for index, (name, of_group) in enumerate(members.items()):
            writer.note(TraceNote.GROUP, index, "gloo", name)
            described = {"name": name, "ranks": of_group, "description": ""}
            writer.note_json(TraceNote.MEMBERS, described)
        _set_header(writer, f"node{rank // LANES}", begin)
        _write_ring(writer, times.entered[..., rank], times.completed[..., rank])
        writer.map.close()


def _set_header(writer: TraceWriter, host: str, begin: float) -> None:
    fields = list(trace_file.HEADER.unpack_from(writer.map, 0))
    fields[9], fields[10], fields[-1] = begin, int(begin * 1e9), host.encode()
    trace_file.HEADER.pack_into(writer.map, 0, *fields)


def _write_ring(writer: TraceWriter, entered: np.ndarray, completed: np.ndarray) -> None:
    steps, calls = entered.shape
    count = steps * calls
    rows = np.zeros(count, RECORD_DTYPE)
    rows["number"] = np.arange(1, count + 1)
    rows["entered"] = (entered.ravel() * 1e9).astype(np.uint64) + 1
    rows["completed"] = (completed.ravel() * 1e9).astype(np.uint64) + 1
    pattern = np.array([0] * CHUNKS + [1, 2])
    rows["group"] = np.tile(pattern, steps)
    sizes = np.array([TENSOR_ELEMENTS, DATA_ELEMENTS, WORLD_ELEMENTS])
    rows["elements"] = sizes[rows["group"]]
    within = np.array([*range(1, CHUNKS + 1), 1, 1])
    per_step = np.array([CHUNKS, 1, 1])
    steps_before = np.repeat(np.arange(steps), calls)
    rows["sequence"] = np.tile(within, steps) + steps_before * per_step[rows["group"]]
    rows["operation"], rows["dtype"], rows["peer"] = _ALL_REDUCE, 6, -1
    rows["tensors"], rows["ndim"], rows["reduction"] = 1, 1, 0
    rows["shape"][:, 0] = rows["elements"]
    rows["check"] = _checksums(rows)
    kept = rows[-writer.records :]
    ring = np.zeros(writer.records, RECORD_DTYPE)
    ring[(kept["number"] - 1) % np.uint64(writer.records)] = kept
    end = writer.ring_at + ring.nbytes
    writer.map[writer.ring_at : end] = ring.tobytes()
    trace_file.HEADS.pack_into(writer.map, trace_file.RECORDS_HEAD, count)
    for index in range(3):
        of_group = rows[rows["group"] == index][-1]
        slot = struct.pack(
            "<QQQQ",
            *(of_group[name] for name in ("sequence", "sequence", "entered", "completed")),
        )
        at = trace_file.HEADER_BYTES + index * trace_file.GROUP_BYTES
        writer.map[at : at + len(slot)] = slot


def _checksums(rows: np.ndarray) -> np.ndarray:
    return np.array(
        [
            trace_file.record_checksum(
                int(row["number"]),
                int(row["entered"]),
                int(row["sequence"]),
                int(row["elements"]),
                int(row["group"]) << 32 | int(row["site"]),
                int(row["operation"])
                | int(row["dtype"]) << 16
                | (int(row["peer"]) & 0xFFFFFFFF) << 32,
            )
            for row in rows
        ],
        np.uint64,
    )
