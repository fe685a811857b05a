"""The loop on real ranks: resumed without a trace, agreed in all it does, and obedient to the policy."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import pytest
import torch

from tests.runtime.comm.ranks import run
from tests.runtime.loop import programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def ranks(size, program, folder, *arguments):
    """What the ranks gave, which meet in a folder of their own."""
    meeting = Path(tempfile.mkdtemp(dir=folder))
    return run(size, program, meeting, folder, *arguments, limit_s=180)


def samples(traces):
    """All samples that all ranks used, in any order."""
    return sorted(itertools.chain.from_iterable(used for trace in traces for _, _, used in trace))


def test_an_interrupted_run_goes_on_as_if_nothing_had_been(tmp_path):
    for whole, first, second, saved, after in ranks(2, programs.interrupted, tmp_path):
        assert [step for step, _, _ in whole] == list(range(1, 19))
        assert first == whole[:10]
        assert second == whole[8:]  # from the checkpoint of step 8: the same losses to the last bit, the same samples
        assert saved[-1] == "step-0000000018"
        assert after == []  # there is nothing left to do


@pytest.mark.parametrize(("before", "now", "batch"), [(3, 2, 6), (1, 2, 2)])
def test_with_another_number_of_ranks_each_sample_comes_once_and_the_global_batch_stays(before, now, batch, tmp_path):
    first = [trace for trace, _ in ranks(before, programs.elastic, tmp_path, "global batch")]
    found = ranks(now, programs.elastic, tmp_path, "global batch")
    second = [trace for trace, _ in found]
    assert samples([*first, *second]) == list(range(48))
    assert {len(used) for trace in second for _, _, used in trace} == {batch}
    assert second[0][0][0] == 4
    assert any(f"keep the global batch at {4 * before}" in line for line in found[0][1])


def test_who_wants_to_keep_each_ranks_batch_may(tmp_path):
    first = [trace for trace, _ in ranks(1, programs.elastic, tmp_path, "batch")]
    second = [trace for trace, _ in ranks(2, programs.elastic, tmp_path, "batch")]
    assert samples([*first, *second])[:1] == [0]
    assert set(samples([*first, *second])) == set(range(48))
    assert {len(used) for _, _, used in second[0][:-1]} == {4}


@pytest.mark.parametrize(
    ("rule", "keep", "half"),
    [("linear", "batch", 0.5), ("sqrt", "batch", 0.5**0.5), (None, "batch", 1.0), ("linear", "global batch", 1.0)],
)
def test_the_rate_follows_the_global_batch_as_told_and_comes_back_with_it(rule, keep, half, tmp_path):
    options = {"keep": keep, "rate": rule}
    found = [ranks(size, programs.rated, tmp_path, options, "plain", steps)[0]
             for size, steps in ((2, 3), (1, 6), (2, 9))]  # fmt: skip
    (first, _, _), (second, said, values), (third, back, _) = found
    assert [step for step, _ in [*first, *second, *third]] == list(range(1, 10))
    assert {rate for _, rate in first} == {1e-2}
    assert [rate for _, rate in second] == pytest.approx([1e-2 * half] * 3)
    assert [rate for _, rate in third] == pytest.approx([1e-2] * 3)
    told = [line for line in (*said, *back) if "learning rates" in line]
    if half == 1.0:
        assert (told, "rate_factor" in values) == ([], False)
        return
    assert values["rate_factor"] == pytest.approx(half)
    assert "the global batch is 4 samples, and was 8 in the beginning: learning rates are " in told[0]
    assert "learning rates are 1 times those of the beginning" in told[1]


def test_a_scheduler_goes_on_from_the_rate_that_follows(tmp_path):
    options = {"keep": "batch", "rate": "linear"}
    whole = ranks(2, programs.rated, Path(tempfile.mkdtemp(dir=tmp_path)), options, "scheduled", 9)[0][0]
    parts = [ranks(size, programs.rated, tmp_path, options, "scheduled", steps)[0][0]
             for size, steps in ((2, 3), (1, 6), (2, 9))]  # fmt: skip
    halved = [rate * (0.5 if 3 < step <= 6 else 1.0) for step, rate in whole]
    assert [rate for part in parts for _, rate in part] == pytest.approx(halved)


@pytest.mark.parametrize(
    ("what", "step", "error", "last"), [("nan", 75, "LossNotFinite", 75), ("spike", 120, "LossSpike", 122)]
)
def test_a_loss_that_goes_wrong_on_one_rank_ends_all_of_them_alike_before_it_is_saved(
    what, step, error, last, tmp_path
):
    found = ranks(2, programs.disturbed, tmp_path, what, step)
    assert found[0] == found[1]
    name, first, until, said, newest = found[0]
    assert (name, first, until) == (error, step, last)
    assert f"step{'s' if last > step else ''} {step}" in said
    assert "and was 1.03 before" in said
    assert newest == f"step-{(step - 1) // 50 * 50:010d}"


def test_pieces_of_a_batch_give_its_gradients_and_exchange_them_once(tmp_path):
    for found, counts in ranks(2, programs.pieces, tmp_path):
        (whole, reduced), (parts, reduced_in_parts) = found
        for one, other in zip(whole, parts, strict=True):
            torch.testing.assert_close(one, other)
        assert reduced == reduced_in_parts == 1
        assert counts == [4] * 8 + [2] * 2  # a half of them is tried from step 9 on


def test_batches_are_left_out_and_older_checkpoints_taken_as_the_policy_says(tmp_path):
    for trace, step, said in ranks(2, programs.skipping, tmp_path):
        assert [number for number, _, _ in trace] == [5, 6]  # from step 2 on, less 3 and 4
        assert step == 6
        assert "the loss was NaN at step 4" in said
        assert "the batch of step 3 is left out" in said


def test_ranks_with_other_clocks_save_at_the_same_steps_and_short_steps_share_a_round(tmp_path):
    found = ranks(2, programs.by_the_clock, tmp_path)
    assert found[0] == found[1]
    saved, met = found[0]
    assert saved[-1] == 600
    assert 1 < len(saved) < 20
    assert len(met) < 300
