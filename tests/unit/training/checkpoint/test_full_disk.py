"""A save that finds the disk full names it, and a failed last save ends the job with an error."""

import errno
import os

import pytest
import torch

import holdfast
from holdfast.core.errors import CheckpointFailed
from holdfast.training.checkpoint import writing


@pytest.fixture
def full(monkeypatch):
    """Make every write of a rank's state fail as on a full disk (a real one needs root)."""

    def write_bytes(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    return lambda: monkeypatch.setattr(writing, "write_bytes", write_bytes)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_last_save_on_a_full_disk_ends_with_an_error(tmp_path, full, asynchronous):
    checkpoint = holdfast.Checkpoint(
        tmp_path, model=torch.nn.Linear(2, 2), every_steps=2, asynchronous=asynchronous
    )
    loop = holdfast.loop([1, 2, 3, 4, 5, 6], checkpoint=checkpoint)
    with pytest.raises(CheckpointFailed) as failed:  # noqa: PT012
        for number in loop:
            if number == 3:
                checkpoint.wait()
                full()
    assert f"saving step 6 failed: No space left on device: the disk of {tmp_path} is full" in str(
        failed.value
    )
    assert "GB free)" in str(failed.value)
    assert (tmp_path / "step-0000000002").is_dir()
