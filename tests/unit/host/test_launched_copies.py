"""Identify which copy of a launched command this process is, from its environment and its ancestors."""

from __future__ import annotations

import os

import pytest

from holdfast.host.processes.launched_copies import MAX_NAMES, host_names, this_copy
from holdfast.host.processes.training_processes import ProcessTable


@pytest.mark.parametrize(
    ("short", "names"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],login", ["n08", "n09", "n10", "n12", "login"]),
        ("rack[1-2]n[1-2]x", ["rack1n1x", "rack1n2x", "rack2n1x", "rack2n2x"]),
        ("a-1,b", ["a-1", "b"]),
        ("", []),
        ("n[a-b]", ["n[a-b]"]),
        ("n[1-]", ["n1"]),
        ("n[-3]", []),
        ("n[1", ["n", "1"]),
    ],
)
def test_compressed_host_lists_are_expanded(short, names):
    assert list(host_names(short)) == names


def test_a_huge_host_range_is_bounded():
    assert len(list(host_names("n[0-99999999999]"))) == MAX_NAMES


def table(folder, *ancestors, **environment):
    """Return a /proc in which this process is below ``ancestors`` (command lines), the nearest first."""
    pids = [os.getpid(), *range(2**22, 2**22 + len(ancestors)), 0]
    for pid, parent, words in zip(
        pids, pids[1:], [("python", "-m", "holdfast"), *ancestors], strict=False
    ):
        (folder / str(pid)).mkdir()
        numbers = " ".join(["0"] * 48)
        (folder / str(pid) / "stat").write_text(f"{pid} (python) S {parent} {numbers}")
        (folder / str(pid) / "cmdline").write_text("".join(word + "\0" for word in words))
        (folder / str(pid) / "environ").write_text(
            "".join(f"{name}={text}\0" for name, text in environment.items())
        )
    return ProcessTable(folder)


STEP = ("slurmstepd: [12.0]",)
SLURM = {
    "SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0", "SLURM_NODEID": "1", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[07-08]", "SLURM_LOCALID": "0",
}  # fmt: skip
ELASTIC = {
    "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "4",
    "TORCHELASTIC_RUN_ID": "x",
    "MASTER_ADDR": "n1",
    "MASTER_PORT": "29500",
    "LOCAL_RANK": "1",
}


def test_a_task_of_srun(tmp_path):
    copy = this_copy(table(tmp_path, ("bash", "-c", "holdfast attach"), STEP, **SLURM))
    assert (copy.launcher, copy.node, copy.nodes, copy.address) == ("srun", 1, 2, "n07")
    assert (copy.speaks, copy.allocation, copy.name(1)) == (True, "12", "node n08")


def test_a_worker_of_torchrun(tmp_path):
    copy = this_copy(
        table(tmp_path, ("python", "/opt/bin/torchrun", "-m", "holdfast"), STEP, **SLURM, **ELASTIC)
    )
    assert (copy.launcher, copy.node, copy.nodes, copy.address) == ("torchrun", 0, 4, "n1")
    assert (copy.speaks, copy.allocation, copy.name(3)) == (False, "", "node 3 of 4")


@pytest.mark.parametrize(
    ("ancestors", "environment"),
    [
        ([("bash",)], SLURM | ELASTIC),  # a shell inside a container of the job
        ([STEP], {**SLURM, "SLURM_STEP_ID": "4294967291"}),  # the batch script
        ([STEP], {**SLURM, "SLURM_STEP_ID": ""}),
        ([STEP], {**SLURM, "SLURM_NODEID": "7"}),
        ([STEP], {}),
    ],
)
def test_processes_that_are_not_a_copy(tmp_path, ancestors, environment):
    assert this_copy(table(tmp_path, *ancestors, **environment)) is None
