"""Judges a folder of flight-recorder material with known answers: ``python -m benchmarks.dump_cases FOLDER``.

The folder holds ``upstream_cases.py`` (what torch's own analyzer tests assert), ``make_dumps.py`` (dumps with a fault,
or without one and hard to read) and ``nccl_real/`` (dumps of real NCCL jobs). One line a case: right or wrong, what was
found and what was wanted.
"""

from __future__ import annotations

import copy
import gc
import importlib.util
import io
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.distributed.flight_recorder.components.types import COLLECTIVES

from holdfast.facts import dumps
from holdfast.facts.evidence import Kind, Piece
from holdfast.findings import Level, Verdict
from holdfast.rules import dumps as rules

#: Ranks at which the faults of the real sets were injected. Those of ``2nd`` lie beside the others in the tests of
#: NVIDIA/nvidia-resiliency-ext (tests/attribution/unit/fr_traces), and were first judged when the rules were written.
REAL = {"gpu_error_1st": {12, 14}, "lock_gil_1st": {9, 14}, "gpu_error_2nd": {9, 14}, "lock_gil_2nd": {10, 15}}
SYNC = ("mismatched-operation", "collective-mismatch", "rank-skips-collective", "rank-guarded-collective")
#: Fault of make_dumps.py -> causes that are right, and the rank that must be named (None: no rank may be).
FAULTS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "missing": (("rank-missing-collective",), 2), "stall": (("rank-missing-collective",), 2),
    "skip": (SYNC, 2), "extra": (SYNC, 2), "type": (SYNC, 2), "size": (("mismatched-shape",), 2),
    "dtype": (("mismatched-dtype",), 2), "order": (("collective-order-inversion",), -1),
    "cycle": (("collective-order-inversion",), -1), "p2p_lost": (("p2p-without-partner",), 0),
    "lag": (("straggler",), 2), "die": (("peer-lost",), 2),
}  # fmt: skip
HEALTHY = (
    ["--fault", "ok"], ["--fault", "ok", "--layout", "mixed"], ["--fault", "ok", "--timing"],
    ["--fault", "ok", "--layout", "mixed", "--skew-start", "--buffer", "60"], ["--fault", "state_skew"],
    ["--fault", "state_skew", "--timing"], ["--fault", "ok", "--active-only"], ["--fault", "ok", "--no-frames"],
    ["--fault", "p2p_ok"], ["--fault", "p2p_ok", "--p2p-at", "3"], ["--fault", "p2p_ok", "--buffer", "50"],
    ["--fault", "p2p_ok", "--layout", "mixed", "--skew-start", "--buffer", "70"],
    ["--fault", "ok", "--backend", "gloo"], ["--fault", "p2p_ok", "--active-only"],
    ["--fault", "state_skew", "--layout", "mixed"], ["--fault", "state_skew", "--active-only"],
)  # fmt: skip
#: What torch's analyzer says of a pair of calls -> causes that say as much; "none" where nothing is wrong.
UPSTREAM = {
    "FULLY_MATCHED": ("none", "network-fabric-fault"), "UNDECIDED": ("none", "network-fabric-fault"),
    "COLLECTIVE_STATE_MISMATCH": ("none",), "COLLECTIVE_TYPE_MISMATCH": SYNC,
    "SIZE_OR_SYNTAX_MISMATCH": ("mismatched-shape",), "COLLECTIVE_DTYPE_MISMATCH": ("mismatched-dtype",),
}  # fmt: skip


class Score:
    """Counts, and prints one line a case."""

    def __init__(self) -> None:
        self.right = self.wrong = 0

    def case(self, name: str, verdict: Verdict, wanted: str, *, right: bool) -> None:
        """Print one case."""
        self.right += right
        self.wrong += not right
        root = verdict.root
        found = f"{root.cause}, ranks {sorted(named(verdict))}" if root else "none"
        print(f"{'right' if right else 'WRONG'}  {name:44} found {found}; wanted {wanted}")


def named(verdict: Verdict) -> set[int]:
    """All ranks that the verdict accuses."""
    items = [verdict.root, *verdict.suspects] if verdict.root else []
    return {item.subject.rank for item in items if item and item.subject.rank is not None}


def judge_folder(folder: Path) -> Verdict:
    """The verdict over all dumps of a folder."""

    def opener(path: Path) -> Callable[[], Any]:
        return lambda: path.open("rb")

    files = sorted(folder.iterdir(), reverse=True)  # any order must do
    return rules.judge(dumps.read(Piece(path.name, Kind.DUMP, path.stat().st_size, opener(path)) for path in files))


def real(folder: Path, score: Score) -> None:
    """The dumps of real jobs: all guilty ranks, and nobody else."""
    for name, guilty in REAL.items():
        if not (folder / "nccl_real" / name).is_dir():
            print(f"left out  {name}: not in the folder")
            continue
        verdict = judge_folder(folder / "nccl_real" / name)
        score.case(f"real {name}", verdict, f"ranks {sorted(guilty)}", right=named(verdict) == guilty)


