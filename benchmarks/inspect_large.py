"""`holdfast ckpt inspect` of checkpoints of 100 GB: next to `torch.load(mmap=True)` and safetensors' own reader.

The files are holes, so that no disk is measured: one of torch.save, and 20 of safetensors. The peers map the file and
list its tensors' shapes, and nothing else; each is a process of its own, interleaved, medians.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.conversion import run

_LAYERS = 100
_ROUNDS = 5
#: In a process of its own: what this one had in memory would count as that of those it starts.
_MAKE = """
import pathlib, sys
from tests.saved import sparse
folder, layers = pathlib.Path(sys.argv[1]), int(sys.argv[2])
sparse.torch_file(folder / "model.pt", layers)
sparse.safetensors_folder(folder / "model", layers, shards=20)
"""
_TORCH = """
import mmap, sys, torch
torch.serialization.set_default_mmap_options(mmap.MAP_SHARED)  # a private map of 100 GB is more than Linux allows
found = torch.load(sys.argv[1], mmap=True, weights_only=True, map_location="cpu")
print(len([each.shape for each in found.values()]))
"""
_SAFETENSORS = """
import json, pathlib, sys
from safetensors import safe_open
folder = pathlib.Path(sys.argv[1])
files = set(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())
for file in files:
    with safe_open(folder / file, "pt") as opened:
        print([opened.get_slice(name).get_shape() for name in opened.keys()])
"""


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-c", _MAKE, folder, str(_LAYERS)], check=True)
        _compare("one file of torch.save", Path(folder, "model.pt"), "torch.load(mmap=True)", _TORCH)
        _compare("20 files of safetensors", Path(folder, "model"), "safetensors.safe_open", _SAFETENSORS)


def _compare(what: str, path: Path, peer: str, program: str) -> None:
    ways = {
        "holdfast ckpt inspect": [sys.executable, "-m", "holdfast", "ckpt", "inspect", str(path)],
        peer: [sys.executable, "-c", program, str(path)],
    }
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(_ROUNDS):
        for name, command in ways.items():
            taken[name].append(run(command))
    print(f"{what}, {_LAYERS * 4} tensors of {_LAYERS} GB, medians of {_ROUNDS}")
    for name, each in taken.items():
        seconds, mib = (statistics.median(values) for values in zip(*each, strict=True))
        print(f"  {name:24} {seconds:6.2f} s  {mib:6.0f} MiB at most   (wanted of ours: 2 s, 300 MiB)")


if __name__ == "__main__":
    main()
