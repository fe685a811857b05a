"""torch loads DCP folders that were written without torch."""

import json
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemReader

from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import dcp as writer
from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.distributed import dcp as reader
from holdfast.ckpt.tensor_blocks import TensorReader
from tests.golden.checkpoints.making import launched
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of
from tests.unit.ckpt.convert.streamed import neutral, stream
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors


@pytest.fixture
def trained():
    """Return a model and its optimizer after a few steps."""
    module = model()
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        loss_of(module, step).backward()
        optimizer.step()
        optimizer.zero_grad()
    return module, optimizer


def states_of(module, optimizer):
    names = {id(each): name for name, each in module.named_parameters()}
    return {names[id(parameter)]: state for parameter, state in optimizer.state.items()}


def loaded(state, folder):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single-process warning
        dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


@pytest.mark.parametrize("ranks", [1, 3])
def test_torch_loads_bit_identical_tensors(tmp_path, trained, ranks):
    module, optimizer = trained
    values = {"scheduler.last_epoch": 3, "scheduler.lrs": [0.1], "epoch": 1}
    contents = neutral(tmp_path, module, optimizer, step=STEPS, values=values)
    written = writer.write(contents, ConvertOptions(ranks=ranks))
    assert written.losses == ()
    folder = stream(written, contents, tmp_path / "to")
    state = {
        "model": {name: torch.zeros_like(each) for name, each in module.state_dict().items()},
        "step": 0,
        "epoch": 0,
        "scheduler": {"last_epoch": 0, "lrs": []},
        "optimizer": {
            "state": {
                name: {key: torch.zeros_like(each) for key, each in values.items()}
                for name, values in states_of(module, optimizer).items()
            },
            "param_groups": [{"lr": 0, "params": []}, {"lr": 0, "params": []}],
        },
    }
    loaded(state, folder)
    for name, each in module.state_dict().items():
        assert torch.equal(state["model"][name], each), name
    for name, values in states_of(module, optimizer).items():
        for key, each in values.items():
            assert torch.equal(state["optimizer"]["state"][name][key], each), (name, key)
    assert (state["step"], state["epoch"], state["scheduler"]) == (
        3,
        1,
        {"last_epoch": 3, "lrs": [0.1]},
    )
    assert state["optimizer"]["param_groups"][0]["lr"] == 1e-2
    assert state["optimizer"]["param_groups"][1]["params"][0] == "blocks.0.norm.weight"
    assert len(list(folder.glob("*.distcp"))) == ranks
    chunks = (
        FileSystemReader(folder).read_metadata().state_dict_metadata["model.embed.weight"].chunks
    )
    assert [tuple(each.sizes) for each in chunks] == (
        [(37, 20)] if ranks == 1 else [(13, 20), (13, 20), (11, 20)]
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_read_back_is_identical(tmp_path, trained, ranks):
    module, optimizer = trained
    contents = neutral(
        tmp_path, module, optimizer, step=STEPS, values={"deep": [{"a": 1}], "none": None}
    )
    folder = stream(writer.write(contents, ConvertOptions(ranks=ranks)), contents, tmp_path / "to")
    found = reader.read_contents(folder)
    same_tensors(found, module.state_dict())
    same_optimizer(found, states_of(module, optimizer))
    assert (found.step, found.world_size, found.ties) == (STEPS, ranks, contents.ties)
    assert (found.frozen, found.buffers) == (contents.frozen, contents.buffers)
    assert found.values == {"step": STEPS, "deep.0.a": 1, "none": None}
    assert (found.problems, found.notes) == ((), ())


def test_dtype_and_no_optimizer_options(tmp_path, trained):
    module, optimizer = trained
    contents = neutral(tmp_path, module, optimizer)
    options = ConvertOptions(dtype="bfloat16", optimizer=False)
    found = reader.read_contents(stream(writer.write(contents, options), contents, tmp_path / "to"))
    assert found.optimizer is None
    with TensorReader(Path(found.root)) as numbers:
        whole = numbers.read_tensor(found.tensors["embed.weight"])
    assert whole.astype("float32").tolist() == module.embed.weight.bfloat16().float().tolist()
    assert found.tensors["seen"].dtype == "int64"


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.matrix), 3])
def test_fsdp_resumes_at_another_world_size(tmp_path, trained, ranks):
    module, optimizer = trained
    contents = neutral(tmp_path, module, optimizer, step=STEPS)
    folder = stream(writer.write(contents, ConvertOptions(ranks=ranks)), contents, tmp_path / "to")
    losses = resumed_losses(tmp_path, "fsdp2", folder)
    assert losses == pytest.approx(next_losses(module, optimizer), abs=1e-6)


