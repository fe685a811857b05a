"""Single process: the saved state is restored bit-identically, and mismatches are reported."""

from __future__ import annotations

import copy
import logging
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import holdfast
from holdfast.core import checkpoint_manifest
from holdfast.core.errors import (
    CheckpointFailed,
    CheckpointMismatch,
    CheckpointUnreadable,
    InvalidValue,
    UnknownName,
)
from holdfast.recorder.torch_extension import torch_release
from holdfast.training.checkpoint import folder_owner
from holdfast.training.checkpoint.storage import shard_files
from tests.unit.training.checkpoint.jobs import Job, flipped


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tmp_path(tmp_path):
    """Return a folder in memory if possible, because these tests sync hundreds of files."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="holdfast-test-") as folder:
        yield Path(folder)


def adam_of_another_order(parameters):
    return torch.optim.AdamW(reversed(parameters), lr=0.01)


OPTIMIZERS = {
    "adamw": None,
    "adamw-fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "two-groups": lambda parameters: torch.optim.AdamW(
        [{"params": parameters[:2], "lr": 0.1}, {"params": parameters[2:], "weight_decay": 0.2}],
        lr=0.01,
    ),
    "tensor-lr": lambda parameters: torch.optim.AdamW(
        parameters, lr=torch.tensor(0.01), foreach=False
    ),
}
if torch_release() >= (2, 5):
    OPTIMIZERS["adafactor"] = lambda parameters: torch.optim.Adafactor(parameters, lr=0.01)


@pytest.mark.parametrize("asynchronous", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training_resumes_bit_identically(tmp_path, name, asynchronous):
    job = Job(tmp_path, optimizer=OPTIMIZERS[name], asynchronous=asynchronous)
    job.train(4)
    job.checkpoint.save(4)
    expected = job.train(4)
    job.checkpoint.wait()
    resumed = Job(tmp_path, seed=2, optimizer=OPTIMIZERS[name])
    restored = resumed.checkpoint.load()
    assert (restored.step, restored.own, restored.world) == (4, True, 1)
    assert resumed.train(4) == expected
    assert resumed.optimizer.param_groups[0]["lr"] == job.optimizer.param_groups[0]["lr"]


def test_a_save_before_the_first_step_creates_no_optimizer_state(tmp_path):
    job = Job(tmp_path)
    job.checkpoint.save(0, asynchronous=False)
    expected = job.train(3)
    resumed = Job(tmp_path, seed=2)
    resumed.checkpoint.load()
    assert not resumed.optimizer.state
    assert resumed.train(3) == expected


def test_state_added_after_the_first_save_is_saved(tmp_path):
    job = Job(tmp_path)
    job.checkpoint.save(0)
    job.train(2)
    job.checkpoint.save(2)
    expected = job.train(2)
    job.checkpoint.wait()
    resumed = Job(tmp_path, seed=2)
    assert resumed.checkpoint.load().step == 2
    assert resumed.train(2) == expected


def test_another_order_of_parameters(tmp_path):
    job = Job(tmp_path)
    job.train(4)
    job.checkpoint.save(4, asynchronous=False)
    resumed = Job(tmp_path, seed=2, optimizer=adam_of_another_order)
    resumed.checkpoint.load()
    kept = {
        name: resumed.optimizer.state[p]
        for name, p in resumed.model.named_parameters()
        if p in resumed.optimizer.state
    }
    expected = {
        name: job.optimizer.state[p]
        for name, p in job.model.named_parameters()
        if p in job.optimizer.state
    }
    assert kept.keys() == expected.keys()
    assert all(torch.equal(kept[name]["exp_avg"], expected[name]["exp_avg"]) for name in expected)


def test_optimizer_state_of_another_dtype_is_restored(tmp_path):
    model = nn.Linear(3, 3).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.state[model.weight]["momentum_buffer"] = torch.rand(
        3, 3
    )  # float32, as for master weights
    holdfast.Checkpoint(tmp_path, model=model, optimizer=optimizer).save(1, asynchronous=False)
    expected = optimizer.state[model.weight]["momentum_buffer"].clone()
    fresh = nn.Linear(3, 3).to(torch.bfloat16)
    other = torch.optim.SGD(fresh.parameters(), lr=0.1, momentum=0.9)
    holdfast.Checkpoint(tmp_path, model=fresh, optimizer=other).load()
    assert torch.equal(other.state[fresh.weight]["momentum_buffer"], expected)
    assert torch.equal(fresh.weight, model.weight)


def test_changes_after_save_returns_are_not_saved(tmp_path):
    job = Job(tmp_path)
    job.train(2)
    for step in (2, 3, 4):  # the second and third save reuse the same buffers
        expected = {name: value.clone() for name, value in job.model.state_dict().items()}
        job.checkpoint.save(step)
        with torch.no_grad():
            for parameter in job.model.parameters():
                parameter.fill_(float("nan"))
        job.checkpoint.wait()
        resumed = Job(tmp_path, seed=2)
        assert resumed.checkpoint.load().step == step
        assert all(
            torch.equal(value, expected[name]) for name, value in resumed.model.state_dict().items()
        )
        job.model.load_state_dict(expected)


def test_layouts_and_dtypes(tmp_path):
    tensors = {
        "last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "transposed": torch.rand(3, 4).T,
        "row": torch.rand(5, 4)[2],
        "conjugate": torch.rand(3, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 3),
        "whole": torch.tensor(5),
        "truth": torch.tensor([True, False]),
        "two_bytes": torch.rand(3).half(),
        "large": torch.rand(3_000_001),
    }

    class Holder(nn.Module):
        def __init__(self, values):
            super().__init__()
            for name, value in values.items():
                self.register_buffer(name, value)

    first = holdfast.Checkpoint(tmp_path, model=Holder(tensors))
    first.save(1)
    fresh = Holder({name: torch.zeros_like(value) for name, value in tensors.items()})
    first.wait()
    holdfast.Checkpoint(tmp_path, model=fresh).load()
    assert all(torch.equal(getattr(fresh, name), value) for name, value in tensors.items())


@pytest.mark.parametrize("writer", [shard_files._archive_writer, lambda _: None])
def test_tensors_of_one_shape_in_one_file(tmp_path, monkeypatch, writer):
    # None: as before torch 2.6, when each header had the CRC32 of its tensor.
    monkeypatch.setattr(shard_files, "_archive_writer", writer)
    saved, fresh = (nn.ModuleList([nn.Linear(7, 7) for _ in range(5)]) for _ in range(2))
    holdfast.Checkpoint(tmp_path, model=saved).save(1, asynchronous=False)
    holdfast.Checkpoint(tmp_path, model=fresh).load()
    for name, value in saved.state_dict().items():
        assert torch.equal(fresh.state_dict()[name], value)


def test_random_states_objects_and_configuration(tmp_path):
    average = Job(tmp_path).model
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    parts = {
        "stateful": {"average": average, "count": Counter(5)},
        "scaler": scaler,
        "config": {"lr": 0.1, "l": [1]},
    }
    job = Job(tmp_path, **parts)
    random.seed(3)
    np.random.seed(4)  # noqa: NPY002 - the global one is what scripts seed
    job.checkpoint.save(
        7, values={"loss": torch.tensor(0.5), "best": np.float64(2)}, asynchronous=False
    )
    expected = random.random(), np.random.rand(), torch.rand(1).item()  # noqa: NPY002 - as above
    weights = copy.deepcopy(average.state_dict())
    average.embed.weight.data.zero_()
    counter, fresh = Counter(0), torch.amp.GradScaler("cpu")
    job = Job(tmp_path, seed=9, stateful={"average": average, "count": counter}, scaler=fresh)
    restored = job.checkpoint.load()
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == expected  # noqa: NPY002 - as above
    assert all(torch.equal(value, weights[name]) for name, value in average.state_dict().items())
    assert (counter.value, fresh.get_scale()) == (5, 8.0)
    assert (restored.config, restored.values) == ({"lr": 0.1, "l": [1]}, {"loss": 0.5, "best": 2.0})


class Counter:
    """A stateful object."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def test_several_models_and_optimizers(tmp_path):
    def make_models():
        models = {"generator": nn.Linear(2, 3), "critic": nn.Linear(3, 1)}
        return models, {
            name: torch.optim.Adam(model.parameters()) for name, model in models.items()
        }

    models, optimizers = make_models()
    models["critic"](models["generator"](torch.ones(1, 2))).sum().backward()
    for optimizer in optimizers.values():
        optimizer.step()
    holdfast.Checkpoint(tmp_path, model=models, optimizer=optimizers).save(1, asynchronous=False)
    other_models, other_optimizers = make_models()
    holdfast.Checkpoint(tmp_path, model=other_models, optimizer=other_optimizers).load()
    for name in models:
        assert torch.equal(other_models[name].weight, models[name].weight)
        kept = other_optimizers[name].state[other_models[name].weight]["exp_avg"]
        assert torch.equal(kept, optimizers[name].state[models[name].weight]["exp_avg"])
    assert set(
        dcp.FileSystemReader(tmp_path / checkpoint_manifest.folder_name(1))
        .read_metadata()
        .state_dict_metadata
    ) >= {
        "model.generator.weight",
        "optimizer.critic.state.critic.weight.exp_avg",
    }


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_loads_the_checkpoint_without_holdfast(tmp_path):
    job = Job(tmp_path, wrap=lambda model: torch.compile(model, backend="eager"))
    job.train(2)
    job.checkpoint.save(2, asynchronous=False)
    plain = Job(tmp_path / "none", seed=2).model
    state = {"model": plain.state_dict()}
    dcp.load(state, checkpoint_id=tmp_path / checkpoint_manifest.folder_name(2))
    assert all(
        torch.equal(state["model"][name], value)
        for name, value in job.model._orig_mod.state_dict().items()
    )


