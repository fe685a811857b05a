"""Locations of dump requests: holdfast's, the user's, or none if pipes cannot be created."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.launcher.dump_locations import PIPE, DumpLocations
from holdfast.watcher.agent_messages import DumpLocation

OLD, NEW = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"


def test_locations_are_unique_per_rank_and_generation(tmp_path):
    locations = DumpLocations(tmp_path / "flight-recorder", {})
    beginning = f"{tmp_path}/flight-recorder/generation2-rank3"
    assert locations.variables(3, 2) == {PIPE: f"{beginning}-ask", OLD: f"{beginning}-dump"}
    assert locations.location(3, 2) == DumpLocation(f"{beginning}-ask", f"{beginning}-dump")
    assert locations.location(3, 1) != locations.location(3, 2) != locations.location(4, 2)


@pytest.mark.parametrize("name", [OLD, NEW])
def test_the_users_dump_path_is_kept_in_either_variable(tmp_path, name):
    locations = DumpLocations(tmp_path / "flight-recorder", {name: "/data/trace_"})
    assert list(locations.variables(0, 0)) == [PIPE]
    assert locations.location(0, 0).dump == "/data/trace_"


def test_the_variable_that_takes_precedence_in_torch_is_used(tmp_path):
    locations = DumpLocations(tmp_path / "flight-recorder", {OLD: "/old/", NEW: "/new/"})
    assert locations.location(0, 0).dump == "/new/"


def test_the_users_pipe_is_relative_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    locations = DumpLocations(tmp_path / "flight-recorder", {PIPE: "pipes/"})
    assert list(locations.variables(0, 0)) == [OLD]
    assert locations.location(0, 0).pipe == f"{tmp_path}/pipes/"


def test_no_variable_is_set_if_pipes_cannot_be_created(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(1, "no", path)

    monkeypatch.setattr(os, "mkfifo", refuse)
    locations = DumpLocations(tmp_path / "flight-recorder", {})
    assert locations.variables(0, 0) == {}
    assert locations.location(0, 0) is None
    own = DumpLocations(tmp_path / "flight-recorder", {PIPE: "/a", NEW: "/b"})
    assert own.location(0, 0) == DumpLocation("/a", "/b")


def test_close_removes_pipes_and_keeps_dumps(tmp_path):
    folder = tmp_path / "flight-recorder"
    locations = DumpLocations(folder, {})
    os.mkfifo(folder / "generation0-rank0-ask0.pipe")
    (folder / "generation0-rank0-dump0").write_bytes(b"")
    locations.close()
    assert [path.name for path in folder.iterdir()] == ["generation0-rank0-dump0"]
    (folder / "generation0-rank0-dump0").unlink()
    locations.close()
    locations.close()
    assert not folder.exists()


GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_gloo_job_is_not_affected(tmp_path):
    """No pipe or dump is created, and torch prints no warning about the variables."""
    locations = DumpLocations(tmp_path / "flight-recorder", {})
    environment = {**os.environ, **locations.variables(0, 0)}
    script = GROUP.format(store=tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert (done.returncode, "TORCH_NCCL" in done.stderr) == (0, False)
    assert list(Path(tmp_path / "flight-recorder").iterdir()) == []
