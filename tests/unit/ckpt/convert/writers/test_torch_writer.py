"""Plain torch programs resume from converted torch.save files."""

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

from holdfast.ckpt.contents import ITEMSIZE
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import torch as writer
from holdfast.ckpt.files.torch_pickle import OpaqueObject
from tests.golden.checkpoints.model import STEPS
from tests.unit.ckpt.convert.streamed import neutral, stream
from tests.unit.ckpt.convert.writers.trained import MORE, UNKNOWN, fresh, same, train, trained


def saved(contents, folder, **options):
    return torch.load(
        stream(writer.write(contents, ConvertOptions(**options)), contents, folder / "out.pt")
    )


@pytest.mark.parametrize(
    "options", [{}, {"tied": False, "frozen": False}], ids=["tied and frozen", "neither"]
)
def test_program_resumes(tmp_path, options):
    contents, state, losses = trained(tmp_path, **options)
    written = writer.write(contents, ConvertOptions())
    assert written.losses == ()
    loaded = torch.load(stream(written, contents, tmp_path / "out.pt"), weights_only=True)
    assert same(loaded["model"], state)
    assert (loaded["step"], loaded["epoch"]) == (STEPS, 1)
    module, optimizer, scheduler = fresh(**options)
    module.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    scheduler.load_state_dict(loaded["scheduler"])
    assert train(module, optimizer, scheduler, STEPS, STEPS + MORE) == losses


def test_tied_names_share_storage(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    found = saved(contents, tmp_path)["model"]
    assert found["head.weight"].data_ptr() == found["embed.weight"].data_ptr()


def test_steps_are_separate_tensors(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    state = saved(contents, tmp_path)["optimizer"]["state"]
    assert len({each["step"].data_ptr() for each in state.values()}) == len(state)


def test_parameter_names_are_stored(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    groups = saved(contents, tmp_path)["optimizer"]["param_groups"]
    assert [group["param_names"] for group in groups] == [
        list(group.params) for group in contents.optimizer.groups
    ]
    assert [group["params"][0] for group in groups] == [0, 7]


def test_by_name_for_state_dicts_of_torch_distributed(tmp_path):
    contents, state, losses = trained(tmp_path)
    loaded = saved(contents, tmp_path, form="by-name")
    module, optimizer, scheduler = fresh()
    module.load_state_dict(loaded["model"])
    set_optimizer_state_dict(
        module, optimizer, loaded["optimizer"], options=StateDictOptions(full_state_dict=True)
    )
    scheduler.load_state_dict(loaded["scheduler"])
    assert train(module, optimizer, scheduler, STEPS, STEPS + MORE) == losses
    assert same(loaded["model"], state)


def test_state_dict_form(tmp_path):
    contents, state, _losses = trained(tmp_path)
    written = writer.write(contents, ConvertOptions(form="state-dict"))
    assert same(torch.load(stream(written, contents, tmp_path / "out.pt")), state)
    assert "optimizer state was not written" in written.losses[0]


def test_dtype_keeps_integers_and_moments(tmp_path):
    contents, state, _losses = trained(tmp_path)
    loaded = saved(contents, tmp_path, dtype="bfloat16")
    expected = {
        name: each.bfloat16() if each.is_floating_point() else each for name, each in state.items()
    }
    assert same(loaded["model"], expected)
    assert loaded["optimizer"]["state"][0]["exp_avg"].dtype is torch.float32


def test_every_dtype(tmp_path):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ITEMSIZE:
                numbers = torch.arange(32, dtype=torch.uint8).view(getattr(torch, name)).clone()
                self.register_buffer(
                    f"of_{name}", numbers if name != "bool" else torch.tensor([True, False])
                )
            self.register_buffer("none", torch.empty(0, 4))

    module = Odd()
    found = saved(neutral(tmp_path, module), tmp_path)["model"]
    assert {name: (each.dtype, each.shape) for name, each in found.items()} == {
        name: (each.dtype, each.shape) for name, each in module.state_dict().items()
    }
    for name, each in module.state_dict().items():
        assert found[name].view(torch.uint8).tolist() == each.view(torch.uint8).tolist()


def test_without_an_optimizer(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    assert "optimizer" not in saved(contents, tmp_path, optimizer=False)
    assert "optimizer" not in saved(
        msgspec.structs.replace(contents, optimizer=None, step=UNKNOWN), tmp_path
    )


def test_unknown_groups_become_one(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    bare = msgspec.structs.replace(
        contents, optimizer=msgspec.structs.replace(contents.optimizer, groups=())
    )
    written = writer.write(bare, ConvertOptions())
    assert "does not record the optimizer's groups" in written.losses[0]
    (group,) = torch.load(stream(written, bare, tmp_path / "out.pt"))["optimizer"]["param_groups"]
    trained_names = [
        name for name in contents.tensors if name not in contents.frozen | contents.buffers
    ]
    assert group["param_names"] == trained_names


def test_missing_step_is_taken_from_the_checkpoint(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    bare = msgspec.structs.replace(
        contents, optimizer=msgspec.structs.replace(contents.optimizer, numbers={})
    )
    assert saved(bare, tmp_path)["optimizer"]["state"][0]["step"] == STEPS


def test_non_plain_values_are_reported(tmp_path):
    contents, _state, _losses = trained(
        tmp_path, values={"args": OpaqueObject(), "loss": [1.5, {"at": (2, None)}]}
    )
    written = writer.write(contents, ConvertOptions())
    assert written.losses == ("Not written, because they are not plain values: args.",)
    loaded = torch.load(stream(written, contents, tmp_path / "out.pt"))
    assert loaded["loss"] == [1.5, {"at": (2, None)}]
