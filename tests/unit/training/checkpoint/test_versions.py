"""Other torch versions, emulated by their module names where they are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest
from torch.distributed.checkpoint import filesystem

from holdfast.core.errors import CheckpointFailed
from tests.unit.training.checkpoint.jobs import Job

#: torch 2.4 has DTensor only in ``torch.distributed._tensor``.
AS_2_4 = """
import sys, types
import torch.distributed.checkpoint.state_dict  # torch's own use of it
import torch.distributed.tensor as there
if hasattr(there, "DTensor"):
    names = types.ModuleType("torch.distributed._tensor")
    names.DTensor = there.DTensor
    del there.DTensor
    sys.modules["torch.distributed._tensor"] = names
from torch.distributed import _tensor
import holdfast
from holdfast.training.checkpoint import torch_versions as versions
assert versions.DTensor is _tensor.DTensor
print(holdfast.Checkpoint.__name__)
"""


def test_dtensor_is_imported_as_in_torch_2_4():
    done = subprocess.run(
        [sys.executable, "-c", AS_2_4], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "Checkpoint\n", done.stderr


def test_a_torch_without_the_private_name_raises_one_sentence(tmp_path, monkeypatch):
    job = Job(tmp_path / "ckpts")
    job.train(1)
    monkeypatch.delattr(filesystem, "_StorageInfo")
    with pytest.raises(CheckpointFailed, match="an unknown format"):
        job.checkpoint.save(1, asynchronous=False)
