"""Benchmark of `holdfast ckpt inspect` on 100 GB checkpoints, next to other readers.

Peers: `torch.load(mmap=True)` and safetensors' own reader. The files are sparse, so the disk is not
measured: one torch.save file, and 20 safetensors files. The peers map the file and list its
tensors' shapes; each is its own process, interleaved, medians.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.processes import measure_process

_LAYERS = 100
_ROUNDS = 5
#: In a child process: memory of this one would count as that of the processes it starts.
_MAKE = """
import pathlib, sys
from tests.golden.checkpoints import sparse
folder, layers = pathlib.Path(sys.argv[1]), int(sys.argv[2])
sparse.torch_file(folder / "model.pt", layers)
sparse.safetensors_folder(folder / "model", layers, shards=20)
"""
_TORCH = """
import mmap, sys, torch
# Linux rejects a private mapping of 100 GB.
torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)
found = torch.load(sys.argv[1], mmap=True, weights_only=True, map_location="cpu")
print(len([each.shape for each in found.values()]))
"""
_SAFETENSORS = """
import json, pathlib, sys
from safetensors import safe_open
folder = pathlib.Path(sys.argv[1])
index = json.loads((folder / "model.safetensors.index.json").read_text())
files = set(index["weight_map"].values())
for file in files:
    with safe_open(folder / file, "pt") as opened:
        print([opened.get_slice(name).get_shape() for name in opened.keys()])
"""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", _MAKE, folder, str(_LAYERS)], check=True)
        _compare(
            "one file of torch.save", Path(folder, "model.pt"), "torch.load(mmap=True)", _TORCH
        )
        _compare(
            "20 files of safetensors", Path(folder, "model"), "safetensors.safe_open", _SAFETENSORS
        )


def _compare(title: str, path: Path, peer: str, program: str) -> None:
    commands = {
        "holdfast ckpt inspect": [sys.executable, "-m", "holdfast", "ckpt", "inspect", str(path)],
        peer: [sys.executable, "-c", program, str(path)],
    }
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(_ROUNDS):
        for name, command in commands.items():
            cost = measure_process(command)
            costs[name].append((cost.wall_s, cost.memory_mib))
    print(f"{title}, {_LAYERS * 4} tensors of {_LAYERS} GB, medians of {_ROUNDS}")
    for name, each in costs.items():
        seconds, mib = (statistics.median(values) for values in zip(*each, strict=True))
        print(
            f"  {name:24} {seconds:6.2f} s  peak {mib:5.0f} MiB   (target of holdfast: 2 s, 300 "
            "MiB)"
        )


if __name__ == "__main__":
    main()
