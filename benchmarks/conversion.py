"""Checkpoints converted: DeepSpeed's and torch's own converters, and `holdfast ckpt convert`.

ZeRO-2 and ZeRO-3 (bf16, two ranks, made by DeepSpeed itself) to fp32 safetensors next to `zero_to_fp32.py`, and DCP to
one file next to torch's `dcp_to_torch`; each a process of its own, interleaved, medians. Ours reads back all it wrote
and compares it with the source before it says so, and syncs it; the others do neither. `cp` with a sync, of as many
bytes as are written, says what the disk can do.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_SOURCE = Path(__file__).with_name("conversion_source.py")
_MILLIONS_A_LAYER = 8.39
_PLAIN = ["-m", "torch.distributed.checkpoint.format_utils", "dcp_to_torch"]


def main(arguments: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--millions", type=int, nargs="*", default=[194], help="weights of the models")
    parser.add_argument("--forms", nargs="*", default=["zero2", "zero3", "dcp"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", help="where to write (the temporary folder)")
    told = parser.parse_args(arguments if arguments is not None else [])
    for millions in told.millions:
        for form in told.forms:
            with tempfile.TemporaryDirectory(dir=told.folder) as folder:
                _compare(Path(folder), form, millions, told.rounds)


def _compare(folder: Path, form: str, millions: int, rounds: int) -> None:
    source, target = folder / "source", folder / "target"
    _make(source, form, millions)
    size = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    ways = _ways(source, target, form)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    written = 0
    for _ in range(rounds):
        for name, command in ways.items():
            subprocess.run(["sync"], check=True)
            taken[name].append(run(command))
            written = written or _size(target)
            _remove(target)
        taken.setdefault("copy", []).append(_copied(source, target, written))
    print(f"{form}, {millions} million weights, {size / 1e9:.2f} GB to {written / 1e9:.2f} GB, medians of {rounds}")
    middle = {name: tuple(map(statistics.median, zip(*each, strict=True))) for name, each in taken.items()}
    for name, (seconds, mib) in middle.items():
        print(f"  {name:28} {seconds:7.2f} s  {written / seconds / 1e9:5.2f} GB/s  {mib:7.0f} MiB at most")
    (ours, our_mib), (peer, peer_mib) = middle["holdfast"], middle[next(name for name in ways if name != "holdfast")]
    print(f"peer / holdfast, time           {peer / ours:.2f}   (wanted: at least 2, or within 1.2 of the copy)")
    print(f"holdfast / copy, time           {ours / middle['copy'][0]:.2f}")
    print(f"holdfast / peer, memory         {our_mib / peer_mib:.2f}   (wanted: at most 0.3)")


def _ways(source: Path, target: Path, form: str) -> dict[str, list[str]]:
    to = "torch" if form == "dcp" else "safetensors"
    ours = [sys.executable, "-m", "holdfast", "ckpt", "convert", str(source), str(target), "--to", to]
    if form == "dcp":
        return {"holdfast": ours, "dcp_to_torch": [sys.executable, *_PLAIN, str(source), str(target)]}
    theirs = str(source / "zero_to_fp32.py")
    return {
        "holdfast": [*ours, "--dtype", "float32"],
        "zero_to_fp32.py": [sys.executable, theirs, str(source), str(target), "--safe_serialization"],
    }


def _make(folder: Path, form: str, millions: int) -> None:
    layers = ["--layers", str(round(millions / _MILLIONS_A_LAYER))]
    light = ["--no-moments"] if millions > 500 else []
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, str(_SOURCE), str(folder), form, *layers, *light]
    subprocess.run(command, check=True, capture_output=True)


def run(command: list[str]) -> tuple[float, float]:
    """Seconds, and MiB of the process at most."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {said.decode(errors='replace')[-2000:]}")
    return time.perf_counter() - began, used.ru_maxrss / 1024


def _copied(source: Path, target: Path, written: int) -> tuple[float, float]:
    """The same for a copy of as many bytes as are written, synced."""
    large = max((path for path in source.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    blocks, block = written // (8 << 20), 8 << 20
    command = ["dd", f"if={large}", f"of={target}", f"bs={block}", "conv=fsync", "status=none"]
    taken = 0.0
    done = 0
    while done < blocks:
        count = min(blocks - done, large.stat().st_size // block)
        taken += run([*command, f"count={count}"])[0]
        done += count
    _remove(target)
    return taken, 0.0


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