def test_loading_without_checkpoints(tmp_path):
    assert Job(tmp_path / "not there").checkpoint.load() is None


# ---- mismatches


def test_a_checkpoint_of_another_model_reports_every_difference(tmp_path):
    job = Job(tmp_path)
    job.train(1)
    job.checkpoint.save(1, asynchronous=False)

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.extra = nn.Linear(5, 9), nn.Linear(1, 1)

    model = Other()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointMismatch) as caught:
        holdfast.Checkpoint(tmp_path, model=model).load()
    message = str(caught.value)
    assert "2 missing from the checkpoint: model.extra.bias, model.extra.weight" in message
    assert "model.embed.weight (7 x 5 in the checkpoint, 9 x 5 here)" in message
    assert all(
        f"model.{name}" in message for name in ("norm.running_mean", "frozen.weight", "scale")
    )
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_strict_false_restores_common_tensors(tmp_path):
    job = Job(tmp_path)
    job.checkpoint.save(1, asynchronous=False)
    other = Job(tmp_path, seed=2, width=9)
    other.model.extra = nn.Linear(1, 1)
    kept = other.model.embed.weight.clone(), other.model.extra.weight.clone()
    holdfast.Checkpoint(tmp_path, model=other.model).load(strict=False)
    assert torch.equal(other.model.frozen.weight, job.model.frozen.weight)
    assert torch.equal(other.model.embed.weight, kept[0])
    assert torch.equal(other.model.extra.weight, kept[1])


