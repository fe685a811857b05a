"""The job learns, its input options only change its speed, and a resumed run is identical."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import holdfast
from tests.forked_programs import RunningProgram

EXAMPLE = Path(__file__).parents[3] / "examples" / "rvq"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "RANK"} | {
    "OMP_NUM_THREADS": "1"
}
ERROR_REACHED = (
    0.005  # as stated in train.py and its README, after 300 steps at the default settings
)
#: Sends SIGTERM to rank 1, or to the only rank, within step ``sys.argv[1]``.
SIGNALLER = """
import itertools, os, runpy, signal, sys
from torch.optim.optimizer import register_optimizer_step_post_hook
_, step, *sys.argv = sys.argv
steps = itertools.count(1)
def send(*_):
    if next(steps) == int(step):
        os.kill(os.getpid(), signal.SIGTERM)
if os.environ.get("RANK", "1") == "1":
    register_optimizer_step_post_hook(send)
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def command(processes: int, *arguments: str) -> list[str]:
    """Return the command for this many processes; a single one has no launcher."""
    launcher = (
        ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        if processes > 1
        else []
    )
    return [sys.executable, *launcher, *arguments]


def train(processes: int, *arguments: str) -> str:
    """Run to the end; return the output."""
    done = run(processes, str(EXAMPLE / "train.py"), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(processes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = command(processes, *arguments)[1:]
    return RunningProgram(*program, folder=Path.cwd(), OMP_NUM_THREADS="1").result()


def last_numbers(printed: str) -> tuple[float, float]:
    """Return the last loss of rank 0 and the held-out error."""
    match = re.search(r"^done: step \d+, loss (\S+), held-out error (\S+)$", printed, re.MULTILINE)
    assert match, printed
    return float(match[1]), float(match[2])


@pytest.mark.slow
@pytest.mark.parametrize(
    "processes",
    [pytest.param(1, marks=pytest.mark.matrix), 2, pytest.param(4, marks=pytest.mark.matrix)],
)
def test_error_reaches_the_documented_value(processes):
    _, error = last_numbers(train(processes))
    assert error < ERROR_REACHED


# Loading


@pytest.fixture
def data(monkeypatch):
    """Return the example's module, in a job with one rank."""
    monkeypatch.syspath_prepend(EXAMPLE)
    import data

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield data
    dist.destroy_process_group()
    del sys.modules["data"]


def loader_of(data, **settings):
    images, _ = data.load_digits()
    chosen = holdfast.loader_settings(**settings)
    return data.DigitsLoader(images[:300], chosen, 64, torch.device("cpu"))


def first_batches(loader, count=9):  # an epoch has 4
    return [batch.clone() for batch in itertools.islice(holdfast.loop(loader, steps=count), count)]


@pytest.mark.parametrize(
    "settings",
    [
        {"cache": True},
        {"prefetch": 2},
        {"cache": True, "prefetch": 3},
        pytest.param({"workers": 1}, marks=pytest.mark.slow),
        pytest.param({"workers": 2, "prefetch": 2}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_every_way_to_load_gives_the_same_batches(data, settings):
    plain = first_batches(loader_of(data))
    assert len({batch.sum().item() for batch in plain}) == 9
    pairs = zip(plain, first_batches(loader_of(data, **settings)), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    assert [each for each in threading.enumerate() if each.name == "prefetch"] == []


def test_the_settings_act(data):
    def pulled(loader):
        """Return how many batches are selected when the first one has been used."""
        chosen, dataset = [], loader.dataset
        selected = threading.Semaphore(0)
        original = type(dataset).__getitems__

        def record(indices):
            chosen.append(indices)
            selected.release()
            return original(dataset, indices)

        dataset.__getitems__ = record
        batches = iter(loader)
        next(batches)
        for _ in range(1 + loader.depth):
            assert selected.acquire(timeout=20)
        return len(chosen)

    assert pulled(loader_of(data)) == 1
    assert pulled(loader_of(data, prefetch=2)) >= 3
    assert loader_of(data, workers=2).num_workers == 2
    images, _ = data.load_digits()
    cached = data.DigitsLoader(
        images, holdfast.loader_settings(cache=True), 64, torch.device("meta")
    )
    assert cached.dataset.images.device.type == "meta"


def test_an_exception_while_prefetching_is_raised_by_the_loop(data):
    loader = loader_of(data, prefetch=2)

    def fail(_):
        raise OSError("the disk is gone")

    loader.dataset.__getitems__ = fail
    with pytest.raises(OSError, match="the disk is gone"):
        next(iter(loader))


def test_the_length_depends_on_the_step_only(data):
    batch = torch.arange(8.0).view(1, 8, 1)
    cuts = [data.cut(batch, step) for step in range(60)]
    assert {each.shape[1] for each in cuts} == set(data.LENGTHS)
    assert all(torch.equal(each, data.cut(batch, step)) for step, each in enumerate(cuts))


@pytest.mark.slow
def test_a_preset_chooses_how_the_job_loads():
    script = str(EXAMPLE / "train.py")
    done = run(
        1, "-m", "holdfast", "run", "--preset", "gpu_cache,conservative", script, "--max-steps", "2"
    )
    assert done.returncode == 0, done.stderr
    assert "does not call holdfast.loader_settings()" not in done.stderr
    assert "micro-batches 2 (environment)" in done.stdout


@pytest.mark.matrix
def test_input_pipelines_give_identical_results():
    steps = ("--multi-length-training", "--max-steps", "25")  # an epoch of one process has 23
    plain = last_numbers(train(1, *steps))
    assert last_numbers(train(1, *steps, "--gpu-cache")) == plain
    assert last_numbers(train(1, *steps, "--prefetch", "--num-workers", "1")) == plain


@pytest.mark.matrix
def test_the_gradients_of_micro_batches_are_those_of_the_batch():
    plain = last_numbers(train(1, "--max-steps", "4"))
    split = last_numbers(train(1, "--max-steps", "4", "--micro-batches", "4"))
    assert split == pytest.approx(plain, rel=0.2)  # other draws of noise


# Interruption


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "step"),
    [
        (2, 11),  # the last but one of the epoch
        pytest.param(1, 1, marks=pytest.mark.matrix),
        pytest.param(2, 1, marks=pytest.mark.matrix),
        pytest.param(2, 12, marks=pytest.mark.matrix),
        pytest.param(2, 29, marks=pytest.mark.matrix),
    ],
)
def test_sigterm_within_a_step_loses_nothing(tmp_path, processes, step):
    # Ranks agree on a step within a fraction of a second, in which they continue.
    steps = ("--multi-length-training", "--prefetch", "--max-steps", "200")
    signaller = tmp_path / "signaller.py"
    signaller.write_text(SIGNALLER)
    folder = tmp_path / "checkpoints"
    saved = ("--checkpoint-dir", str(folder), "--checkpoint-every", "1000")
    script = str(EXAMPLE / "train.py")
    stopped = run(processes, str(signaller), str(step), script, *steps, *saved)
    assert stopped.returncode == (143 if processes == 1 else 1), stopped.stderr
    newest = int(max(folder.glob("step-*")).name.removeprefix("step-"))
    assert step <= newest < 200, stopped.stdout + stopped.stderr
    resumed = train(processes, *steps, *saved)
    assert f"resumed from step {newest}" in resumed
    assert last_numbers(resumed) == last_numbers(train(processes, *steps))


def kill_after_checkpoint(folder: Path, step: int, *arguments: str) -> None:
    """Start a job of two processes, and kill all of it once the checkpoint of the step exists."""
    job = subprocess.Popen(
        command(2, str(EXAMPLE / "train.py"), *arguments),
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    deadline = time.monotonic() + 60
    while (
        not (folder / f"step-{step:010d}").exists()
        and job.poll() is None
        and time.monotonic() < deadline
    ):
        time.sleep(0.02)
    assert job.poll() is None, "the job ended before it could be interrupted"
    workers = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(job.pid)], capture_output=True, text=True, check=True
    )
    for pid in [*map(int, workers.stdout.split()), job.pid]:
        os.kill(pid, signal.SIGKILL)
    job.wait()


@pytest.mark.matrix
def test_resumed_run_equals_an_uninterrupted_one(tmp_path):
    steps = ("--multi-length-training", "--max-steps", "60")
    checkpoints = ("--checkpoint-dir", str(tmp_path), "--checkpoint-every", "5")
    uninterrupted = last_numbers(train(2, *steps))

    kill_after_checkpoint(tmp_path, 15, *steps, *checkpoints)
    newest = max(tmp_path.glob("step-*"))
    shard = max(newest.glob("*.distcp"), key=lambda path: path.stat().st_size)
    shard.write_bytes(shard.read_bytes()[:-1000])  # as a disk that ran full leaves it
    printed = train(2, *steps, *checkpoints, "--resume")

    before = int(newest.name.removeprefix("step-"))
    resumed = re.search(r"^resumed from step (\d+)$", printed, re.MULTILINE)
    assert resumed
    assert 0 < int(resumed[1]) < before
    assert last_numbers(printed) == uninterrupted
    assert max(place.name for place in tmp_path.glob("step-*")) == "step-0000000060"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--resume",), "--resume requires --checkpoint-dir"),
        pytest.param(
            ("--gpu-cache", "--num-workers", "2"),
            "--gpu-cache needs no --num-workers",
            marks=pytest.mark.matrix,
        ),
    ],
)
def test_contradictory_options_are_refused(arguments, message):
    done = run(1, str(EXAMPLE / "train.py"), *arguments)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(message)
    assert "Traceback" not in done.stderr
