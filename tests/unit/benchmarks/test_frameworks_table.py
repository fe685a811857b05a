"""The strategy table and the recommendation."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from benchmarks import frameworks
from benchmarks.frameworks_table import Row, loss_difference, merge_rounds, recommend, table

GIB = 2**30


def row(strategy, speed, gib, **more):
    return Row(strategy=strategy, samples_per_s=speed, peak_bytes=int(gib * GIB), **more)


def figures(strategy, speed=10.0, **more):
    return {
        "strategy": strategy,
        "size": "tiny",
        "parameters": 83_104,
        "ranks": 2,
        "device": "CPU",
        "precision": "fp32",
        "batch_size": 4,
        "frozen_vision": False,
        "torch": "2.13.0",
        "samples_per_s": speed,
        "peak_bytes": GIB,
        "startup_s": 3.0,
        "communication": {"busy": 0.4, "exposed": 0.25},
        "losses": [4.0, 3.5],
        "checkpoint": {"seconds": 0.5, "bytes": 2_000_000, "files": 3},
    } | more


def test_recommends_the_fastest():
    choice = recommend([row("ddp", 100, 4), row("zero2", 80, 3.9)])
    assert choice.strategy == "ddp"
    assert choice.why == ("ddp: 100.0 samples/s, the fastest",)


def test_recommends_the_smaller_of_two_equally_fast():
    choice = recommend([row("ddp", 100, 4), row("fsdp2", 97, 2)])
    assert choice.strategy == "fsdp2"
    assert choice.why == (
        "fsdp2: 97.0 samples/s, as fast as ddp within 5%, in 2.00 GiB instead of 4.00 GiB",
    )


def test_differences_within_the_spread_of_rounds_are_noise():
    slow = merge_rounds([row("fsdp2", 70, 2), row("fsdp2", 80, 2), row("fsdp2", 95, 2)])
    assert slow.spread == pytest.approx(25 / 80)
    assert recommend([row("ddp", 100, 4), slow]).strategy == "fsdp2"
    assert recommend([row("ddp", 100, 4), row("fsdp2", 80, 2)]).strategy == "ddp"


def test_does_not_recommend_what_does_not_fit():
    choice = recommend([row("ddp", 100, 81), row("zero1", 90, 60), row("zero3", 60, 30)], 80 * GIB)
    assert choice.strategy == "zero1"
    assert choice.why == (
        "zero1: 90.0 samples/s, the fastest that fits",
        "with less memory, zero3: 30.00 GiB instead of 60.00 GiB, 33% slower",
        "ddp does not fit: 81.00 GiB",
    )


def test_recommends_none_if_none_fits():
    choice = recommend([row("ddp", 100, 81), row("zero3", 60, 70)], 40 * GIB)
    assert choice.strategy is None
    assert choice.why[0] == "none fits: zero3 needs the least, 70.00 of 40.00 GiB"


def test_failed_strategy_has_a_reason_and_no_figures():
    failed = Row(strategy="zero1", failed="out of memory")
    assert recommend([failed]).strategy is None
    assert recommend([failed, row("ddp", 1, 1)]).strategy == "ddp"
    assert "| zero1 | (out of memory) |" in table([failed, row("ddp", 1, 1)])[2]


def test_merges_rounds_to_median_speed_and_maximum_memory():
    merged = merge_rounds([row("ddp", 10, 1), row("ddp", 30, 3), row("ddp", 11, 2)])
    assert (merged.samples_per_s, merged.peak_bytes) == (11, 3 * GIB)
    failed = Row(strategy="ddp", failed="out of memory")
    assert merge_rounds([row("ddp", 10, 1), failed]) == failed


def test_all_table_rows_have_the_same_number_of_cells():
    lines = table([row("ddp", 10, 1), Row(strategy="zero1", failed="why"), row("fsdp2", 5, 1)])
    assert all(one.count("|") == other.count("|") for one, other in pairwise(lines))
    assert lines[-1].startswith("| fsdp2 | 5.0 | 0.50 | 1.00 |")


def test_loss_difference():
    assert loss_difference([row("ddp", 1, 1, loss=2.5), row("zero1", 1, 1, loss=2.0)]) == 0.5


def test_prints_figures_measured_elsewhere(tmp_path, capsys):
    files = []
    for strategy, speed in (("zero2", 8.0), ("ddp", 10.0)):
        files.append(tmp_path / f"{strategy}.json")
        files[-1].write_text(json.dumps(figures(strategy, speed)))
    frameworks.main(["--from", *map(str, files)])
    shown = capsys.readouterr().out.splitlines()
    assert (
        shown[0] == "2 ranks, CPU, 0.1 M parameters, fp32, 4 images per rank, torch 2.13.0, 1 round"
    )
    assert shown[4] == "| ddp | 10.0 | 1.00 | 1.00 | 40% | 25% | 3.0 | 2.0 | 3 | 0.50 | 3.5000 |"
    assert shown[5].startswith("| zero2 | 8.0 | 0.80 |")
    assert shown[7] == "recommended: ddp"
    assert shown[-2].startswith("  one round:")
    assert shown[-1].startswith("  measured on CPUs with gloo")


def test_warns_if_jobs_are_not_comparable():
    lines = frameworks.report([figures("ddp"), figures("zero1", ranks=4)], None)
    assert lines[-1] == "  not comparable: jobs differ in ranks"


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried", "out of memory"),
        ("x\n[rank0]: ValueError: no such key\nmore", "ValueError: no such key"),
        (
            "2 ranks cannot form 2 groups of at least two ranks, as hybrid requires\n",
            "2 ranks cannot form",
        ),
        ("", "it failed without an error message"),
    ],
)
def test_failure_reason(errors, expected):
    assert frameworks.failure_reason(errors).startswith(expected)


@pytest.mark.slow
@pytest.mark.matrix
def test_measures_real_jobs(tmp_path, capsys):
    saved = tmp_path / "kept.json"
    frameworks.main(
        [
            "--strategies",
            "ddp",
            "hybrid",
            "--ranks",
            "2",
            "--rounds",
            "1",
            "--size",
            "tiny",
            "--precision",
            "fp32",
            "--steps",
            "4",
            "--json",
            str(saved),
            "--folder",
            str(tmp_path),
        ]
    )
    shown = capsys.readouterr().out
    assert "\n| ddp | " in shown
    assert "| hybrid | (2 ranks cannot form 2 groups" in shown
    assert "recommended: ddp" in shown
    assert [run["strategy"] for run in json.loads(saved.read_text())] == ["ddp", "hybrid"]
    assert list(tmp_path.iterdir()) == [saved]