def test_optimizer_parameter_outside_the_models_is_rejected(tmp_path):
    optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), momentum=0.9)
    checkpoint = holdfast.Checkpoint(tmp_path, model=nn.Linear(1, 1), optimizer=optimizer)
    with pytest.raises(CheckpointFailed, match="of no model passed to Checkpoint"):
        checkpoint.save(1, asynchronous=False)


def test_an_unsafe_state_is_rejected_when_saved(tmp_path):
    counter = Counter(Counter(1))
    checkpoint = holdfast.Checkpoint(tmp_path, model=nn.Linear(1, 1), stateful={"count": counter})
    with pytest.raises(CheckpointFailed, match=r"the state of 'count' is not only .*: .*Counter"):
        checkpoint.save(1, asynchronous=False)
    assert list(tmp_path.iterdir()) == []


def test_invalid_values_and_options(tmp_path):
    checkpoint = Job(tmp_path).checkpoint
    with pytest.raises(InvalidValue, match="is not plain data"):
        checkpoint.save(1, values={"what": object()})
    with pytest.raises(UnknownName, match="'kep_last'; did you mean keep_last"):
        Job(tmp_path, kep_last=3)


# ---- folders


def test_saving_a_step_again_replaces_the_first(tmp_path):
    job = Job(tmp_path)
    job.checkpoint.save(5, values={"try": 1}, asynchronous=False)
    job.train(1)
    job.checkpoint.save(5, values={"try": 2}, asynchronous=False)
    assert {path.name for path in tmp_path.iterdir()} == {
        checkpoint_manifest.folder_name(5),
        folder_owner.FILE,
    }
    assert Job(tmp_path).checkpoint.load().values == {"try": 2}


def test_leftovers_of_dead_writers_are_removed(tmp_path):
    for name in (".staging-step-0000000003-aa", ".removing-step-0000000001-bb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    Job(tmp_path).checkpoint.save(5, asynchronous=False)
    assert {path.name for path in tmp_path.iterdir()} == {
        checkpoint_manifest.folder_name(5),
        folder_owner.FILE,
    }


def test_commit_listeners_are_called_and_their_errors_logged(tmp_path, caplog):
    job, commits = Job(tmp_path), []
    job.checkpoint.after_commit += [
        lambda *_: 1 / 0,
        lambda folder, found: commits.append((folder, found.step)),
    ]
    with caplog.at_level(logging.ERROR, "holdfast.checkpoint"):
        job.checkpoint.save(5)
        saved = job.checkpoint.wait()
    assert commits == [(tmp_path / checkpoint_manifest.folder_name(5), 5)]
    assert "a listener failed after the checkpoint of step 5" in caplog.text
    assert (saved.step, saved.manifest.ranks) == (5, 1)
    assert 0 < saved.blocked_s <= saved.took_s


def test_load_before_a_step(tmp_path):
    job = Job(tmp_path)
    for step in (1, 2, 3):
        job.checkpoint.save(step, asynchronous=False)
    assert job.checkpoint.load(before=3).step == 2
    assert job.checkpoint.load(tmp_path / checkpoint_manifest.folder_name(1)).step == 1
    flipped(tmp_path / checkpoint_manifest.folder_name(1) / "__0_0.distcp")
    with pytest.raises(CheckpointUnreadable, match="its xxh3 is"):
        job.checkpoint.load(tmp_path / checkpoint_manifest.folder_name(1))
