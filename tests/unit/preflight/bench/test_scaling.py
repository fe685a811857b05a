"""The ladder of `holdfast bench scaling`: speed, efficiency, memory, and the first failure."""

from __future__ import annotations

import json
import sys

import pytest

from holdfast.cli import bench_scaling, main
from holdfast.core.errors import InvalidValue
from holdfast.preflight.bench import scaling
from holdfast.preflight.bench.scaling import Rung, ScalingRequest
from tests.forked_programs import RunningProgram

BENCH = ("-m", "holdfast", "bench", "scaling")

SCRIPT = """
import os, time
import holdfast
if os.environ["WORLD_SIZE"] == "4":
    if os.environ["RANK"] == "3":
        raise ValueError("this batch does not fit")
    time.sleep(60)
for step in range(1, 10_000):
    holdfast.step(step)
    time.sleep(0.01 * int(os.environ["WORLD_SIZE"]))
"""


def compared(*rates: tuple[int, float], global_batch: bool = False) -> list[Rung]:
    rungs: list[Rung] = []
    for processes, rate in rates:
        rung = Rung(processes=processes, steps_per_s=rate)
        rungs.append(scaling._compare(rung, rungs, global_batch=global_batch))
    return rungs


def test_efficiency_is_the_throughput_per_process():
    alone, two, four = compared((1, 10.0), (2, 9.0), (4, 5.0))
    assert (alone.throughput, alone.efficiency) == (10.0, 1.0)
    assert (two.throughput, two.efficiency) == (18.0, pytest.approx(0.9))
    assert (four.throughput, four.efficiency) == (20.0, pytest.approx(0.5))


def test_with_a_global_batch_steps_have_to_become_faster():
    two, four = compared((2, 10.0), (4, 15.0), global_batch=True)
    assert (two.throughput, two.efficiency) == (10.0, 1.0)
    assert (four.throughput, four.efficiency) == (15.0, pytest.approx(0.75))


def test_a_failed_rung_has_no_efficiency():
    failed = scaling._compare(Rung(processes=2, failure="x"), [], global_batch=False)
    assert failed.efficiency is None
    assert bench_scaling._row(failed).split() == ["2", "failed"]


def test_more_processes_than_gpus_are_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(scaling.line_rates, "has_gpu_driver", lambda: True)
    monkeypatch.setattr(scaling.line_rates, "kernel_gpu_ids", lambda: ("10de:1", "10de:2"))
    measured = []

    class Job:
        verdict = None

        def __init__(self, _, count, environ):
            measured.append((count, environ["OMP_NUM_THREADS"]))

        def measure(self, _):
            return Rung(processes=measured[-1][0], steps_per_s=1.0)

    monkeypatch.setattr(scaling, "_RungJob", Job)
    request = ScalingRequest(script="train.py", folder=tmp_path)
    result = scaling.run_ladder(request, {"OMP_NUM_THREADS": "3"})
    assert measured == [(1, "3"), (2, "3")]
    assert result.verdict.unseen == (
        "4 processes: this host has 2 GPUs",
        "8 processes: this host has 2 GPUs",
    )


@pytest.mark.parametrize(("text", "ladder"), [("1,2,4", (1, 2, 4)), (" 4, 2,2", (2, 4))])
def test_a_ladder_is_sorted(text, ladder):
    assert bench_scaling._parse_ladder(text) == ladder


@pytest.mark.parametrize("text", ["", "0,1", "1;2", "two", "99999"])
def test_an_invalid_ladder_is_refused(text):
    with pytest.raises(InvalidValue, match="--processes"):
        bench_scaling._parse_ladder(text)


@pytest.fixture
def bench(monkeypatch, tmp_path, capsys):
    """Run `holdfast bench scaling` in this process; return exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        with pytest.raises(SystemExit) as stop:
            main(["bench", "scaling", *arguments])
        return stop.value.code, *capsys.readouterr()

    return call


def test_help_and_mistakes(bench):
    status, out, _ = bench("--help")
    assert status == 0
    assert "bench scaling [OPTIONS] SCRIPT" in out
    assert bench("missing.py")[0] == 2
    assert "--for" in bench("--for", "soon", sys.executable)[2]


@pytest.mark.slow
def test_the_first_failure_ends_the_ladder_and_is_named(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    ladder = ("--processes", "1,2,4,8", "--for", "300ms", "--json", "train.py")
    done = RunningProgram(*BENCH, *ladder, folder=tmp_path).result()
    assert done.returncode == 1
    document = json.loads(done.stdout)
    one, two, four = document["ladder"]
    assert [one["processes"], two["processes"], four["processes"]] == [1, 2, 4]
    assert one["efficiency"] == 1
    assert 0.2 < two["efficiency"] < 0.9  # its steps sleep twice as long
    assert one["memory_bytes"] > 1 << 20
    assert document["first_failure"] == four
    assert "ValueError" in four["failure"]
    assert document["verdict"]["root"]["subject"]["rank"] == 3
    assert document["findings"][0]["cause"] == "python-exception-on-one-rank"
    assert (tmp_path / "holdfast-runs").is_dir()


@pytest.mark.slow
def test_a_script_that_ends_early_is_reported(tmp_path):
    (tmp_path / "train.py").write_text("import holdfast\nfor n in range(1, 4): holdfast.step(n)")
    done = RunningProgram(*BENCH, "--processes", "1", "train.py", folder=tmp_path).result()
    assert done.returncode == 1
    assert "first failure: 1 process: the script ended after" in done.stdout
    assert "lower --warmup" in done.stdout
