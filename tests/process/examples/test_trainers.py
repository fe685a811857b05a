"""The four trainers learn, and continue in lockstep if an evaluation fails on one rank."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import torch

from tests.process.examples.trainers import (
    assert_continued,
    assert_learned,
    assert_no_incident,
    train,
)

pytestmark = pytest.mark.slow
FAULT = ("--fail-evaluation", "exception@rank=1,step=20")


def needs(package):
    """Skip if the package is missing. Do not import it, which takes seconds and changes torch."""
    return pytest.mark.skipif(
        find_spec(package) is None, reason=f"{package} is not installed: make setup"
    )


DEEPSPEED, ACCELERATE = needs("deepspeed"), needs("accelerate")
TRAINERS = {
    "ddp": ("ddp",),
    "fsdp2": ("fsdp2",),
    "zero1": ("deepspeed", "--zero-stage", "1"),
    "zero2": ("deepspeed", "--zero-stage", "2"),
    "zero3": ("deepspeed", "--zero-stage", "3"),
    "accelerate": ("accelerate",),
}

ZERO = [
    pytest.param(name, marks=(DEEPSPEED, pytest.mark.matrix))
    for name in ("zero1", "zero2", "zero3")
]
each = pytest.mark.parametrize(
    "name",
    [
        "ddp",
        pytest.param("fsdp2", marks=pytest.mark.matrix),
        *ZERO,
        pytest.param("accelerate", marks=(ACCELERATE, pytest.mark.matrix)),
    ],
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the result of 60 undisturbed steps of a trainer; each is run once."""
    results = {}

    def undisturbed(name):
        if name not in results:
            example, *arguments = TRAINERS[name]
            folder = tmp_path_factory.mktemp(name)
            results[name] = train(example, folder, "--save-best", str(folder), *arguments)
        return results[name]

    return undisturbed


@each
def test_trainer_learns(name, trained):
    assert_learned(trained(name))


@pytest.mark.matrix
@each
def test_training_continues_if_evaluation_fails_on_one_rank(name, trained, tmp_path):
    example, *arguments = TRAINERS[name]
    assert_continued(train(example, tmp_path, *arguments, *FAULT), undisturbed=trained(name))


@pytest.mark.matrix
@pytest.mark.parametrize("name", ["fsdp2", *ZERO])
def test_losses_equal_those_of_ddp(name, trained):
    assert trained(name).losses == pytest.approx(trained("ddp").losses, abs=1e-4)
    for step, metrics in trained("ddp").evaluated.items():
        assert trained(name).evaluated[step] == pytest.approx(metrics, abs=1e-3)


@pytest.mark.matrix
def test_saved_weights_are_those_of_the_best_step(trained):
    states = [
        torch.load(trained(name).folder / "best.pt", weights_only=True) for name in ("ddp", "fsdp2")
    ]
    _, _, best = trained("ddp").ended()[0]
    assert [each["step"] for each in states] == [best, best]
    torch.testing.assert_close(*(each["model"] for each in states), atol=1e-4, rtol=0)


@pytest.mark.matrix
def test_batches_that_do_not_fit_are_halved_without_losing_samples(trained, tmp_path):
    halved = train("ddp", tmp_path, "--fail-evaluation", "out-of-memory@rank=1,step=20")
    undisturbed = trained("ddp")
    assert (
        "evaluation at step 20 succeeded after 3 attempts, 100.0% of samples seen" in halved.output
    )
    assert halved.losses == undisturbed.losses
    assert halved.evaluated[20] == pytest.approx(undisturbed.evaluated[20], abs=1e-5)
    assert_no_incident(halved)


@pytest.mark.matrix
def test_evaluation_over_its_budget_is_aborted(trained, tmp_path):
    slow = ("--fail-evaluation", "slow@rank=1,step=20,seconds=1.5", "--budget", "2s")
    aborted = train("ddp", tmp_path, *slow)
    assert "rank 1: budget exhausted" in aborted.output
    assert aborted.evaluated == trained("ddp").evaluated | {20: {}}
    assert aborted.losses == trained("ddp").losses
    assert_no_incident(aborted)


@pytest.mark.matrix
def test_failed_evaluations_are_neither_best_nor_without_improvement(tmp_path):
    faults = ";".join(f"exception@rank={step // 10 % 2},step={step}" for step in (10, 20, 30, 40))
    metrics = ("--metrics-file", str(tmp_path / "metrics.jsonl"))
    trained = train(
        "ddp", tmp_path, "--steps", "40", "--patience", "1", "--fail-evaluation", faults, *metrics
    )
    assert trained.status == 0, trained.output
    assert sorted(trained.losses) == list(range(1, 41))
    assert trained.evaluated == {10: {}, 20: {}, 30: {}, 40: {}}
    assert trained.output.count("done after step 40, best inf of step None") == 2
    lines = [
        json.loads(line)["metrics"]
        for line in (tmp_path / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["eval/failed"] for line in lines] == [1.0] * 4
    assert not [name for line in lines for name in line if name.endswith(("loss", "accuracy"))]


@pytest.mark.matrix
def test_all_ranks_stop_together_without_improvement(tmp_path):
    trained = train("ddp", tmp_path, "--lr", "0", "--patience", "2")
    assert trained.status == 0, trained.output
    first = trained.evaluated[10]["short/loss"]
    assert trained.ended() == {0: (30, first, 10), 1: (30, first, 10)}


@pytest.mark.matrix
def test_unknown_evaluation_fault_is_rejected(tmp_path):
    trained = train("ddp", tmp_path, "--fail-evaluation", "skip-collective@rank=1,step=20")
    assert trained.status != 0
    assert (
        "invalid value for --fail-evaluation: skip-collective "
        "(choose from exception, out-of-memory, slow)" in trained.output
    )
