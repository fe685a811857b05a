"""Conversion benchmark: DeepSpeed's and torch's converters vs. `holdfast ckpt convert`.

ZeRO-2 and ZeRO-3 (bf16, two ranks, written by DeepSpeed) to fp32 safetensors next to
`zero_to_fp32.py`, and DCP to one file next to torch's `dcp_to_torch`; each is its own process,
interleaved, medians. holdfast reads the result back, compares it with the source, and syncs it; the
others do neither. `cp` with a sync, of as many bytes as are written, shows the speed of the disk.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import measure_process

_SOURCE = Path(__file__).with_name("conversion_source.py")
_MILLIONS_A_LAYER = 8.39
_PLAIN = ["-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--millions", type=int, nargs="*", default=[194], help="weights of the models"
    )
    parser.add_argument("--forms", nargs="*", default=["zero2", "zero3", "dcp"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to write (default: a temporary folder)")
    options = parser.parse_args(arguments if arguments is not None else [])
    for millions in options.millions:
        for form in options.forms:
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                _compare(Path(folder), form, millions, options.rounds)


def _compare(folder: Path, form: str, millions: int, rounds: int) -> None:
    source, target = folder / "source", folder / "target"
    _save_source(source, form, millions)
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    commands = _commands(source, target, form)
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    written = 0
    for _ in range(rounds):
        for name, command in commands.items():
            subprocess.run(["sync"], check=True)
            cost = measure_process(command)
            costs[name].append((cost.wall_s, cost.memory_mib))
            written = written or _size(target)
            _remove(target)
        costs.setdefault("copy", []).append(_copy_file(source, target, written))
    print(
        f"{form}, {millions} million weights, {size / 1e9:.2f} GB to {written / 1e9:.2f} GB, "
        f"medians of {rounds}"
    )
    medians = {
        name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in costs.items()
    }
    for name, (seconds, mib) in medians.items():
        print(
            f"  {name:28} {seconds:7.2f} s  {written / seconds / 1e9:5.2f} GB/s  peak {mib:5.0f} "
            "MiB"
        )
    (ours, our_mib), (peer, peer_mib) = (
        medians["holdfast"],
        medians[next(name for name in commands if name != "holdfast")],
    )
    print(
        f"peer / holdfast, time           {peer / ours:.2f}   (target: at least 2, or within 1.2 "
        "of the copy)"
    )
    print(f"holdfast / copy, time           {ours / medians['copy'][0]:.2f}")
    print(f"holdfast / peer, memory         {our_mib / peer_mib:.2f}   (target: at most 0.3)")


def _commands(source: Path, target: Path, form: str) -> dict[str, list[str]]:
    to = "torch" if form == "dcp" else "safetensors"
    ours = [
        sys.executable,
        "-m",
        "holdfast",
        "ckpt",
        "convert",
        str(source),
        str(target),
        "--to",
        to,
    ]
    if form == "dcp":
        return {
            "holdfast": ours,
            "dcp_to_torch": [sys.executable, *_PLAIN, str(source), str(target)],
        }
    theirs = str(source / "zero_to_fp32.py")
    return {
        "holdfast": [*ours, "--dtype", "float32"],
        "zero_to_fp32.py": [
            sys.executable,
            theirs,
            str(source),
            str(target),
            "--safe_serialization",
        ],
    }


def _save_source(folder: Path, form: str, millions: int) -> None:
    layers = ["--layers", str(round(millions / _MILLIONS_A_LAYER))]
    light = ["--no-moments"] if millions > 500 else []
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    command = [*launcher, str(_SOURCE), str(folder), form, *layers, *light]
    subprocess.run(command, check=True, capture_output=True)


def _copy_file(source: Path, target: Path, written: int) -> tuple[float, float]:
    """Measure a synced copy of as many bytes as are written."""
    large = max(
        (path for path in source.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size
    )
    blocks, block = written // (8 << 20), 8 << 20
    command = ["dd", f"if={large}", f"of={target}", f"bs={block}", "conv=fsync", "status=none"]
    duration_s, done = 0.0, 0
    while done < blocks:
        count = min(blocks - done, large.stat().st_size // block)
        duration_s += measure_process([*command, f"count={count}"]).wall_s
        done += count
    _remove(target)
    return duration_s, 0.0


def _size(target: Path) -> int:
    files = [target] if target.is_file() else [path for path in target.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


def _remove(target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    else:
        target.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
