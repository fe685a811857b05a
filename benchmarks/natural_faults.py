"""Verdicts on faulty programs in the style of public training scripts, and on healthy odd jobs.

Usage: ``python -m benchmarks.natural_faults [FOLDER] [--only NAME] [--json FILE]``. ``--only`` may
be repeated. FOLDER has one script per case (`natural_cases` describes the format); the default is
tests/faults/natural. Each script runs alone under ``holdfast run --max-restarts 0``: a faulty one
with ``--act-after 8s``, a healthy one with the default, as its pauses are longer than 8 s. The peer
of a case that crashes is the rank that torchrun's failure summary names as root cause.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import psutil

from benchmarks.natural_cases import Case, Outcome, read_cases, score

OWN = Path(__file__).parents[1] / "tests" / "faults" / "natural"
ACT_AFTER = "8s"
PEER_LIMIT_S = 60.0
_END_S = 20.0


def run_holdfast(case: Case) -> tuple[Outcome, str]:
    """Return the score of the verdict on a case, and the output."""
    with tempfile.TemporaryDirectory(prefix="natural-") as folder:
        report = Path(folder, "report.json")
        options = ["--max-restarts", "0", "--run-dir", f"{folder}/runs", "--json-report", report]
        if case.ending != "well":
            options += ["--act-after", ACT_AFTER]
        command = [sys.executable, "-m", "holdfast", "run", *_started(case, *map(str, options))]
        began = time.monotonic()
        status, output = run_limited(command, Path(folder), case.limit_s)
        wall_s = time.monotonic() - began
        found = json.loads(report.read_text()) if report.exists() else {}
    return score(case, found, status, output, wall_s), output


def run_torchrun(case: Case, limit_s: float = PEER_LIMIT_S) -> tuple[int | None, str]:
    """Return torchrun's exit status, None if still running after ``limit_s``, and its output."""
    command = [sys.executable, "-m", "torch.distributed.run", *_started(case)]
    with tempfile.TemporaryDirectory(prefix="natural-") as folder:
        return run_limited(command, Path(folder), limit_s)


def peer_rank(output: str) -> int | None:
    """Return the rank that torchrun's failure summary names as root cause."""
    named = re.search(r"Root Cause.*?rank\s*:\s*(\d+)", output, re.DOTALL)
    return int(named[1]) if named else None


def _started(case: Case, *options: str) -> list[str]:
    number = f"--nproc-per-node={case.processes}"
    return ["--standalone", number, *options, str(case.path.resolve()), *case.args]


def run_limited(command: Sequence[str], folder: Path, limit_s: float) -> tuple[int | None, str]:
    """Run a launcher in ``folder``; end it and its processes after ``limit_s``."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    file = folder / "output.txt"
    with file.open("wb") as out:
        process = psutil.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            status: int | None = process.wait(limit_s)
        except psutil.TimeoutExpired:
            status = None
            _end(process)
    return status, file.read_text(errors="replace")


def _end(process: psutil.Process) -> None:
    """Terminate a launcher, then kill what is left of its processes."""
    family = [process, *process.children(recursive=True)]
    process.terminate()
    _, left = psutil.wait_procs(family, timeout=_END_S)
    for each in left:
        each.kill()
    psutil.wait_procs(left, timeout=_END_S)


def measure(case: Case, *, with_peer: bool) -> tuple[Outcome, str]:
    """Run a case under holdfast and, if it crashes, under torchrun."""
    outcome, output = run_holdfast(case)
    if case.ending == "crash" and with_peer:
        named = peer_rank(run_torchrun(case)[1])
        right = named in case.ranks if case.ranks else None
        outcome = replace(outcome, peer_rank=named, peer_right=right)
    return outcome, output


def _mark(right: bool | None) -> str:  # noqa: FBT001 - a cell of the table
    return {None: "-", True: "ok", False: "WRONG"}[right]


def row(outcome: Outcome) -> str:
    """Return a line of the table."""
    if outcome.ending == "well":
        verdict = "ACCUSED" if outcome.accused else "suspected" if outcome.suspected else "ok"
        cells = f"{verdict:19}"
    else:
        rights = (outcome.cause_right, outcome.rank_right, outcome.line_right)
        cells = " ".join(f"{_mark(right):6}" for right in rights)
    peer = "" if outcome.peer_rank is None else f"{outcome.peer_rank} {_mark(outcome.peer_right)}"
    wrong = "" if outcome.right else f" {outcome.cause or '-'}: {outcome.message[:70]}"
    seconds = f"{outcome.seconds:6.1f}"
    return f"{outcome.case:36} {outcome.ending:6} {seconds} {cells} {peer:9}{wrong}".rstrip()


HEAD = f"{'case':36} {'ending':6} {'s':>6} {'cause':6} {'rank':6} {'line':6} torchrun"


def totals(outcomes: Sequence[Outcome]) -> str:
    """Return the lines below the table."""
    faulty = [each for each in outcomes if each.ending != "well"]
    healthy = [each for each in outcomes if each.ending == "well"]
    lines = [f"verdict given: {sum(each.cause is not None for each in faulty)} of {len(faulty)}"]
    for name in ("cause", "rank", "line", "peer"):
        rights = [getattr(each, f"{name}_right") for each in faulty]
        counted = [right for right in rights if right is not None]
        label = "torchrun's rank" if name == "peer" else name
        lines.append(f"{label} right: {sum(counted)} of {len(counted)}")
    lines += [
        f"all right: {sum(each.right for each in faulty)} of {len(faulty)}",
        f"healthy jobs accused: {sum(each.accused for each in healthy)} of {len(healthy)}",
        f"healthy jobs suspected for a while: {sum(each.suspected for each in healthy)}",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] = ()) -> int:
    """Run the cases, print the table and the totals."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.natural_faults")
    parser.add_argument("folder", nargs="?", type=Path, default=OWN)
    parser.add_argument("--only", action="append", metavar="NAME", help="run only this case")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--no-peer", action="store_true", help="do not run torchrun")
    parser.add_argument("--verbose", action="store_true", help="print the output of wrong verdicts")
    options = parser.parse_args(arguments)
    cases = read_cases(options.folder)
    chosen = [case for case in cases if not options.only or case.name in options.only]
    if not chosen:
        print(f"{options.folder}: no such case", file=sys.stderr)
        return 2
    print(HEAD)
    outcomes = []
    for case in chosen:
        outcome, output = measure(case, with_peer=not options.no_peer)
        outcomes.append(outcome)
        print(row(outcome), flush=True)
        if options.verbose and not outcome.right:
            print(output)
        if options.json:
            options.json.write_text(json.dumps([asdict(each) for each in outcomes], indent=1))
    print(totals(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
