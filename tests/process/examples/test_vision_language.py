"""The vision-language model learns equally under every framework, and resumes from checkpoints."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from docs.migration_guide import CONVERSION_SIDES, conversion_pairs
from holdfast.plan.generate.migration import ConfigFormat

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
]  # up to three jobs each, which import torch and DeepSpeed
TRAIN = Path(__file__).parents[3] / "examples" / "frameworks" / "train.py"
DEEPSPEED = pytest.mark.skipif(
    find_spec("deepspeed") is None, reason="deepspeed is not installed: make setup"
)
RANKS = {"hybrid": 4}
OTHERS = [
    "fsdp2",
    pytest.param("hybrid", marks=pytest.mark.matrix),
    *(
        pytest.param(name, marks=(DEEPSPEED, pytest.mark.matrix))
        for name in ("zero1", "zero2", "zero3")
    ),
]


FORMS = {"ddp": None, "fsdp2": ConfigFormat.FSDP2, "zero1": ConfigFormat.DEEPSPEED} | dict.fromkeys(
    ("zero2", "zero3"), ConfigFormat.DEEPSPEED
)
#: Source and target strategy, in both directions between the frameworks; the guide lists them.
CONVERTED_PAIRS = [
    pytest.param("zero2", "fsdp2", marks=(DEEPSPEED, pytest.mark.matrix)),
    pytest.param("fsdp2", "zero3", marks=(DEEPSPEED, pytest.mark.matrix)),
    pytest.param("ddp", "zero1", marks=(DEEPSPEED, pytest.mark.matrix)),
    pytest.param("zero3", "ddp", marks=(DEEPSPEED, pytest.mark.matrix)),
]


def train(strategy, *arguments, samples=4, ranks=None):
    """Return the losses by step of the tiny model on two ranks, or four with half the samples."""
    ranks = ranks or RANKS.get(strategy, 2)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        str(TRAIN),
    ]
    done = subprocess.run(
        [
            *command,
            "--size",
            "tiny",
            "--strategy",
            strategy,
            "--batch-size",
            str(samples),
            *map(str, arguments),
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {
        int(step): float(loss) for step, loss in re.findall(r"step +(\d+)  loss (\S+)", done.stdout)
    }


@pytest.fixture(scope="module")
def uninterrupted_losses():
    """Return the losses of six uninterrupted steps of DDP on two or four ranks; run once each."""
    results = {}

    def losses(ranks):
        if ranks not in results:
            results[ranks] = train("ddp", "--steps", 6, ranks=ranks)
        return results[ranks]

    return losses


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory):
    """Return folder and losses of four steps of a strategy; run once each."""
    results = {}

    def run_of(strategy):
        if strategy not in results:
            folder = tmp_path_factory.mktemp(strategy)
            options = (
                "--steps",
                4,
                "--save",
                folder / "saved",
                "--measure",
                folder / "figures.json",
            )
            results[strategy] = folder, train(strategy, *options)
        return results[strategy]

    return run_of


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", ["ddp", *OTHERS])
def test_learns_as_ddp_does_and_resumes_from_its_checkpoint(
    strategy, uninterrupted_losses, interrupted_run
):
    folder, first = interrupted_run(strategy)
    second = train(strategy, "--steps", 2, "--load", folder / "saved")
    expected = uninterrupted_losses(RANKS.get(strategy, 2))
    assert sorted(first | second) == [1, 2, 3, 4, 5, 6]
    assert first | second == pytest.approx(expected, abs=1e-5)
    assert expected[6] < expected[1] - 0.2
    check(json.loads((folder / "figures.json").read_text()), strategy)


def check(figures, strategy):
    """Assert that all figures are present and plausible."""
    assert figures["strategy"] == strategy
    assert figures["samples_per_s"] == pytest.approx(figures["ranks"] * 4 / figures["step_s"])
    assert 0 < figures["communication"]["exposed"] <= figures["communication"]["busy"] <= 1
    assert sum(figures["startup"].values()) == pytest.approx(figures["startup_s"], rel=0.2)
    assert 1 < figures["startup_s"] < 100
    assert 1e6 < figures["peak_bytes"] < 1e9
    trained = figures["parameters"] * 4
    assert (
        3 * trained < figures["checkpoint"]["bytes"] < 6 * trained
    )  # weights, and two moments of each


@pytest.mark.matrix
def test_frozen_vision_model_is_not_trained(uninterrupted_losses, tmp_path):
    import torch

    losses = train("ddp", "--steps", 4, "--freeze-vision", "--save", tmp_path)
    assert losses[1] == pytest.approx(uninterrupted_losses(2)[1])
    assert losses[4] < losses[1]
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    frozen = [name for name in state["model"] if name.startswith("vision.")]
    moments = state["optimizer"]["state"]
    assert len(moments) == len(state["model"]) - len(frozen) - 1  # the head is the embedding


@pytest.mark.matrix
def test_hybrid_requires_four_ranks():
    with pytest.raises(AssertionError, match="2 ranks cannot form 2 groups of at least two ranks"):
        train("hybrid", "--steps", 1, ranks=2)


@pytest.mark.parametrize(("origin", "to"), CONVERTED_PAIRS)
def test_commands_of_the_migration_guide_convert_checkpoints(
    origin, to, uninterrupted_losses, interrupted_run, tmp_path
):
    folder, first = interrupted_run(origin)
    convert(folder / "saved", origin, to, tmp_path)
    second = train(to, "--steps", 2, "--load", tmp_path / "converted")
    assert first | second == pytest.approx(uninterrupted_losses(2), abs=1e-5)


def convert(saved, origin, to, folder):
    """Run the guide's command, with another file name, number of ranks and ZeRO stage."""
    sides = (CONVERSION_SIDES[FORMS[origin]], CONVERSION_SIDES[FORMS[to]])
    pair = next(each for each in conversion_pairs() if (each.origin, each.to) == sides)
    words = shlex.split(pair.command.replace("--ranks 8", "--ranks 2").replace("zero2", to))
    there = saved / "checkpoint.pt" if origin == "ddp" else saved
    (folder / pair.origin.source).symlink_to(there)
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
