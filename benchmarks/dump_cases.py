"""Accuracy on flight-recorder dumps with known answers: ``python -m benchmarks.dump_cases FOLDER``.

The folder contains ``upstream_cases.py`` (the assertions of torch's own analyzer tests),
``make_dumps.py`` (generates dumps with a fault, and healthy ones that are hard to analyze) and
``nccl_real/`` (dumps of real NCCL jobs). Prints one line per case: right or wrong, the causes found
and expected.
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
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch.distributed.flight_recorder.components.types import COLLECTIVES

from holdfast.core.findings import Level, Verdict
from holdfast.diagnose.dumps import dump_set, rules
from holdfast.diagnose.evidence import EvidenceFile, EvidenceKind

#: Faulty ranks of the real sets, from NVIDIA/nvidia-resiliency-ext
#: (tests/attribution/unit/fr_traces). Those of ``2nd`` were analyzed while the rules were written.
REAL = {
    "gpu_error_1st": {12, 14},
    "lock_gil_1st": {9, 14},
    "gpu_error_2nd": {9, 14},
    "lock_gil_2nd": {10, 15},
}
SYNC = (
    "mismatched-operation",
    "collective-mismatch",
    "rank-skips-collective",
    "rank-guarded-collective",
)
#: Fault of make_dumps.py -> acceptable causes, and the rank that must be named (-1: any).
FAULTS: dict[str, tuple[tuple[str, ...], int | None]] = {
    "missing": (("rank-missing-collective",), 2), "stall": (("rank-missing-collective",), 2),
    "skip": (SYNC, 2), "extra": (SYNC, 2), "type": (SYNC, 2), "size": (("mismatched-shape",), 2),
    "dtype": (("mismatched-dtype",), 2), "order": (("collective-order-inversion",), -1),
    "cycle": (("collective-order-inversion",), -1), "p2p_lost": (("p2p-without-partner",), 0),
    "lag": (("straggler",), 2), "die": (("peer-lost",), 2),
}  # fmt: skip
HEALTHY = (
    ["--fault", "ok"],
    ["--fault", "ok", "--layout", "mixed"],
    ["--fault", "ok", "--timing"],
    ["--fault", "ok", "--layout", "mixed", "--skew-start", "--buffer", "60"],
    ["--fault", "state_skew"],
    ["--fault", "state_skew", "--timing"],
    ["--fault", "ok", "--active-only"],
    ["--fault", "ok", "--no-frames"],
    ["--fault", "p2p_ok"],
    ["--fault", "p2p_ok", "--p2p-at", "3"],
    ["--fault", "p2p_ok", "--buffer", "50"],
    ["--fault", "p2p_ok", "--layout", "mixed", "--skew-start", "--buffer", "70"],
    ["--fault", "ok", "--backend", "gloo"],
    ["--fault", "p2p_ok", "--active-only"],
    ["--fault", "state_skew", "--layout", "mixed"],
    ["--fault", "state_skew", "--active-only"],
)
#: Result of torch's analyzer for a pair of calls -> equivalent causes; "none": no fault.
UPSTREAM = {
    "FULLY_MATCHED": ("none", "network-fabric-fault"),
    "UNDECIDED": ("none", "network-fabric-fault"),
    "COLLECTIVE_STATE_MISMATCH": ("none",),
    "COLLECTIVE_TYPE_MISMATCH": SYNC,
    "SIZE_OR_SYNTAX_MISMATCH": ("mismatched-shape",),
    "COLLECTIVE_DTYPE_MISMATCH": ("mismatched-dtype",),
}


class ScoreBoard:
    """Counts the cases, and prints one line for each."""

    def __init__(self) -> None:
        self.right = self.wrong = 0

    def add(self, name: str, verdict: Verdict, expected: str, *, right: bool) -> None:
        """Count and print one case."""
        self.right += right
        self.wrong += not right
        root = verdict.root
        found = f"{root.cause}, ranks {sorted(named_ranks(verdict))}" if root else "none"
        print(f"{'right' if right else 'WRONG'}  {name:44} found {found}; expected {expected}")


def named_ranks(verdict: Verdict) -> set[int]:
    """Return the ranks that the verdict names."""
    items = [verdict.root, *verdict.suspects] if verdict.root else []
    return {item.subject.rank for item in items if item and item.subject.rank is not None}


def judge_folder(folder: Path) -> Verdict:
    """Analyze all dumps of a folder."""
    files = sorted(folder.iterdir(), reverse=True)  # the order must not matter
    return rules.judge(
        dump_set.read_dumps(
            EvidenceFile(
                path.name, EvidenceKind.DUMP, path.stat().st_size, partial(path.open, "rb")
            )
            for path in files
        )
    )


def score_real_jobs(folder: Path, scores: ScoreBoard) -> None:
    """Score dumps of real jobs: exactly the faulty ranks must be named."""
    for name, faulty in REAL.items():
        if not (folder / "nccl_real" / name).is_dir():
            print(f"skipped  {name}: not in the folder")
            continue
        verdict = judge_folder(folder / "nccl_real" / name)
        scores.add(
            f"real {name}", verdict, f"ranks {sorted(faulty)}", right=named_ranks(verdict) == faulty
        )


def score_generated(folder: Path, scores: ScoreBoard) -> None:
    """Score generated faults, each in several forms, and healthy sets."""
    forms: tuple[list[str], ...] = (
        [],
        ["--timing"],
        ["--active-only"],
        ["--no-frames"],
        ["--buffer", "40"],
    )
    for fault, (causes, rank) in FAULTS.items():
        for form in forms:
            verdict = _judge_generated(folder, ["--fault", fault, "--rank", "2", *form])
            right = verdict.root is not None and verdict.root.cause in causes
            right = right and (rank == -1 or named_ranks(verdict) == {rank})
            scores.add(f"{fault} {' '.join(form)}", verdict, causes[0], right=right)
    for form in ([], ["--skew-start", "--buffer", "60"]):
        verdict = _judge_generated(
            folder, ["--fault", "missing", "--layout", "mixed", *form], ranks=16
        )
        scores.add(
            f"missing mixed {' '.join(form)}", verdict, "rank 2", right=named_ranks(verdict) == {2}
        )
    for form in HEALTHY:
        verdict = _judge_generated(folder, form)
        scores.add(f"healthy {' '.join(form)}", verdict, "none", right=verdict.root is None)


def _judge_generated(folder: Path, arguments: list[str], ranks: int = 8) -> Verdict:
    with tempfile.TemporaryDirectory() as out:
        command = [
            sys.executable,
            str(folder / "make_dumps.py"),
            out,
            "-W",
            str(ranks),
            "-N",
            "120",
            *arguments,
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return judge_folder(Path(out))


def score_upstream(folder: Path, scores: ScoreBoard) -> None:
    """Score the assertions of torch's own analyzer tests."""
    cases = _import_file(folder / "upstream_cases.py")
    groups = {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}}
    for name, one, other, expected in cases.CASES:
        verdict = _judge_entries([[one], [other]], [groups, groups])
        cause = verdict.root.cause if verdict.root else "none"
        scores.add(f"upstream {name}", verdict, expected, right=cause in UPSTREAM[expected])
    for name, first, second, rows in cases.DBCASES:
        verdict = _judge_entries(
            [_number_entries(first), _number_entries(second)], [cases.pgc(0), cases.pgc(1)]
        )
        mismatched = any(passed is False for _, _, passed in rows)
        cause = verdict.root.cause if verdict.root else "none"
        right = cause == "mismatched-shape" if mismatched else cause == "none"
        scores.add(
            f"upstream {name}", verdict, "mismatched-shape" if mismatched else "none", right=right
        )


