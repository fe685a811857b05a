"""Finding the training jobs of this host among real processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager

import pytest

from holdfast.core.errors import NoJob
from holdfast.diagnose.attach import jobs
from holdfast.diagnose.attach.jobs import JobSearch
from holdfast.host.processes.training_processes import ProcessTable, identify_rank, launcher_name

#: A rank that starts a worker with its environment, prints the worker's pid, and waits for the end of stdin.
WITH_WORKER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import sys; print('up', flush=True); sys.stdin.read()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
worker.stdout.readline()
print("worker", worker.pid, flush=True)
sys.stdin.read()
worker.stdin.close()
worker.wait()
"""


@contextmanager
def ranks(count, world_size=None, **variables):
    """Start processes with the environment of ranks; yield (rank pid, worker pid) of each."""
    kept = {
        name: text
        for name, text in os.environ.items()
        if name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
    }
    started = []
    try:
        for rank in range(count):
            named = {
                "RANK": str(rank),
                "WORLD_SIZE": str(world_size or count),
                "LOCAL_RANK": str(rank),
            } | variables
            process = subprocess.Popen(
                [sys.executable, "-c", WITH_WORKER, "holdfast-test-train.py"],
                env=kept | named,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(process)
        yield [(each.pid, int(each.stdout.readline().split()[1])) for each in started]
    finally:
        for each in started:
            each.stdin.close()
            each.wait(20)
            each.stdout.close()


PLACE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "41234", "LOCAL_WORLD_SIZE": "3"}


def test_ranks_form_a_job_without_their_workers():
    with ranks(3, **PLACE) as started:
        for search in (
            JobSearch(port=41234),
            JobSearch(pids=(started[1][0],)),
            JobSearch(pids=(started[2][1],)),
        ):
            (job,) = jobs.find_jobs(search)
            assert [(rank.rank, rank.pid) for rank in job.ranks] == [
                (at, pid) for at, (pid, _) in enumerate(started)
            ]
        assert (job.world_size, job.local_size, job.key) == (3, 3, ("127.0.0.1", "41234", 3))
        assert job.script == "holdfast-test-train.py"
        pid = started[0][0]
        assert (job.facts[0].text, job.facts[0].origin) == (
            f"rank 0 of 3 is process {pid}",
            f"RANK in /proc/{pid}/environ",
        )


def test_jobs_are_separated_by_port():
    with ranks(2, **PLACE) as one, ranks(2, **(PLACE | {"MASTER_PORT": "41235"})) as other:
        found = jobs.find_jobs(JobSearch(pids=(one[0][0], other[0][0])))
        assert sorted(job.port for job in found) == ["41234", "41235"]
        assert all(
            re.fullmatch(r"\S+ with 2 ranks at port \d+ \(--pid \d+\)", str(job)) for job in found
        )


def test_duplicate_rank_under_one_launcher_counts_once():
    with ranks(2, **PLACE) as one, ranks(2, **PLACE):
        (job,) = jobs.find_jobs(JobSearch(port=41234))
        assert [rank.pid for rank in job.ranks] == [pid for pid, _ in one]


def test_processes_without_rank_are_numbered_in_start_order():
    with ranks(2, RANK="", WORLD_SIZE="") as started:
        (job,) = jobs.find_jobs(JobSearch(pids=(started[1][0], started[0][0])))
    assert [rank.pid for rank in job.ranks] == [pid for pid, _ in started]
    assert "numbered in the order" in job.unseen[0]


def test_error_names_the_search_criteria():
    with pytest.raises(NoJob, match="process 4194303: there is no such process"):
        jobs.find_jobs(JobSearch(pids=(2**22 - 1,)))
    with pytest.raises(NoJob, match="--name no-such-program --port 1"):
        jobs.find_jobs(JobSearch(name="no-such-program", port=1))


@pytest.mark.parametrize(
    ("environ", "found"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, (3, 8, 1, "RANK")),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "16"}, (5, 16, None, "SLURM_PROCID")),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
            (3, 8, None, "RANK"),
        ),
        ({"RANK": "8", "WORLD_SIZE": "8"}, None),
        ({"RANK": "x", "WORLD_SIZE": "8"}, None),
        ({"RANK": "1"}, None),
        ({}, None),
    ],
)
def test_rank_is_read_from_launcher_variables(environ, found):
    identity = identify_rank(environ)
    assert (
        None
        if identity is None
        else (identity.rank, identity.world_size, identity.local_rank, identity.origin)
    ) == found


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("/usr/bin/python3 /opt/bin/torchrun --nproc-per-node 8 train.py", "torchrun"),
        ("python -m torch.distributed.run train.py", "torchrun"),
        ("python -u -m deepspeed.launcher.launch train.py", "deepspeed"),
        ("/usr/bin/python /opt/bin/accelerate launch train.py", "accelerate"),
        ("srun -N 2 python train.py", "srun"),
        ("slurmstepd: [1234.0]", "srun"),
        ("python -m holdfast run train.py", "holdfast run"),
        ("python train.py --launcher torchrun", ""),
        ("python -m trainer torchrun", ""),
        ("", ""),
    ],
)
def test_launcher_is_recognized_by_command_line(line, name):
    assert launcher_name(tuple(line.split())) == name


