"""Universal checkpoints of DeepSpeed; those that DeepSpeed itself made are in test_deepspeed."""

import contextlib
import random
import shutil

import numpy as np
import pytest
import torch

from holdfast.errors import CheckpointUnreadable
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.deepspeed import universal as deepspeed_universal
from holdfast.facts.checkpoints.deepspeed import zero as deepspeed
from holdfast.facts.checkpoints.pieces import Reader
from tests.facts.checkpoints.zero_files import SHAPES, numbers, write

ALL = {**SHAPES[0], **SHAPES[1]}


def universal(folder, stage=2):
    """As ds_to_universal makes one: from ZeRO-3 flat tensors, and the step in the groups' state alone."""
    write(folder, stage)
    state = torch.load(folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt")["optimizer_state_dict"]
    for file in folder.glob("*optim*"):
        file.unlink()
    for name, shape in ALL.items():
        (folder / "zero" / name).mkdir(parents=True)
        for key in ("fp32", "exp_avg", "exp_avg_sq"):
            tensor = numbers(name, shape, key)
            torch.save(tensor.flatten() if stage == 3 else {"param": tensor, "cat_dim": 0}, at(folder, name, key))
        if stage < 3:
            torch.save(torch.tensor(3.0), at(folder, name, "step"))
    state["param_groups"] = state.get("base_optimizer_state", state.get("optimizer_state_dict"))["param_groups"]
    torch.save(state, folder / "zero" / "optimizer_state.pt")
    return folder


def at(folder, name, key):
    return folder / "zero" / name / f"{key}.pt"


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_it_is_read(tmp_path, stage):
    folder = universal(tmp_path / "tag", stage)
    assert (deepspeed.recognises(folder), formats.detect(folder)) == (None, Format.UNIVERSAL)
    found = formats.read(folder)
    assert (found.gaps, found.step, found.world_size) == ((), 3, 2)
    with Reader(folder) as reader:
        for name, shape in ALL.items():
            assert np.array_equal(reader.whole(found.tensors[name]), numbers(name, shape).numpy())
            state = found.optimizer.tensors[name]["exp_avg_sq"]
            assert np.array_equal(reader.whole(state), numbers(name, shape, "exp_avg_sq").numpy())
            assert found.optimizer.numbers[name] == {"step": 3}
        assert bool(found.halves) == (stage < 3)
        assert reader.whole(found.tensors["frozen"]).shape == (3, 2)
    assert [group.params for group in found.optimizer.groups] == [tuple(each) for each in SHAPES]
    assert found.values["epoch"] == 1
    assert len(found.files) == (15 if stage == 3 else 18)


@pytest.mark.parametrize("name", ["latest", "latest_universal"])
def test_latest_names_it(tmp_path, name):
    universal(tmp_path / "tag_universal")
    (tmp_path / name).write_text("tag_universal")
    assert formats.read(tmp_path).root == str(tmp_path / "tag_universal")


def test_the_checkpoint_that_it_was_made_from_goes_before_it(tmp_path):
    universal(tmp_path / "tag_universal")
    write(tmp_path / "tag")
    (tmp_path / "latest").write_text("tag")
    (tmp_path / "latest_universal").write_text("tag_universal")
    assert formats.detect(tmp_path) is Format.ZERO2


@pytest.mark.parametrize("key", ["fp32", "exp_avg"])
def test_a_missing_file_is_named(tmp_path, key):
    folder = universal(tmp_path / "tag")
    at(folder, "up.bias", key).unlink()
    (gap,) = formats.read(folder).gaps
    assert (gap.kind, gap.file) == ("missing", f"zero/up.bias/{key}.pt")


def test_a_missing_parameter_is_named(tmp_path):
    folder = universal(tmp_path / "tag", 3)
    shutil.rmtree(folder / "zero" / "up.bias")
    found = formats.read(folder)
    assert [gap.file for gap in found.gaps] == [f"zero/up.bias/{key}.pt" for key in ("exp_avg", "exp_avg_sq", "fp32")]
    assert "up.bias" not in found.tensors


def test_a_file_that_is_cut_short_is_named(tmp_path):
    folder = universal(tmp_path / "tag")
    file = at(folder, "up.bias", "exp_avg")
    file.write_bytes(file.read_bytes()[:-200])
    (gap,) = formats.read(folder).gaps
    assert (gap.kind, gap.file) == ("truncated", "zero/up.bias/exp_avg.pt")


def test_without_groups(tmp_path):
    folder = universal(tmp_path / "tag")
    (folder / "zero" / "optimizer_state.pt").unlink()
    found = formats.read(folder)
    assert [gap.kind for gap in found.gaps] == ["missing"]
    assert found.optimizer.groups == ()


def test_without_the_models_file_nothing_is_read(tmp_path):
    folder = universal(tmp_path / "tag")
    file = folder / "mp_rank_00_model_states.pt"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(CheckpointUnreadable, match="no file of its model can be read"):
        formats.read(folder)


class Bad:
    """A pickle that calls."""

    def __reduce__(self):
        return (print, ("here",))


def test_a_pickle_that_calls_is_refused_and_named(tmp_path, capsys):
    folder = universal(tmp_path / "tag")
    torch.save({"param": Bad()}, at(folder, "up.bias", "fp32"))
    (gap,) = formats.read(folder).gaps
    assert (gap.kind, gap.names) == ("refused", ("__builtin__.print",))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("stage", [1, 3])
def test_values_of_any_other_type_are_an_error_of_one_sentence(tmp_path, stage):
    draw = random.Random(stage)
    folder = universal(tmp_path / "tag", stage)
    for _ in range(60):
        file = draw.choice(sorted(folder.rglob("*.pt")))
        kept = file.read_bytes()
        torch.save(
            draw.choice([None, [], {}, {"param": 1}, {"param": None}, torch.zeros(2), 7, "x", {"module": 3}]), file
        )
        with contextlib.suppress(CheckpointUnreadable):
            deepspeed_universal.read(folder)
        file.write_bytes(kept)
