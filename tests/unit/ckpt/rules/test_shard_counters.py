"""Files of different saves with equal times: step counters and schedulers in each file tell."""

import os
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp

from holdfast.ckpt.seal import seal_checkpoint
from holdfast.ckpt.verification import verify_checkpoint
from tests.unit.ckpt.formats import zero_files


def equal_times(folder):
    for path in folder.rglob("*"):
        os.utime(path, (1e9, 1e9))
    return folder


@pytest.mark.parametrize("stage", [2, 3])
def test_an_optimizer_file_of_another_step_is_found(tmp_path, stage):
    torn = zero_files.write(tmp_path / "torn" / "global_step3", stage=stage)
    other = zero_files.write(tmp_path / "other" / "global_step4", stage=stage, step=4)
    name = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    assert verify_checkpoint(equal_times(torn)).exit_status == 0
    shutil.copy(other / name, torn / name)
    report = verify_checkpoint(equal_times(torn))
    assert report.exit_status == 1
    assert any(
        "state.0.step is 4.0 in zero_pp_rank_1" in finding.message for finding in report.findings
    )


@pytest.mark.filterwarnings("ignore")
def test_files_that_nothing_tells_apart_are_inconclusive_until_sealed(tmp_path):
    folder = tmp_path / "ckpt"
    writer = dcp.FileSystemWriter(folder, thread_count=2)
    dcp.save(
        {f"w{number}": torch.randn(9, 9) for number in range(6)},
        storage_writer=writer,
        no_dist=True,
    )
    assert len(list(folder.glob("*.distcp"))) == 2
    report = verify_checkpoint(equal_times(folder))
    assert report.exit_status == 3
    assert "nothing can tell whether they are of one save" in report.verdict.unseen[0]
    seal_checkpoint(folder)
    assert verify_checkpoint(equal_times(folder)).exit_status == 0
