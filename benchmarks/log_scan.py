"""Speed of searching a large log for all signals, next to ``rg`` and ``grep -E``.

The log is that of a job of 64 ranks in one file: steps, NCCL's start-up lines, data and memory
messages, and at its end one rank that fails and the timeouts of the others. HOLDFAST_BENCH_LOG_MB
sets its size (1000). Every program runs on one core, the file is in the page cache, and CPU times
are compared. The peers search for the same expressions, but only count lines; holdfast also reports
which expression matched where.

holdfast is measured twice: as it reads logs, where of the expressions that match many lines of a
healthy log only the first match in each block of 512 KiB is reported, that of the most frequent
ones (such as step numbers) only within the first 64 KiB of a block, which has the target; and with
every expression searched everywhere and every match reported.

Finally, ``holdfast diagnose`` reads a log of HOLDFAST_BENCH_LOG_WHOLE_MB (default: the same size;
the memory target is for 10000), from the file to the verdict; then a folder of
HOLDFAST_BENCH_SMALL_FILES (100000) logs of 20 lines each.
"""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from holdfast.diagnose.logs.reader import FREQUENT_SIGNALS, SPARSE_SIGNALS
from holdfast.diagnose.logs.scan import Scanner
from holdfast.diagnose.logs.signals import ROWS

RANKS = 64
TARGET_MB_S = 150
MOST_MIB = 64
PATTERNS = [(row.name, row.find or row.expression, row.ignore_case) for row in ROWS]
#: grep is faster in a single-byte locale.
PLAIN = {**os.environ, "LC_ALL": "C"}
_UNIT_LINES = 40_000
SMALL_LINES = 20
SMALL_TARGET_S = 20
_FAILURE = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 212, in train\n'
    "KeyError: 'input_ids'\n"
)
#: The peers search a shorter log of the same kind: grep needs minutes for a gigabyte.
PEERS_BYTES = 50_000_000


def _line(rng: random.Random, number: int) -> str:
    rank, step = rng.randrange(RANKS), number // RANKS
    clock = f"{step // 3600 % 24:02d}:{step // 60 % 60:02d}:{step % 60:02d}"
    at = f"2026-03-01 {clock},{rng.randrange(1000):03d}"
    kind = rng.random()
    if kind < 0.70:
        text = (
            f"step {step}/200000 | loss {2 + rng.random():.4f} | lr 3.00e-04 "
            f"| norm {rng.random():.3f} | {at[-3:]} ms"
        )
    elif kind < 0.80:
        text = (
            f"shard {rng.randrange(4096):05d}.tar: {rng.randrange(9000)} samples, "
            f"waited {rng.random():.3f} s for data"
        )
    elif kind < 0.90:
        text = (
            f"memory: allocated {60 + rng.random():.2f} GiB, "
            f"reserved {70 + rng.random():.2f} GiB, no retries"
        )
    elif kind < 0.9995:
        peers = f"{rank}[{rank % 8}] -> {(rank + 1) % RANKS}[{rank % 8}]"
        text = f"NCCL INFO Channel {rank % 24:02d}/0 : {peers} [send]"
    else:
        text = f"saving checkpoint to /checkpoints/run/step-{step} ..."
    return f"[rank{rank}]: {at} - trainer - INFO - {text}"


def _end() -> str:
    """Return the last lines: rank 17 fails, and the watchdogs of all ranks time out."""
    lines = [f"[rank17]: {line}" for line in _FAILURE.splitlines()]
    lines += [
        f"[rank{rank}]:[E301 12:00:00.1 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught "
        "collective operation "
        "timeout: WorkNCCL(SeqNum=9001, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000)"
        for rank in range(RANKS)
    ]
    return "\n".join(lines) + "\n"


def write_log(path: Path, size_bytes: int) -> int:
    """Write the log by repeating a block of lines; return its size in bytes."""
    rng = random.Random(64)  # noqa: S311 - reproducible
    unit = "".join(_line(rng, number) + "\n" for number in range(_UNIT_LINES)).encode()
    written = 0
    with path.open("wb") as file:
        while written < size_bytes:
            written += file.write(unit[: size_bytes - written])
        written += file.write(b"\n" + _end().encode())
    return written


def write_small_files(folder: Path, count: int) -> None:
    """Write the logs of ``count`` ranks, 1000 in each subfolder; rank 17 fails."""
    rng = random.Random(64)  # noqa: S311 - reproducible
    lines = [_line(rng, number).partition(": ")[2] + "\n" for number in range(5000)]
    for rank in range(count):
        path = folder / f"node{rank // 1000:03d}" / f"rank_{rank}.log"
        path.parent.mkdir(exist_ok=True)
        begin = rng.randrange(len(lines) - SMALL_LINES)
        path.write_text("".join(lines[begin : begin + SMALL_LINES]) + _FAILURE * (rank == 17))


def scan(path: Path, sparse: Sequence[str]) -> None:
    """Search, and print hits, lines and CPU seconds; runs in the child process."""
    began = time.process_time()
    scanner = Scanner(PATTERNS, sparse=frozenset(sparse), frequent=FREQUENT_SIGNALS)
    with path.open("rb", buffering=0) as stream:
        hits = sum(1 for _ in scanner.scan(stream))
    print(hits, scanner.lines, time.process_time() - began)


def _cpu_seconds(command: list[str]) -> tuple[float, str]:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=PLAIN)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode in (0, 1), done.stderr[-300:]
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def _run_scanner(path: Path, sparse: Sequence[str]) -> tuple[float, int, float]:
    """Return CPU seconds (with compilation, without Python's start), hits and peak MiB."""
    call = f"scan(Path({str(path)!r}), {sorted(sparse)!r})"
    peak = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    script = f"from pathlib import Path; from benchmarks.log_scan import scan; {call}; {peak}"
    _, output = _cpu_seconds([sys.executable, "-c", script])
    hits, _lines, seconds, mebibytes = output.split()
    return float(seconds), int(hits), float(mebibytes)