def test_launcher_with_a_process_title_is_recognized():
    assert launcher_name(("slurmstepd: [1234.0]",)) == "srun"


def test_the_command_begins_at_the_script_and_has_no_secrets():
    bootstrap = ("python", "-u", "-m", "holdfast.recorder.bootstrap")
    for words, command in (
        (("python", "-u", "a/train.py", "--lr", "1"), ("a/train.py", "--lr", "1")),
        (("python", "-m", "trainer.main", "--x"), ("-m", "trainer.main", "--x")),
        ((*bootstrap, "train.py", "-m"), ("train.py", "-m")),
        ((*bootstrap, "-m", "trainer"), ("-m", "trainer")),
        (("python", "train.py", "--api-key", "q8Zr2LmX"), ("train.py", "--api-key")),
        (("./train", "--lr", "1"), ()),
    ):
        assert jobs.script_command(words)[: len(command) or None] == command
    assert "q8Zr2LmX" not in jobs.script_command(("python", "t.py", "--api-key", "q8Zr2LmX"))


def test_program_name_is_short():
    assert jobs.program_name(("python", "-u", "/job/src/train.py", "--lr", "1")) == "train.py"
    assert jobs.program_name(("python", "-m", "trainer.main")) == "trainer.main"
    assert (
        jobs.program_name(("python", "-m", "holdfast.recorder.bootstrap", "train.py")) == "train.py"
    )
    assert jobs.program_name(()) == "a process without a command line"


@pytest.mark.parametrize(
    ("started", "order"),
    [
        ({7: 1, 5: 2, 6: 2}, [7, 5, 6]),
        (
            {32767: 4, 301: 4, 302: 4, 9: 3},
            [9, 32767, 301, 302],
        ),  # pids wrap around after the highest one
        ({1: 0, 9000: 0}, [1, 9000]),
    ],
)
def test_processes_of_one_tick_are_ordered_by_id(tmp_path, started, order):
    for pid, ticks in started.items():
        (tmp_path / str(pid)).mkdir()
        numbers = ["0"] * 17 + [str(ticks)] + ["0"] * 30
        (tmp_path / str(pid) / "stat").write_text(f"{pid} (python) S 1 {' '.join(numbers)}")
    (tmp_path / "sys" / "kernel").mkdir(parents=True)
    (tmp_path / "sys" / "kernel" / "pid_max").write_text("32768\n")
    assert ProcessTable(tmp_path).in_order_of_starts(started) == order


#: A script that starts a copy of itself for local rank 1, as Lightning does; it maps a libtorch.
STARTS_A_COPY = """
import mmap, os, subprocess, sys
folder, waits = sys.argv[1], "import sys; print(flush=True); sys.stdin.read()"
with open(f"{folder}/libtorch_fake.so", "w+b") as file:
    file.write(b"0")
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0)
named = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "41299", "NODE_RANK": "1", "LOCAL_RANK": "1"}
copy = subprocess.Popen([sys.executable, "-c", waits, "lightning-train.py"], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, env=os.environ | named | {"WORLD_SIZE": "4"})
copy.stdout.readline()
print(copy.pid, flush=True)
sys.stdin.read()
copy.stdin.close()
copy.wait()
"""


def test_a_script_that_starts_its_other_ranks_is_rank_0_of_its_node(tmp_path):
    kept = {
        name: text
        for name, text in os.environ.items()
        if name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"}
    }
    with subprocess.Popen(
        [sys.executable, "-c", STARTS_A_COPY, str(tmp_path), "lightning-train.py"],
        env=kept,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as script:
        copy = int(script.stdout.readline())
        (job,) = jobs.find_jobs(JobSearch(pids=(script.pid,)))
    assert [(rank.rank, rank.pid) for rank in job.ranks] == [(2, script.pid), (3, copy)]
    assert (job.world_size, job.port, job.local_size) == (4, "41299", 2)
    assert job.script == "lightning-train.py"
