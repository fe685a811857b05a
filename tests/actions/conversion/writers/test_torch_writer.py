"""One file of torch.save, as the writer makes it: a program of plain torch goes on from it."""

import msgspec
import pytest
import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_optimizer_state_dict

from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import torch as writer
from holdfast.facts.checkpoints.contents import ITEMSIZE
from holdfast.facts.checkpoints.files.torch_pickle import Opaque
from tests.actions.conversion.streamed import neutral, stream
from tests.actions.conversion.writers.trained import MORE, UNKNOWN, fresh, same, train, trained
from tests.saved.model import STEPS


def saved(contents, folder, **options):
    return torch.load(stream(writer.write(contents, Options(**options)), contents, folder / "out.pt"))


@pytest.mark.parametrize("options", [{}, {"tied": False, "frozen": False}], ids=["tied and frozen", "neither"])
def test_a_program_goes_on_from_it(tmp_path, options):
    contents, state, losses = trained(tmp_path, **options)
    written = writer.write(contents, Options())
    assert written.losses == ()
    loaded = torch.load(stream(written, contents, tmp_path / "out.pt"), weights_only=True)
    assert same(loaded["model"], state)
    assert (loaded["step"], loaded["epoch"]) == (STEPS, 1)
    module, optimizer, scheduler = fresh(**options)
    module.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
    scheduler.load_state_dict(loaded["scheduler"])
    assert train(module, optimizer, scheduler, STEPS, STEPS + MORE) == losses


def test_tied_names_share_their_numbers(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    found = saved(contents, tmp_path)["model"]
    assert found["head.weight"].data_ptr() == found["embed.weight"].data_ptr()


def test_each_parameter_has_a_step_of_its_own(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    state = saved(contents, tmp_path)["optimizer"]["state"]
    assert len({each["step"].data_ptr() for each in state.values()}) == len(state)


def test_the_names_of_parameters_stand_beside_their_numbers(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    groups = saved(contents, tmp_path)["optimizer"]["param_groups"]
    assert [group["param_names"] for group in groups] == [list(group.params) for group in contents.optimizer.groups]
    assert [group["params"][0] for group in groups] == [0, 7]


def test_by_name_for_state_dicts_of_torch_distributed(tmp_path):
    contents, state, losses = trained(tmp_path)
    loaded = saved(contents, tmp_path, form="by-name")
    module, optimizer, scheduler = fresh()
    module.load_state_dict(loaded["model"])
    set_optimizer_state_dict(module, optimizer, loaded["optimizer"], options=StateDictOptions(full_state_dict=True))
    scheduler.load_state_dict(loaded["scheduler"])
    assert train(module, optimizer, scheduler, STEPS, STEPS + MORE) == losses
    assert same(loaded["model"], state)


def test_the_state_dict_alone(tmp_path):
    contents, state, _losses = trained(tmp_path)
    written = writer.write(contents, Options(form="state-dict"))
    assert same(torch.load(stream(written, contents, tmp_path / "out.pt")), state)
    assert "optimizer's state is not in it" in written.losses[0]


def test_another_dtype_leaves_whole_numbers_and_moments(tmp_path):
    contents, state, _losses = trained(tmp_path)
    loaded = saved(contents, tmp_path, dtype="bfloat16")
    expected = {name: each.bfloat16() if each.is_floating_point() else each for name, each in state.items()}
    assert same(loaded["model"], expected)
    assert loaded["optimizer"]["state"][0]["exp_avg"].dtype is torch.float32


def test_every_dtype(tmp_path):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in ITEMSIZE:
                numbers = torch.arange(32, dtype=torch.uint8).view(getattr(torch, name)).clone()
                self.register_buffer(f"of_{name}", numbers if name != "bool" else torch.tensor([True, False]))
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
    assert "optimizer" not in saved(msgspec.structs.replace(contents, optimizer=None, step=UNKNOWN), tmp_path)


def test_groups_that_nobody_knows_are_one(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    bare = msgspec.structs.replace(contents, optimizer=msgspec.structs.replace(contents.optimizer, groups=()))
    written = writer.write(bare, Options())
    assert "does not say the optimizer's groups" in written.losses[0]
    (group,) = torch.load(stream(written, bare, tmp_path / "out.pt"))["optimizer"]["param_groups"]
    trained_names = [name for name in contents.tensors if name not in contents.frozen | contents.buffers]
    assert group["param_names"] == trained_names


def test_a_state_without_a_step_takes_that_of_the_checkpoint(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    bare = msgspec.structs.replace(contents, optimizer=msgspec.structs.replace(contents.optimizer, numbers={}))
    assert saved(bare, tmp_path)["optimizer"]["state"][0]["step"] == STEPS


def test_what_is_no_plain_value_is_said(tmp_path):
    contents, _state, _losses = trained(tmp_path, values={"args": Opaque(), "loss": [1.5, {"at": (2, None)}]})
    written = writer.write(contents, Options())
    assert written.losses == ("Not in it, because they are no plain values: args.",)
    loaded = torch.load(stream(written, contents, tmp_path / "out.pt"))
    assert loaded["loss"] == [1.5, {"at": (2, None)}]
