"""Training does not begin at step 0 where checkpoints exist or may exist, unless allowed."""

import shutil

import pytest
import torch

import holdfast
from holdfast.core.errors import CheckpointFailed
from tests.ports import free_port


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_HISTORY", str(tmp_path / "history"))
    monkeypatch.setenv("HOLDFAST_TRACE", "/dev/shm/run-a/rank0.trace")

    def start(**options):
        model = torch.nn.Linear(2, 2)
        return holdfast.Checkpoint(tmp_path / "ckpts", model=model, asynchronous=False, **options)

    return start


def test_a_new_job_starts_at_step_0(job):
    assert job().load() is None


def test_a_folder_that_is_gone_stops_the_job(job, tmp_path, monkeypatch):
    job().save(150)
    shutil.rmtree(tmp_path / "ckpts")
    monkeypatch.setenv("HOLDFAST_TRACE", "/dev/shm/run-b/rank0.trace")
    with pytest.raises(CheckpointFailed, match="but step 150 was saved there") as stopped:
        holdfast.Hooks(job()).resume()
    assert "start with --allow-fresh-start" in str(stopped.value)
    assert not (tmp_path / "ckpts").exists()
    assert job(allow_fresh_start=True).load() is None
    monkeypatch.setenv("HOLDFAST_ALLOW_FRESH_START", "on")
    assert job().load() is None


def test_a_run_never_loses_its_own_checkpoints(job, tmp_path):
    job().save(150)
    shutil.rmtree(tmp_path / "ckpts")
    with pytest.raises(CheckpointFailed, match="step 150 was saved there by this run: mount"):
        job(allow_fresh_start=True).load()


def test_discarded_steps_are_not_expected(job):
    job().save(150)
    assert job().load(before=100) is None


@pytest.mark.filterwarnings("ignore")
def test_copies_that_cannot_be_searched_stop_the_job(job, monkeypatch):
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()  # of other tests' endpoints
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    with pytest.raises(CheckpointFailed, match="could not be read: s3://bucket/a: "):
        job(copies=["s3://bucket/a"]).load()
    assert job(copies=["s3://bucket/a"], allow_fresh_start=True).load() is None
