"""The four trainers: they learn, evaluate, and go on in lockstep where evaluation fails on one rank."""

from __future__ import annotations

import json
from importlib.util import find_spec

import pytest
import torch

from tests.examples.trainers import assert_silent, learned, train, went_on

pytestmark = pytest.mark.slow
FAULT = ("--fail-evaluation", "exception@rank=1,step=20")


def needs(package):
    """Skips where it is missing. It is not imported: that takes seconds, and changes torch in this process."""
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed: make setup")


DEEPSPEED, ACCELERATE = needs("deepspeed"), needs("accelerate")
TRAINERS = {
    "ddp": ("ddp",),
    "fsdp2": ("fsdp2",),
    "zero1": ("deepspeed", "--zero-stage", "1"),
    "zero2": ("deepspeed", "--zero-stage", "2"),
    "zero3": ("deepspeed", "--zero-stage", "3"),
    "accelerate": ("accelerate",),
}

ZERO = [pytest.param("zero3", marks=DEEPSPEED)]
ZERO += [pytest.param(name, marks=(DEEPSPEED, pytest.mark.matrix)) for name in ("zero1", "zero2")]
each = pytest.mark.parametrize("name", ["ddp", "fsdp2", *ZERO, pytest.param("accelerate", marks=ACCELERATE)])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """What a trainer left after 60 steps in which nothing failed; each is started once."""
    kept = {}

    def whole(name):
        if name not in kept:
            example, *arguments = TRAINERS[name]
            folder = tmp_path_factory.mktemp(name)
            kept[name] = train(example, folder, "--save-best", str(folder), *arguments)
        return kept[name]

    return whole


@each
def test_it_learns(name, trained):
    learned(trained(name))


@pytest.mark.parametrize(
    "name",
    [
        "ddp",
        pytest.param("fsdp2", marks=pytest.mark.matrix),
        *ZERO,
        pytest.param("accelerate", marks=(ACCELERATE, pytest.mark.matrix)),
    ],
)
def test_it_goes_on_where_evaluation_fails_on_one_rank(name, trained, tmp_path):
    example, *arguments = TRAINERS[name]
    went_on(train(example, tmp_path, *arguments, *FAULT), whole=trained(name))


@pytest.mark.parametrize("name", ["fsdp2", *ZERO])
def test_with_the_same_seed_the_losses_are_those_of_ddp(name, trained):
    assert trained(name).losses == pytest.approx(trained("ddp").losses, abs=1e-4)
    for step, metrics in trained("ddp").evaluated.items():
        assert trained(name).evaluated[step] == pytest.approx(metrics, abs=1e-3)


def test_the_weights_kept_are_those_of_the_best_step(trained):
    kept = [torch.load(trained(name).folder / "best.pt", weights_only=True) for name in ("ddp", "fsdp2")]
    _, _, best = trained("ddp").ended()[0]
    assert [each["step"] for each in kept] == [best, best]
    torch.testing.assert_close(*(each["model"] for each in kept), atol=1e-4, rtol=0)


def test_batches_that_do_not_fit_are_halved_and_nothing_is_lost(trained, tmp_path):
    halved = train("ddp", tmp_path, "--fail-evaluation", "out-of-memory@rank=1,step=20")
    whole = trained("ddp")
    assert "evaluation at step 20 went well after 3 tries, 100.0 % of its samples seen" in halved.output
    assert halved.losses == whole.losses
    assert halved.evaluated[20] == pytest.approx(whole.evaluated[20], abs=1e-5)
    assert_silent(halved)


def test_an_evaluation_that_spends_its_budget_is_left(trained, tmp_path):
    slow = ("--fail-evaluation", "slow@rank=1,step=20,seconds=1.5", "--budget", "2s")
    left = train("ddp", tmp_path, *slow)
    assert "rank 1: its time was over" in left.output
    assert left.evaluated == trained("ddp").evaluated | {20: {}}
    assert left.losses == trained("ddp").losses
    assert_silent(left)


def test_failed_evaluations_are_neither_the_best_nor_a_reason_to_stop(tmp_path):
    faults = ";".join(f"exception@rank={step // 10 % 2},step={step}" for step in (10, 20, 30, 40))
    kept = ("--metrics-file", str(tmp_path / "metrics.jsonl"))
    trained = train("ddp", tmp_path, "--steps", "40", "--patience", "1", "--fail-evaluation", faults, *kept)
    assert trained.status == 0, trained.output
    assert sorted(trained.losses) == list(range(1, 41))
    assert trained.evaluated == {10: {}, 20: {}, 30: {}, 40: {}}
    assert trained.output.count("done after step 40, best inf of step None") == 2
    lines = [json.loads(line)["metrics"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["eval/failed"] for line in lines] == [1.0] * 4
    assert not [name for line in lines for name in line if name.endswith(("loss", "accuracy"))]


def test_where_nothing_becomes_better_all_ranks_stop_together(tmp_path):
    trained = train("ddp", tmp_path, "--lr", "0", "--patience", "2")
    assert trained.status == 0, trained.output
    first = trained.evaluated[10]["short/loss"]
    assert trained.ended() == {0: (30, first, 10), 1: (30, first, 10)}


def test_a_fault_that_evaluation_cannot_have_is_refused(tmp_path):
    trained = train("ddp", tmp_path, "--fail-evaluation", "skip-collective@rank=1,step=20")
    assert trained.status != 0
    assert "--fail-evaluation knows exception, out-of-memory, slow, not skip-collective" in trained.output
