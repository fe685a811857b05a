"""DeepSpeed universal checkpoints; those written by DeepSpeed are in test_deepspeed."""

import contextlib
import random
import shutil

import numpy as np
import pytest
import torch

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.deepspeed import universal as deepspeed_universal
from holdfast.ckpt.formats.deepspeed import zero as deepspeed
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable
from tests.unit.ckpt.formats.zero_files import SHAPES, numbers, write

ALL = {**SHAPES[0], **SHAPES[1]}


def universal(folder, stage=2):
    """Build one as ds_to_universal does; from ZeRO-3 with flat tensors and step in the groups."""
    write(folder, stage)
    state = torch.load(folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt")["optimizer_state_dict"]
    for file in folder.glob("*optim*"):
        file.unlink()
    for name, shape in ALL.items():
        (folder / "zero" / name).mkdir(parents=True)
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            tensor = numbers(name, shape, key)
            torch.save(
                tensor.flatten() if stage == 3 else {"param": tensor, "cat_dim": 0},
                at(folder, name, key),
            )
        if stage < 3:
            torch.save(torch.tensor(3.0), at(folder, name, "step"))
    state["param_groups"] = state.get("base_optimizer_state", state.get("optimizer_state_dict"))[
        "param_groups"
    ]
    torch.save(state, folder / "zero" / "optimizer_state.pt")
    return folder


def at(folder, name, key):
    return folder / "zero" / name / f"{key}.pt"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_read(tmp_path, stage):
    folder = universal(tmp_path / "tag", stage)
    assert (deepspeed.detect_format(folder), registry.detect_format(folder)) == (
        None,
        CheckpointFormat.UNIVERSAL,
    )
    found = registry.read_checkpoint(folder)
    assert (found.problems, found.step, found.world_size) == ((), 3, 2)
    with TensorReader(folder) as reader:
        for name, shape in ALL.items():
            assert np.array_equal(
                reader.read_tensor(found.tensors[name]), numbers(name, shape).numpy()
            )
            state = found.optimizer.tensors[name]["exp_avg_sq"]
            assert np.array_equal(
                reader.read_tensor(state), numbers(name, shape, "exp_avg_sq").numpy()
            )
            assert found.optimizer.numbers[name] == {"step": 3}
        assert bool(found.halves) == (stage < 3)
        assert reader.read_tensor(found.tensors["frozen"]).shape == (3, 2)
    assert [group.params for group in found.optimizer.groups] == [tuple(each) for each in SHAPES]
    assert found.values["epoch"] == 1
    assert len(found.files) == (15 if stage == 3 else 18)


@pytest.mark.parametrize("name", ["latest", "latest_universal"])
def test_latest_file(tmp_path, name):
    universal(tmp_path / "tag_universal")
    (tmp_path / name).write_text("tag_universal")
    assert registry.read_checkpoint(tmp_path).root == str(tmp_path / "tag_universal")


def test_original_checkpoint_takes_precedence(tmp_path):
    universal(tmp_path / "tag_universal")
    write(tmp_path / "tag")
    (tmp_path / "latest").write_text("tag")
    (tmp_path / "latest_universal").write_text("tag_universal")
    assert registry.detect_format(tmp_path) is CheckpointFormat.ZERO2


@pytest.mark.parametrize("key", ["fp32", "exp_avg"])
def test_missing_file_is_reported(tmp_path, key):
    folder = universal(tmp_path / "tag")
    at(folder, "up.bias", key).unlink()
    (problem,) = registry.read_checkpoint(folder).problems
    assert (problem.kind, problem.file) == ("missing", f"zero/up.bias/{key}.pt")


def test_missing_parameter_is_reported(tmp_path):
    folder = universal(tmp_path / "tag", 3)
    shutil.rmtree(folder / "zero" / "up.bias")
    found = registry.read_checkpoint(folder)
    assert [problem.file for problem in found.problems] == [
        f"zero/up.bias/{key}.pt" for key in ("exp_avg", "exp_avg_sq", "fp32")
    ]
    assert "up.bias" not in found.tensors


def test_truncated_file_is_reported(tmp_path):
    folder = universal(tmp_path / "tag")
    file = at(folder, "up.bias", "exp_avg")
    file.write_bytes(file.read_bytes()[:-200])
    (problem,) = registry.read_checkpoint(folder).problems
    assert (problem.kind, problem.file) == ("truncated", "zero/up.bias/exp_avg.pt")


def test_without_groups(tmp_path):
    folder = universal(tmp_path / "tag")
    (folder / "zero" / "optimizer_state.pt").unlink()
    found = registry.read_checkpoint(folder)
    assert [problem.kind for problem in found.problems] == ["missing"]
    assert found.optimizer.groups == ()


def test_without_model_file(tmp_path):
    folder = universal(tmp_path / "tag")
    file = folder / "mp_rank_00_model_states.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(CheckpointUnreadable, match="no model file can be read"):
        registry.read_checkpoint(folder)


class Bad:
    """A pickle that calls a function."""

    def __reduce__(self):
        return (print, ("here",))


def test_malicious_pickle_is_refused(tmp_path, capsys):
    folder = universal(tmp_path / "tag")
    torch.save({"param": Bad()}, at(folder, "up.bias", "fp32"))
    (problem,) = registry.read_checkpoint(folder).problems
    assert (problem.kind, problem.names) == ("refused", ("__builtin__.print",))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stage", [1, 3])
def test_unexpected_types_are_an_error(tmp_path, stage):
    draw = random.Random(stage)
    folder = universal(tmp_path / "tag", stage)
    for _ in range(60):
        file = draw.choice(sorted(folder.rglob("*.pt")))
        kept = file.read_bytes()
        torch.save(
            draw.choice(
                [None, [], {}, {"param": 1}, {"param": None}, torch.zeros(2), 7, "x", {"module": 3}]
            ),
            file,
        )
        with contextlib.suppress(CheckpointUnreadable):
            deepspeed_universal.read_contents(folder)
        file.write_bytes(kept)
