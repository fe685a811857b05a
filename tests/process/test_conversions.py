"""Real checkpoints go from one framework into another: training goes on there as if it had always been there.

A real framework trains three steps and saves, `holdfast ckpt convert` converts, another real framework loads and does
two steps more. Their losses are those of a run in that other framework which was never interrupted, within 1e-6.
(DeepSpeed clips gradients at 1.0 where nothing is said; here nobody does. From universal checkpoints its stage 3 counts
the steps of several groups together: the one way in that is not among these.)
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tests.golden.checkpoints.making import launched, made, shared_store

RANKS = 2
#: Who saves: the name of what is made, the program and its arguments, and where the checkpoint is below its folder.
SOURCES = {
    "fsdp2": ("torch_distributed", ["dcp"], "saved"),
    "fsdp1-full": ("torch_distributed", ["fsdp1-full"], "saved/model.pt"),
    "fsdp1-sharded": ("torch_distributed", ["fsdp1-sharded"], "saved"),
    "holdfast": ("torch_distributed", ["holdfast"], "saved"),
    "accelerate": ("accelerate_folder", ["ddp", "--bin", "--steady"], "saved"),
    "lightning": ("lightning_file", ["steady"], "saved.ckpt"),
    "zero1": ("deepspeed_zero", ["--stage", "1", "--clip", "0"], "checkpoint"),
    "zero2": ("deepspeed_zero", ["--stage", "2", "--clip", "0"], "checkpoint"),
    "zero3": ("deepspeed_zero", ["--stage", "3", "--clip", "0"], "checkpoint"),
}
#: Who loads: what it is converted to, whose uninterrupted run it is held against, and how it is loaded.
TARGETS = {
    "fsdp2": ("dcp", "fsdp2", "fsdp2"),
    "holdfast": ("holdfast", "fsdp2", "holdfast"),
    "fsdp1": ("torch", "fsdp1-full", "fsdp1"),
    "ddp": ("torch", "fsdp2", "ddp"),
    "accelerate": ("accelerate", "accelerate", "accelerate"),
    "lightning": ("lightning", "lightning", "lightning"),
    "zero1": ("zero1", "zero1", "--clip 0 --stage 1 --load"),
    "zero2": ("zero2", "zero2", "--clip 0 --stage 2 --load"),
    "zero3": ("zero3", "zero3", "--clip 0 --stage 3 --load"),
    "universal1": ("universal", "zero1", "--clip 0 --stage 1 --load-universal --load"),
    "universal2": ("universal", "zero2", "--clip 0 --stage 2 --load-universal --load"),
}
#: What every run of the tests tries; all pairs are the matrix.
SAMPLE = {("fsdp2", "zero1"), ("accelerate", "zero3"), ("zero1", "lightning")}
PAIRS = [
    pytest.param(source, target, marks=() if (source, target) in SAMPLE else pytest.mark.matrix)
    for source in SOURCES
    for target in TARGETS
]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return shared_store(tmp_path_factory)


def source_of(store, name):
    program, arguments, below = SOURCES[name]
    ranks = 1 if name == "lightning" else RANKS
    folder = made(store, program, *arguments, ranks=ranks)
    return folder, folder / below


def gone_on(folder, how, checkpoint):
    """The losses of the two steps after loading."""
    if not how.startswith("--"):
        if how == "accelerate":
            launched(
                "-m",
                "tests.golden.checkpoints.accelerate_going_on",
                folder,
                "ddp",
                checkpoint,
                "--steady",
                ranks=RANKS,
            )
        elif how == "lightning":
            launched("-m", "tests.golden.checkpoints.lightning_file", folder, "steady", checkpoint)
        else:
            launched(
                "-m", "tests.golden.checkpoints.going_on", folder, how, checkpoint, ranks=RANKS
            )
        return json.loads((folder / "losses.json").read_text())
    launched(
        "-m",
        "tests.golden.checkpoints.deepspeed_zero",
        folder,
        *how.split(),
        checkpoint,
        ranks=RANKS,
        imports=("deepspeed",),
    )
    return torch.load(folder / "truth.pt", weights_only=False)["losses"]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_training_goes_on_in_the_other_framework(store, tmp_path, source, target):
    form, uninterrupted, how = TARGETS[target]
    _, checkpoint = source_of(store, source)
    converted = tmp_path / ("converted.pt" if form == "torch" else "converted")
    command = [
        sys.executable,
        "-m",
        "holdfast",
        "ckpt",
        "convert",
        checkpoint,
        converted,
        "--to",
        form,
    ]
    options = ["--ranks", RANKS, *(["--form", "by-name"] if how == "fsdp1" else [])]
    options += ["--map", "net="] * (source == "lightning") + ["--map", "=net."] * (
        target == "lightning"
    )
    result = subprocess.run(
        [*map(str, (*command, *options))], capture_output=True, text=True, timeout=60, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    wanted = torch.load(source_of(store, uninterrupted)[0] / "truth.pt", weights_only=False)[
        "losses"
    ]
    assert gone_on(tmp_path, how, converted) == pytest.approx(wanted, abs=1e-6)
