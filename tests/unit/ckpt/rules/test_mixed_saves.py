"""Checkpoints mixed from two saves, which real frameworks write and load without an error."""

from __future__ import annotations

import shutil
import zipfile

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.ckpt.files.torch_files import read_torch_file
from holdfast.ckpt.formats import registry
from holdfast.ckpt.rules.verify import judge_checkpoint
from holdfast.ckpt.verify.survey import survey_checkpoint
from tests.golden.checkpoints.making import made, shared_store

pytestmark = pytest.mark.slow


def findings_of(path):
    return judge_checkpoint(survey_checkpoint(registry.read_checkpoint(path)))


def change_record(path, record):
    """Add 0.01 to float32 values, as from another run, with a valid checksum."""
    with zipfile.ZipFile(path) as archive:
        records = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            changed = (
                np.frombuffer(data, np.float32) + 0.01 if name.endswith(f"/{record}") else data
            )
            archive.writestr(name, bytes(changed))


def test_dcp_save_interrupted_by_a_dead_rank(tmp_path_factory):
    folder = made(shared_store(tmp_path_factory), "interrupted")
    loaded = {"w": torch.zeros(64, 32)}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(loaded, checkpoint_id=folder / "torn", no_dist=True)
    assert loaded["w"].unique().tolist() == [1, 2]  # torch loads the mixture
    (finding,) = findings_of(folder / "torn")
    assert (finding.cause, finding.level) == ("checkpoint-half-written", "error")
    assert finding.message.startswith("__0_0.distcp of ")
    assert findings_of(folder / "whole") == ()


@pytest.mark.parametrize("dtype", [pytest.param("fp32", marks=pytest.mark.matrix), "bf16"])
def test_zero_with_a_file_of_another_save(tmp_path_factory, tmp_path, dtype):
    options = ["--stage", "2", "--dtype", dtype]
    folder = made(shared_store(tmp_path_factory), "deepspeed_zero", *options, ranks=2)
    assert findings_of(folder / "checkpoint") == ()
    shutil.copytree(folder / "checkpoint", tmp_path / "torn")
    (shard,) = (tmp_path / "torn" / "global_step3").glob("*rank_1_mp_rank_00_optim_states.pt")
    group = read_torch_file(shard).value["optimizer_state_dict"]["single_partition_of_fp32_groups"][
        0
    ]
    change_record(shard, f"data/{group.storage.key}")
    findings = findings_of(tmp_path / "torn")
    assert ("checkpoint-copies-differ", "error") in [
        (finding.cause, finding.level) for finding in findings
    ]


def test_zero_without_a_rank_file(tmp_path_factory, tmp_path):
    options = ["--stage", "2", "--dtype", "bf16"]
    folder = made(shared_store(tmp_path_factory), "deepspeed_zero", *options, ranks=2)
    shutil.copytree(folder / "checkpoint", tmp_path / "lacks")
    shutil.copytree(tmp_path / "lacks" / "global_step3", tmp_path / "lacks" / "global_step2")
    (shard,) = (tmp_path / "lacks" / "global_step3").glob("*rank_1_mp_rank_00_optim_states.pt")
    shard.unlink()
    first = findings_of(tmp_path / "lacks")[0]
    assert (first.cause, first.subject.rank) == ("checkpoint-half-written", 1)
    assert "latest still points to this checkpoint; global_step2 is complete" in first.message
