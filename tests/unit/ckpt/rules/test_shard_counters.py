"""Files of different saves with equal times, and files that changed places."""

import os
import random
import shutil

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from holdfast.ckpt.contents import CheckpointContents, Tensor, TensorShard
from holdfast.ckpt.rules.verify import judge_checkpoint
from holdfast.ckpt.seal import seal_checkpoint
from holdfast.ckpt.verification import verify_checkpoint
from holdfast.ckpt.verify.survey import survey_checkpoint
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


def optimizer_files(folder):
    return sorted(folder.glob("*optim_states.pt"))


def swap(one, other):
    one.rename(other.with_suffix(".tmp"))
    other.rename(one)
    other.with_suffix(".tmp").rename(other)


def test_swapped_zero3_shards_are_found(tmp_path):
    folder = zero_files.write(tmp_path / "global_step3", stage=3)
    assert verify_checkpoint(equal_times(folder)).exit_status == 0
    swap(*optimizer_files(folder))
    report = verify_checkpoint(equal_times(folder))
    assert report.exit_status == 1
    assert "was written as zero_pp_rank_" in report.verdict.root.message


def test_files_without_their_name_may_be_swapped(tmp_path):
    folder = zero_files.write(tmp_path / "global_step3", stage=3)
    for path in optimizer_files(folder):
        state = torch.load(path, weights_only=False)
        with path.open("wb") as stream:  # torch does not know the name
            torch.save(state, stream)
    report = verify_checkpoint(equal_times(folder))
    assert report.exit_status == 3
    assert "whether ranks' files were swapped" in report.verdict.unseen[0]
    seal_checkpoint(folder)
    assert verify_checkpoint(folder).exit_status == 0


def test_a_file_that_was_renamed_from_a_temporary_name_is_in_its_place(tmp_path):
    folder = zero_files.write(tmp_path / "global_step3", stage=3)
    for path in optimizer_files(folder):
        temporary = path.with_name(f"{path.name}.tmp")
        torch.save(torch.load(path, weights_only=False), temporary)
        temporary.replace(path)
    assert verify_checkpoint(equal_times(folder)).exit_status == 0


def save_dcp(folder, step):
    torch.manual_seed(0)
    state = {
        f"w{number}": {"step": torch.tensor(float(step)), "exp_avg": torch.randn(9, 9)}
        for number in range(8)
    }
    writer = dcp.FileSystemWriter(folder, thread_count=2)
    dcp.save({"optimizer": {"state": state}}, storage_writer=writer, no_dist=True)
    return equal_times(folder)


@pytest.mark.filterwarnings("ignore")
def test_a_dcp_file_of_another_step_is_found(tmp_path):
    torn, other = save_dcp(tmp_path / "torn", 3), save_dcp(tmp_path / "other", 5)
    assert verify_checkpoint(torn).exit_status == 0
    file = sorted(torn.glob("*.distcp"))[1]
    shutil.copy(other / file.name, file)
    report = verify_checkpoint(equal_times(torn))
    assert report.exit_status == 1
    assert "optimizer.state.*.step is " in report.verdict.root.message


@pytest.mark.filterwarnings("ignore")
def test_swapped_dcp_files_are_no_traceback(tmp_path):
    folder = tmp_path / "ckpt"
    groups = [{"params": [f"w{number}"], "lr": 0.1} for number in range(4)]
    state = {f"w{number}": {"exp_avg": torch.randn(9, 9)} for number in range(5)}
    writer = dcp.FileSystemWriter(folder, thread_count=2)
    dcp.save(
        {"optimizer": {"state": state, "param_groups": groups}}, storage_writer=writer, no_dist=True
    )
    swap(*sorted(folder.glob("*.distcp")))
    assert verify_checkpoint(folder).exit_status == 1


@pytest.mark.parametrize(("factor", "found"), [(1.3, False), (30.0, True)])
def test_a_file_with_values_of_another_magnitude(tmp_path, factor, found):
    rng = np.random.default_rng(0)
    tensors = {}
    scales = {"__0_0.distcp": 1.0, "__1_0.distcp": factor}
    files = dict.fromkeys(scales, b"")
    for number in range(6):
        shards = []
        for row, (name, scale) in enumerate(scales.items()):
            values = (scale * rng.standard_normal((10, 20)) * 10.0**number).astype(np.float32)
            start, offset = (10 * row, 0), len(files[name])
            shards.append(TensorShard(file=name, offset=offset, shape=(10, 20), start=start))
            files[name] += values.tobytes()
        tensors[f"w{number}"] = Tensor(
            name=f"w{number}", dtype="float32", shape=(20, 20), shards=tuple(shards)
        )
    for at, (name, data) in enumerate(files.items()):
        (tmp_path / name).write_bytes(data)
        os.utime(tmp_path / name, (1e9 + at, 1e9 + at))
    contents = CheckpointContents(format="dcp", root=str(tmp_path), tensors=tensors)
    findings = judge_checkpoint(survey_checkpoint(contents))
    assert any("times as large as the other" in finding.message for finding in findings) is found


def random_states(folder, seeds):
    folder.mkdir()
    save_file({"w": torch.ones(3)}, folder / "model.safetensors")
    for rank, seed in enumerate(seeds):
        states = {
            "random_state": random.Random(seed).getstate(),
            "numpy_random_seed": np.random.RandomState(seed).get_state(),
            "torch_manual_seed": torch.Generator().manual_seed(seed).get_state(),
        }
        torch.save(states, folder / f"random_states_{rank}.pkl")
    return verify_checkpoint(equal_times(folder)).findings


@pytest.mark.parametrize(
    ("seeds", "level", "named"),
    [
        ((1, 1, 1, 1), None, ""),
        ((1, 2, 3, 4), None, ""),
        ((1, 1, 2, 2), None, ""),  # tensor parallel ranks
        ((9, 1, 1, 1), None, ""),  # rank 0 draws more
        ((1, 2, 3, 2), "note", "random_states_1.pkl and random_states_3.pkl"),
        ((1, 1, 9, 1), "note", "random_states_2.pkl"),
    ],
)
def test_random_states_of_ranks_are_compared(tmp_path, seeds, level, named):
    findings = [each for each in random_states(tmp_path / "s", seeds) if "random" in each.message]
    assert [str(finding.level) for finding in findings] == ([level] if level else [])
    assert all(named in finding.message for finding in findings)
