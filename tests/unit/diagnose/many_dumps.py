"""Generate the dumps of whole jobs in the format of torch's NCCL groups: one small program per rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from typing import Any

from holdfast.diagnose.dumps import dump_set
from holdfast.diagnose.dumps.dump_set import DumpTable
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind
from tests.unit.diagnose.dump_factory import BEGAN_NS, FRAMES, entry, written

Groups = Mapping[str, tuple[str, Sequence[int]]]


class Recorder:
    """A fake flight recorder: ``call`` records a collective, ``transfer`` a send or a receive."""

    def __init__(self, rank: int, groups: Groups) -> None:
        self.rank = rank
        self.groups = {name: group for name, group in groups.items() if rank in group[1]}
        self.entries: list[dict[str, Any]] = []
        self.skipped = 0
        self._collectives: dict[str, int] = defaultdict(int)
        self._transfers: dict[str, int] = defaultdict(int)

    def call(
        self,
        name: str = "all_reduce",
        group: str = "0",
        *,
        size: int = 4,
        line: int = 41,
        state: str = "completed",
        inside: bool = False,
        **more: Any,
    ) -> Recorder:
        """Record a collective; if ``inside`` a block, it gets the number of the closing call."""
        self._collectives[group] += 1
        number = self._collectives[group]
        if inside:
            self._collectives[group] -= 1
        return self._add(group, f"nccl:{name}", number, line, state, size, more)

    def transfer(
        self, kind: str, peer: int, group: str = "0", *, state: str = "completed", **more: Any
    ) -> Recorder:
        """Record a send or a receive; ``peer`` is the rank within the group."""
        self._transfers[group] += 1
        own = list(self.groups[group][1]).index(self.rank)
        arrow = "->" if kind == "send" else "<-"
        title = f"nccl:{kind} {own}{arrow}{peer}"
        return self._add(
            group, title, self._collectives[group], 60, state, 4, {"is_p2p": True} | more
        )

    def _add(
        self,
        group: str,
        title: str,
        number: int,
        line: int,
        state: str,
        size: int,
        more: dict[str, Any],
    ) -> Recorder:
        record = len(self.entries)
        frames = [FRAMES[0], FRAMES[1] | {"line": line}]
        self.entries.append(
            entry(record + 1, state)
            | {
                "record_id": record,
                "pg_id": list(self.groups).index(group),
                "frames": frames,
                "process_group": (group, self.groups[group][0]),
                "profiling_name": title,
                "collective_seq_id": number,
                "p2p_seq_id": self._transfers[group],
                "op_id": record + 1,
                "time_created_ns": BEGAN_NS + record * 1_000_000_000,
                "input_sizes": [[size]],
                "output_sizes": [[size]],
            }
            | more
        )
        return self

    def dump(self, last: int = 2000, *, active_only: bool = False) -> dict[str, Any]:
        """Return torch's dump of the last entries."""
        status = {}
        for number, name in enumerate(self.groups):
            entries = [each for each in self.entries if each["process_group"][0] == name]
            done = [each["op_id"] for each in entries if each["state"] == "completed"]
            numbers = [each["collective_seq_id"] for each in entries]
            finished = [each["collective_seq_id"] for each in entries if each["op_id"] in done]
            status[str(number)] = {
                "last_enqueued_collective": max(numbers, default=-1),
                "last_started_collective": -1,
                "last_completed_collective": max(finished, default=-1),
            }
        kept = [
            each for each in self.entries[-last:] if not active_only or each["state"] != "completed"
        ]
        return {
            "version": "2.10",
            "comm_lib_version": "2.27.5",
            "pg_status": status,
            "entries": kept,
            "pg_config": {
                name: {"name": name, "desc": description, "ranks": str(list(ranks))}
                for name, (description, ranks) in self.groups.items()
            },
        }


def job(
    size: int, program: Callable[[Recorder], object], groups: Groups | None = None
) -> list[Recorder]:
    """Return the recorders of all ranks after each has run ``program``."""
    world = {"0": ("default_pg", range(size)), **(groups or {})}
    recorders = [Recorder(rank, world) for rank in range(size)]
    for recorder in recorders:
        program(recorder)
    return recorders


def piece(name: str, data: bytes) -> EvidenceFile:
    """Return a dump in memory."""
    return EvidenceFile(name, EvidenceKind.DUMP, len(data), lambda: BytesIO(data))


def table(
    recorders: Sequence[Recorder], last: int = 2000, *, active_only: bool = False
) -> DumpTable:
    """Return the table of these ranks' dumps, named as torch names files."""
    return dump_set.read_dumps(
        piece(f"nccl_trace_rank_{each.rank}", written(each.dump(last, active_only=active_only)))
        for each in recorders
    )
