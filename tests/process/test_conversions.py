"""Training resumes in another framework from a converted checkpoint as if it had run there all along.

A framework trains three steps and saves, `holdfast ckpt convert` converts, another framework loads
and trains two more steps. Their losses equal those of an uninterrupted run in the other framework
within 1e-6. Gradient clipping is off; DeepSpeed's default is 1.0. ZeRO stage 3 from a universal
checkpoint is not tested: DeepSpeed adds up the steps of several parameter groups there.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from tests.golden.checkpoints.making import launched, made, shared_store

RANKS = 2
#: Saving framework -> program, its arguments, and the checkpoint's path below its folder.
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
#: Loading framework -> target format, source of the uninterrupted run, and how it is loaded.
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
#: Pairs in every test run; all pairs are in the matrix.
SAMPLE = {("accelerate", "zero3"), ("zero1", "lightning")}
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


def resume(folder, how, checkpoint):
    """Train two steps after loading; return their losses."""
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
def test_training_resumes_in_the_other_framework(store, tmp_path, source, target):
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
    expected = torch.load(source_of(store, uninterrupted)[0] / "truth.pt", weights_only=False)[
        "losses"
    ]
    assert resume(tmp_path, how, converted) == pytest.approx(expected, abs=1e-6)
