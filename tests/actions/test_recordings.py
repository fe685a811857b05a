"""Where ranks are asked for dumps: our places, the user's places, and none where no pipe can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.actions.recordings import PIPE, Recordings
from holdfast.facts.dump_requests import DumpPlace

OLD, NEW = "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE"


def test_every_rank_of_every_generation_has_places_of_its_own(tmp_path):
    recordings = Recordings(tmp_path / "flight-recorder", {})
    beginning = f"{tmp_path}/flight-recorder/generation2-rank3"
    assert recordings.variables(3, 2) == {PIPE: f"{beginning}-ask", OLD: f"{beginning}-dump"}
    assert recordings.place(3, 2) == DumpPlace(f"{beginning}-ask", f"{beginning}-dump")
    assert recordings.place(3, 1) != recordings.place(3, 2) != recordings.place(4, 2)


@pytest.mark.parametrize("name", [OLD, NEW])
def test_the_users_place_for_dumps_is_kept_under_both_names(tmp_path, name):
    recordings = Recordings(tmp_path / "flight-recorder", {name: "/data/trace_"})
    assert list(recordings.variables(0, 0)) == [PIPE]
    assert recordings.place(0, 0).dump == "/data/trace_"


def test_of_two_places_the_one_that_torch_takes_counts(tmp_path):
    recordings = Recordings(tmp_path / "flight-recorder", {OLD: "/old/", NEW: "/new/"})
    assert recordings.place(0, 0).dump == "/new/"


def test_the_users_pipe_is_kept_and_seen_from_where_workers_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recordings = Recordings(tmp_path / "flight-recorder", {PIPE: "pipes/"})
    assert list(recordings.variables(0, 0)) == [OLD]
    assert recordings.place(0, 0).pipe == f"{tmp_path}/pipes/"


def test_nothing_is_set_where_no_pipe_can_be_made(tmp_path, monkeypatch):
    def refuse(path):
        raise PermissionError(1, "no", path)

    monkeypatch.setattr(os, "mkfifo", refuse)
    recordings = Recordings(tmp_path / "flight-recorder", {})
    assert recordings.variables(0, 0) == {}
    assert recordings.place(0, 0) is None
    own = Recordings(tmp_path / "flight-recorder", {PIPE: "/a", NEW: "/b"})
    assert own.place(0, 0) == DumpPlace("/a", "/b")


def test_pipes_go_at_the_end_and_dumps_stay(tmp_path):
    folder = tmp_path / "flight-recorder"
    recordings = Recordings(folder, {})
    os.mkfifo(folder / "generation0-rank0-ask0.pipe")
    (folder / "generation0-rank0-dump0").write_bytes(b"")
    recordings.close()
    assert [path.name for path in folder.iterdir()] == ["generation0-rank0-dump0"]
    (folder / "generation0-rank0-dump0").unlink()
    recordings.close()
    recordings.close()
    assert not folder.exists()


GROUP = """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="file://{store}", rank=0, world_size=1)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_a_job_on_gloo_does_not_notice(tmp_path):
    """Neither a pipe nor a dump is made, and torch has nothing to say about the variables."""
    recordings = Recordings(tmp_path / "flight-recorder", {})
    environment = {**os.environ, **recordings.variables(0, 0)}
    script = GROUP.format(store=tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert (done.returncode, "TORCH_NCCL" in done.stderr) == (0, False)
    assert list(Path(tmp_path / "flight-recorder").iterdir()) == []