def resumed_losses(folder, form, checkpoint, ranks=2):
    """Return the losses of the steps after loading in the framework."""
    launched(
        "-m",
        "tests.golden.checkpoints.going_on",
        folder,
        form,
        checkpoint,
        ranks=ranks,
        limit_s=200,
    )
    return json.loads((folder / "losses.json").read_text())


def next_losses(module, optimizer):
    """Return the losses of the uninterrupted run."""
    losses = []
    for step in range(STEPS, STEPS + 2):
        loss = loss_of(module, step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def empty(value):
    """Return what ``dcp.load`` fills in."""
    if isinstance(value, dict):
        return {key: empty(each) for key, each in value.items()}
    return torch.zeros_like(value) if torch.is_tensor(value) else None


def torchtitan_state(module, optimizer):
    """Return what torchtitan's CheckpointManager saves: one level of optimizer keys, by name."""
    state = {}
    for group in optimizer.param_groups:
        options = {key: value for key, value in group.items() if key != "params"}
        for parameter in group["params"]:
            name = next(name for name, each in module.named_parameters() if each is parameter)
            state |= {f"state.{name}.{k}": v for k, v in optimizer.state[parameter].items()}
            state |= {f"param_groups.{name}.{k}": v for k, v in options.items()}
    return {
        **module.state_dict(),
        "optimizer": state,
        "lr_scheduler": {"last_epoch": STEPS},
        "train_state": {"step": STEPS, "ntokens_seen": 640},
        "dataloader": {"dp_world_size": 1, "dp_rank_0": {"step": 99}},
    }


def test_torchtitan_is_recognized_and_written(tmp_path, trained):
    module, optimizer = trained
    folder = tmp_path / "checkpoint" / "step-3"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # single-process warning
        dcp.save(torchtitan_state(module, optimizer), checkpoint_id=folder, no_dist=True)
    source = registry.read_checkpoint(tmp_path / "checkpoint")
    assert (source.step, source.writer, source.problems) == (STEPS, "torchtitan", ())
    same_optimizer(source, states_of(module, optimizer))
    assert source.values["lr_scheduler.last_epoch"] == STEPS
    assert len(source.optimizer.groups) == len(optimizer.param_groups)
    written = writer.write(source, ConvertOptions(ranks=2, form="torchtitan"))
    assert written.losses == ()
    target = stream(written, source, tmp_path / "to")
    expected = torchtitan_state(module, optimizer)
    states = {key: empty(value) for key, value in expected.items()}
    loaded(states, target)
    assert states["train_state"] == {"step": STEPS, "ntokens_seen": 640}
    for key in module.state_dict():
        assert torch.equal(states[key], expected[key]), key
    for key, value in expected["optimizer"].items():
        found = states["optimizer"][key]
        assert torch.equal(found, value) if torch.is_tensor(value) else found == value, key
    plain = neutral(tmp_path, module, optimizer, step=STEPS, values={"scheduler.last_epoch": 7})
    written = writer.write(plain, ConvertOptions(form="torchtitan"))
    assert "exclude_from_loading dataloader" in written.losses[0]
    found = reader.read_contents(stream(written, plain, tmp_path / "plain"))
    assert (found.values["lr_scheduler.last_epoch"], found.step) == (7, STEPS)