def score_upstream_pairs(folder: Path, scores: ScoreBoard) -> None:
    """Score each operation with itself, and each backend: no fault; unknown ones are unseen."""
    cases = _import_file(folder / "upstream_cases.py")
    groups = {"0": {"name": "0", "desc": "default", "ranks": "[0, 1]"}}
    for name in sorted(COLLECTIVES):
        sizes = {"reduce_scatter": [[8]], "all_gather": [[32]]}
        out = next((size for word, size in sizes.items() if word in name), cases.A)
        call = cases.ev(name, cases.A, out)
        verdict = _judge_entries([[call], [copy.deepcopy(call)]], [groups, groups])
        scores.add(f"upstream self-match {name}", verdict, "no fault", right=not at_fault(verdict))
    for backend in (*cases.BACKENDS_OK, *cases.BACKENDS_BAD):
        call = cases.ev("all_reduce", cases.A, cases.A, "completed", be=backend)
        verdict = _judge_entries([[call], [copy.deepcopy(call)]], [groups, groups])
        reported = any(backend in text for text in verdict.unseen)
        right = not at_fault(verdict) and reported is (backend in cases.BACKENDS_BAD)
        scores.add(
            f"upstream backend {backend}",
            verdict,
            "no fault; unknown backends in unseen",
            right=right,
        )


