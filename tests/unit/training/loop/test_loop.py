"""The loop on real ranks: bit-identical resume, agreement, and the policy's adjustments."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
import torch

from tests.unit.training.collectives.ranks import run
from tests.unit.training.loop import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def ranks(size, program, folder, *arguments):
    """Return what the ranks returned; each call has its own rendezvous folder."""
    meeting = Path(tempfile.mkdtemp(dir=folder))
    return run(size, program, meeting, folder, *arguments, limit_s=180)


def samples(traces):
    """Return the samples of all ranks, in any order."""
    return sorted(itertools.chain.from_iterable(used for trace in traces for _, _, used in trace))


def test_an_interrupted_run_resumes_bit_identically(tmp_path):
    for uninterrupted, first, second, saved, after in ranks(
        2, programs.interrupt_and_resume, tmp_path
    ):
        assert [step for step, _, _ in uninterrupted] == list(range(1, 19))
        assert first == uninterrupted[:10]
        assert (
            second == uninterrupted[8:]
        )  # from the checkpoint of step 8: the same losses to the last bit, the same samples
        assert saved[-1] == "step-0000000018"
        assert after == []  # training is complete


@pytest.mark.parametrize(("before", "now", "batch"), [(3, 2, 6), (1, 2, 2)])
def test_another_number_of_ranks_uses_each_sample_once_with_the_same_global_batch(
    before, now, batch, tmp_path
):
    first = [
        trace for trace, _ in ranks(before, programs.resume_elastically, tmp_path, "global batch")
    ]
    results = ranks(now, programs.resume_elastically, tmp_path, "global batch")
    second = [trace for trace, _ in results]
    assert samples([*first, *second]) == list(range(48))
    assert {len(used) for trace in second for _, _, used in trace} == {batch}
    assert second[0][0][0] == 4
    assert any(f"keep the global batch at {4 * before}" in line for line in results[0][1])


def test_keep_batch_keeps_the_per_rank_batch(tmp_path):
    first = [trace for trace, _ in ranks(1, programs.resume_elastically, tmp_path, "batch")]
    second = [trace for trace, _ in ranks(2, programs.resume_elastically, tmp_path, "batch")]
    assert samples([*first, *second])[:1] == [0]
    assert set(samples([*first, *second])) == set(range(48))
    assert {len(used) for _, _, used in second[0][:-1]} == {4}


@pytest.mark.parametrize(
    ("rule", "keep", "half"),
    [
        ("linear", "batch", 0.5),
        ("sqrt", "batch", 0.5**0.5),
        (None, "batch", 1.0),
        ("linear", "global batch", 1.0),
    ],
)
def test_learning_rate_follows_the_global_batch_and_is_restored(rule, keep, half, tmp_path):
    options = {"keep": keep, "rate": rule}
    results = [
        ranks(size, programs.record_learning_rates, tmp_path, options, "plain", steps)[0]
        for size, steps in ((2, 3), (1, 6), (2, 9))
    ]
    (first, _, _), (second, log, values), (third, second_log, _) = results
    assert [step for step, _ in [*first, *second, *third]] == list(range(1, 10))
    assert {rate for _, rate in first} == {1e-2}
    assert [rate for _, rate in second] == pytest.approx([1e-2 * half] * 3)
    assert [rate for _, rate in third] == pytest.approx([1e-2] * 3)
    messages = [line for line in (*log, *second_log) if "learning rates" in line]
    if half == 1.0:
        assert (messages, "rate_factor" in values) == ([], False)
        return
    assert values["rate_factor"] == pytest.approx(half)
    assert (
        "the global batch is 4 samples, initially 8: learning rates are scaled by " in messages[0]
    )
    assert "learning rates are scaled by 1 (" in messages[1]


def test_a_scheduler_continues_from_the_scaled_rate(tmp_path):
    options = {"keep": "batch", "rate": "linear"}
    uninterrupted = ranks(
        2,
        programs.record_learning_rates,
        Path(tempfile.mkdtemp(dir=tmp_path)),
        options,
        "scheduled",
        9,
    )[0][0]
    parts = [
        ranks(size, programs.record_learning_rates, tmp_path, options, "scheduled", steps)[0][0]
        for size, steps in ((2, 3), (1, 6), (2, 9))
    ]
    halved = [rate * (0.5 if 3 < step <= 6 else 1.0) for step, rate in uninterrupted]
    assert [rate for part in parts for _, rate in part] == pytest.approx(halved)


@pytest.mark.parametrize(
    ("what", "step", "error", "last"),
    [("nan", 75, "LossNotFinite", 75), ("spike", 120, "LossSpike", 122)],
)
def test_a_bad_loss_on_one_rank_ends_all_before_the_next_save(what, step, error, last, tmp_path):
    results = ranks(2, programs.report_bad_loss, tmp_path, what, step)
    assert results[0] == results[1]
    name, first, until, message, newest = results[0]
    assert (name, first, until) == (error, step, last)
    assert f"step{'s' if last > step else ''} {step}" in message
    assert "(previously 1.03)" in message
    assert newest == f"step-{(step - 1) // 50 * 50:010d}"


def test_micro_batches_give_the_full_batch_gradients_with_one_synchronization(tmp_path):
    for results, counts in ranks(2, programs.compare_micro_batches, tmp_path):
        (full, reduced), (parts, reduced_in_parts) = results
        for one, other in zip(full, parts, strict=True):
            torch.testing.assert_close(one, other)
        assert reduced == reduced_in_parts == 1
        assert counts == [4] * 8 + [2] * 2  # half as many are tried from step 9 on


def test_the_policys_skips_and_rollbacks_are_applied(tmp_path):
    for trace, step, log in ranks(2, programs.skip_and_roll_back, tmp_path):
        assert [number for number, _, _ in trace] == [
            5,
            6,
        ]  # resumes after step 2 and skips 3 and 4
        assert step == 6
        assert "the loss was NaN at step 4" in log
        assert "skipping the batch of step 3" in log


def test_ranks_with_different_clocks_save_at_the_same_steps_and_short_steps_share_a_sync(tmp_path):
    results = ranks(2, programs.save_by_time, tmp_path)
    assert results[0] == results[1]
    saved, synced = results[0]
    assert saved[-1] == 600
    assert 1 < len(saved) < 20
    assert len(synced) < 300