def alternation(*, posix: bool) -> str:
    """Return all rows as one expression without group names; with ``posix``, case-sensitive."""
    each = []
    for _, expression, ignore in PATTERNS:
        plain = re.sub(r"\(\?P<\w+>", "(?:", expression)
        if posix:
            plain = _BRACKET.sub(_posix_bracket, plain).replace("(?:", "(").replace(r"\d", "[0-9]")
            plain = re.sub(r"([}*+])\?", r"\1", plain)
        else:
            plain = re.sub(r"\\([^A-Za-z0-9])", _needed_escape, plain)
            plain = re.sub(
                r"[^\x00-\x7f]+",
                lambda word: "".join(f"\\x{byte:02x}" for byte in word[0].encode()),
                plain,
            )
            plain = f"(?i:{plain})" if ignore else plain
        each.append(plain)
    return "|".join(each)


def _needed_escape(found: re.Match[str]) -> str:
    """Keep only escapes that Rust's expressions allow."""
    return found[0] if found[1] in r"\.+*?()|[]{}^$#&-~" else found[1]


_BRACKET = re.compile(r"(?<!\\)\[(\^?)((?:\\.|[^\]\\])+)\]")
_CLASSES = {r"\d": "0-9", r"\w": "A-Za-z0-9_", r"\s": "[:space:]", r"\n": ""}


def _posix_bracket(found: re.Match[str]) -> str:
    """Rewrite a set for POSIX: literal backslashes, ``]`` first, ``-`` last."""
    inside = re.sub(r"\\.", lambda part: _CLASSES.get(part[0], part[0][1:]), found[2])
    closing = "]" if r"\]" in found[2] else ""
    dash = "-" if r"\-" in found[2] else ""
    return f"[{found[1]}{closing}{inside.replace(']', '') if closing else inside}{dash}]"


def _run_peers(path: Path) -> dict[str, float]:
    """Return the CPU seconds of the installed peers."""
    commands = {"grep -E": ["grep", "-c", "-a", "-E", "-e", alternation(posix=True), str(path)]}
    if shutil.which("rg"):
        # One byte per character, as for grep; a limit large enough for the whole alternation.
        options = ["--no-unicode", "--regex-size-limit=1G", "--dfa-size-limit=1G"]
        commands["rg"] = [
            "rg",
            "-c",
            "-a",
            "-j1",
            "--no-config",
            *options,
            "-e",
            alternation(posix=False),
            str(path),
        ]
    else:
        print("rg: not installed, skipped")
    return {name: _cpu_seconds(command)[0] for name, command in commands.items()}


def _diagnose(path: Path) -> tuple[float, float, str]:
    """Return seconds, peak MiB and message of ``holdfast diagnose``."""
    script = (
        "import resource, sys, time; from holdfast.diagnose.pipeline import diagnose; began = "
        "time.monotonic(); "
        "root = diagnose([sys.argv[1]]).verdict.root; print(time.monotonic() - began); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024); print(root.message if "
        "root else 'nothing')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    seconds, peak, message = done.stdout.splitlines()
    return float(seconds), float(peak), message


def main() -> None:
    """Print speed, memory and the ratios."""
    size = int(os.environ.get("HOLDFAST_BENCH_LOG_MB", "1000")) * 1_000_000
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.log"
        written = write_log(path, size) / 1e6
        seconds, hits, peak = _run_scanner(path, sorted(SPARSE_SIGNALS))
        print(f"{written:.0f} MB of {RANKS} ranks, {len(PATTERNS)} expressions, one core, CPU time")
        print(
            f"holdfast: {written / seconds:.0f} MB/s, {hits} hits (target {TARGET_MB_S} MB/s); "
            f"peak memory {peak:.0f} MiB (target {MOST_MIB})"
        )
        unsampled_s, hits, peak = _run_scanner(path, ())
        print(
            f"holdfast, every match reported: {written / unsampled_s:.0f} MB/s, {hits} hits, peak "
            f"memory {peak:.0f} MiB"
        )
        part = Path(folder) / "part.log"
        portion = write_log(part, min(size, PEERS_BYTES)) / 1e6
        for name, other in _run_peers(part).items():
            ratio = (written / seconds) / (portion / other)
            print(
                f"{name}: {portion / other:.0f} MB/s (over {portion:.0f} MB); holdfast is "
                f"{ratio:.1f} times as fast"
            )
        whole = int(os.environ.get("HOLDFAST_BENCH_LOG_WHOLE_MB", "0")) * 1_000_000
        written = write_log(path, whole) / 1e6 if whole else written
        seconds, peak, message = _diagnose(path)
        print(
            f"holdfast diagnose: {written:.0f} MB in {seconds:.1f} s ({written / seconds:.0f} "
            "MB/s), "
            f"peak memory {peak:.0f} MiB (target {MOST_MIB}): {message}"
        )
        _diagnose_small_files(Path(folder) / "ranks")


def _diagnose_small_files(folder: Path) -> None:
    count = int(os.environ.get("HOLDFAST_BENCH_SMALL_FILES", "100000"))
    folder.mkdir()
    write_small_files(folder, count)
    seconds, peak, message = _diagnose(folder)
    print(
        f"holdfast diagnose: {count} files in {seconds:.1f} s (target {SMALL_TARGET_S} s for "
        f"100000), peak memory {peak:.0f} MiB: {message}"
    )


if __name__ == "__main__":
    main()