def at_fault(verdict: Verdict) -> bool:
    """Return whether the verdict is an error or names a rank."""
    return verdict.root is not None and (
        verdict.root.level is Level.ERROR or bool(named_ranks(verdict))
    )


def score_collector_state(scores: ScoreBoard) -> None:
    """Check that reading dumps restores the garbage collector, also after a failure."""
    complete = pickle.dumps({"entries": [], "version": "2.8", "pg_config": {}})
    for was_on in (True, False):
        for data in (complete, complete[:-3]):
            (gc.enable if was_on else gc.disable)()
            verdict = rules.judge(
                dump_set.read_dumps(
                    [
                        EvidenceFile(
                            "dump0",
                            EvidenceKind.DUMP,
                            len(data),
                            lambda data=data: io.BytesIO(data),
                        )
                    ]
                )
            )
            state = "complete" if data is complete else "truncated"
            name = f"upstream loader, {'on' if was_on else 'off'}, {state}"
            scores.add(name, verdict, "collector restored", right=gc.isenabled() is was_on)
    gc.enable()


def _number_entries(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Number the entries as torch does: upstream's tests leave 0; a coalesced block shares one."""
    entries = copy.deepcopy(entries)
    counts: dict[str, int] = {}
    for at, each in enumerate(entries):
        group = each["process_group"][0]
        each["collective_seq_id"] = str(counts.get(group, 0) + 1)
        inside = any(later["profiling_name"].endswith("coalesced") for later in entries[at + 1 :])
        inside = inside and each["profiling_name"].endswith(("broadcast", "_oop"))
        counts[group] = counts.get(group, 0) + (not inside)
    return entries


def _judge_entries(entries: list[list[dict[str, Any]]], groups: list[dict[str, Any]]) -> Verdict:
    def evidence() -> Iterator[EvidenceFile]:
        for rank, mine in enumerate(entries):
            made = {"version": "2.8", "pg_config": groups[rank], "entries": mine}
            data = pickle.dumps(made, protocol=2)
            yield EvidenceFile(
                f"dump_rank_{rank}",
                EvidenceKind.DUMP,
                len(data),
                lambda data=data: io.BytesIO(data),
            )

    return rules.judge(dump_set.read_dumps(evidence()))


def _import_file(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> int:
    """Score everything in the folder; return 1 if a case is wrong."""
    scores = ScoreBoard()
    for part in (score_real_jobs, score_upstream, score_upstream_pairs, score_generated):
        part(folder, scores)
    score_collector_state(scores)
    print(f"{scores.right} right, {scores.wrong} wrong")
    return int(scores.wrong > 0)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m benchmarks.dump_cases FOLDER")
    sys.exit(main(Path(sys.argv[1])))