def made(folder: Path, score: Score) -> None:
    """Faults, each in several forms, and sets in which nothing is wrong."""
    forms: tuple[list[str], ...] = ([], ["--timing"], ["--active-only"], ["--no-frames"], ["--buffer", "40"])
    for fault, (causes, rank) in FAULTS.items():
        for form in forms:
            verdict = _made(folder, ["--fault", fault, "--rank", "2", *form])
            right = verdict.root is not None and verdict.root.cause in causes
            right = right and (rank == -1 or named(verdict) == {rank})
            score.case(f"{fault} {' '.join(form)}", verdict, causes[0], right=right)
    for form in ([], ["--skew-start", "--buffer", "60"]):
        verdict = _made(folder, ["--fault", "missing", "--layout", "mixed", *form], ranks=16)
        score.case(f"missing mixed {' '.join(form)}", verdict, "rank 2", right=named(verdict) == {2})
    for form in HEALTHY:
        verdict = _made(folder, form)
        score.case(f"healthy {' '.join(form)}", verdict, "none", right=verdict.root is None)


def _made(folder: Path, arguments: list[str], ranks: int = 8) -> Verdict:
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, str(folder / "make_dumps.py"), out, "-W", str(ranks), "-N", "120", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return judge_folder(Path(out))


def upstream(folder: Path, score: Score) -> None:
    """What torch's own tests assert of its analyzer."""
    cases = _module(folder / "upstream_cases.py")
    groups = {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}}
    for name, one, other, wanted in cases.CASES:
        verdict = _judged([[one], [other]], [groups, groups])
        cause = verdict.root.cause if verdict.root else "none"
        score.case(f"upstream {name}", verdict, wanted, right=cause in UPSTREAM[wanted])
    for name, first, second, rows in cases.DBCASES:
        verdict = _judged([_numbered(first), _numbered(second)], [cases.pgc(0), cases.pgc(1)])
        mismatched = any(passed is False for _, _, passed in rows)
        cause = verdict.root.cause if verdict.root else "none"
        right = cause == "mismatched-shape" if mismatched else cause == "none"
        score.case(f"upstream {name}", verdict, "mismatched-shape" if mismatched else "none", right=right)


def upstream_pairs(folder: Path, score: Score) -> None:
    """Each operation against itself, and each backend: what matches is no fault, and an unknown backend is said."""
    cases = _module(folder / "upstream_cases.py")
    groups = {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}}
    for name in sorted(COLLECTIVES):
        sizes = {"reduce_scatter": [[8]], "all_gather": [[32]]}
        out = next((size for word, size in sizes.items() if word in name), cases.A)
        call = cases.ev(name, cases.A, out)
        verdict = _judged([[call], [copy.deepcopy(call)]], [groups, groups])
        score.case(f"upstream self-match {name}", verdict, "no fault", right=not at_fault(verdict))
    for backend in (*cases.BACKENDS_OK, *cases.BACKENDS_BAD):
        call = cases.ev("all_reduce", cases.A, cases.A, "completed", be=backend)
        verdict = _judged([[call], [copy.deepcopy(call)]], [groups, groups])
        doubted = any(backend in text for text in verdict.unseen)
        right = not at_fault(verdict) and doubted is (backend in cases.BACKENDS_BAD)
        score.case(f"upstream backend {backend}", verdict, "no fault, doubted where unknown", right=right)


def at_fault(verdict: Verdict) -> bool:
    """True where the verdict says for certain that something is wrong, or accuses a rank."""
    return verdict.root is not None and (verdict.root.level is Level.ERROR or bool(named(verdict)))


def upstream_loader(score: Score) -> None:
    """The garbage collector is as it was, after dumps were read and after they could not be."""
    whole = pickle.dumps({"entries": [], "version": "2.8", "pg_config": {}})
    for was_on in (True, False):
        for data in (whole, whole[:-3]):
            (gc.enable if was_on else gc.disable)()
            verdict = rules.judge(
                dumps.read([Piece("dump0", Kind.DUMP, len(data), lambda data=data: io.BytesIO(data))])
            )
            name = f"upstream loader, {'on' if was_on else 'off'}, {'whole' if data is whole else 'cut'}"
            score.case(name, verdict, "collector as before", right=gc.isenabled() is was_on)
    gc.enable()


def _numbered(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The entries with numbers as torch gives them: upstream's tests leave them 0, and a block shares one."""
    entries = copy.deepcopy(entries)
    counts: dict[str, int] = {}
    for at, each in enumerate(entries):
        group = each["process_group"][0]
        each["collective_seq_id"] = str(counts.get(group, 0) + 1)
        inside = any(later["profiling_name"].endswith("coalesced") for later in entries[at + 1 :])
        inside = inside and each["profiling_name"].endswith(("broadcast", "_oop"))
        counts[group] = counts.get(group, 0) + (not inside)
    return entries


def _judged(entries: list[list[dict[str, Any]]], groups: list[dict[str, Any]]) -> Verdict:
    def pieces() -> Iterator[Piece]:
        for rank, mine in enumerate(entries):
            made = {"version": "2.8", "pg_config": groups[rank], "entries": mine}
            data = pickle.dumps(made, protocol=2)
            yield Piece(f"dump_rank_{rank}", Kind.DUMP, len(data), lambda data=data: io.BytesIO(data))

    return rules.judge(dumps.read(pieces()))


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> int:
    """Judge everything in the folder; 1 where anything is wrong."""
    score = Score()
    for part in (real, upstream, upstream_pairs, made):
        part(folder, score)
    upstream_loader(score)
    print(f"{score.right} right, {score.wrong} wrong")
    return int(score.wrong > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.dump_cases FOLDER")
    sys.exit(main(Path(sys.argv[1])))
