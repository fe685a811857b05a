"""torch.save files in all common forms, written by torch and read without it."""

import os
import struct

import numpy as np
import pytest
import torch

from holdfast.ckpt.contents import CheckpointFormat, Tensor
from holdfast.ckpt.files import torch_legacy, torch_pickle
from holdfast.ckpt.formats.frameworks import torch_save
from holdfast.ckpt.state_dicts.optimizer_params import MappingHints
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import CheckpointUnreadable
from holdfast.core.findings import Unknown
from tests.golden.checkpoints.hostile import by_name
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of
from tests.unit.ckpt.formats.truth import same_optimizer, same_tensors

FORMS = {"zip": {}, "legacy": {"_use_new_zipfile_serialization": False}}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


def trained(**options):
    module = model(**options)
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(module, step).backward()
        optimizer.step()
    return module, optimizer


def states(module, optimizer):
    return {
        name: optimizer.state[param]
        for name, param in module.named_parameters()
        if param in optimizer.state
    }


def read(value, path, form):
    torch.save(value, path, **form)
    return torch_save.read_contents(path)


@pytest.mark.parametrize(
    "options", [{}, {"tied": False}, {"frozen": False}], ids=["as-is", "untied", "trained"]
)
def test_model_with_numbered_optimizer(tmp_path, form, options):
    module, optimizer = trained(**options)
    value = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 4}
    found = read(value, tmp_path / "a.pt", form)
    same_tensors(found, module.state_dict())
    same_optimizer(found, states(module, optimizer))
    assert found.ties == ({} if "tied" in options else {"head.weight": "embed.weight"})
    assert found.buffers == {"scale", "seen"}
    assert found.frozen == (set() if "frozen" in options else {"frozen.weight", "frozen.bias"})
    assert (found.format, found.step, found.problems) == (CheckpointFormat.TORCH, STEPS, ())
    assert found.values == {"epoch": 4}
    assert list(found.tensors) == [name for name in module.state_dict() if name not in found.ties]


def test_assumed_frozen_modules_are_reported(tmp_path, form):
    module, optimizer = trained()
    value = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
    (note,) = read(value, tmp_path / "a.pt", form).notes
    assert note.startswith("assumed that the optimizer excludes frozen.weight, frozen.bias")


def test_frozen_patterns_remove_the_assumption(tmp_path):
    module, optimizer = trained()
    torch.save(
        {"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt"
    )
    found = torch_save.read_contents(tmp_path / "a.pt", MappingHints(("frozen.*",)))
    assert found.notes == ()
    same_optimizer(found, states(module, optimizer))


@pytest.mark.parametrize("key", ["state_dict", "model_state_dict", "whatever"])
def test_model_key_is_detected(tmp_path, key):
    module, optimizer = trained()
    found = read(
        {key: module.state_dict(), "optimizer_state_dict": optimizer.state_dict()},
        tmp_path / "a.pt",
        {},
    )
    same_tensors(found, module.state_dict())
    assert found.optimizer is not None
    assert any(key in note for note in found.notes) == (key == "whatever")


def test_bare_state_dict(tmp_path, form):
    module = model()
    same_tensors(read(module.state_dict(), tmp_path / "a.pt", form), module.state_dict())


def test_pickled_module_identifies_buffers_and_frozen(tmp_path, form):
    module = model()
    found = read(module, tmp_path / "a.pt", form)
    same_tensors(found, module.state_dict())
    assert (found.buffers, found.frozen) == ({"scale", "seen"}, {"frozen.weight", "frozen.bias"})
    (note,) = found.notes
    assert note.endswith(
        "opaque objects of classes tests.golden.checkpoints.model.Model, tests.golden.checkpoints.model.Block"
    )


def test_optimizer_with_names(tmp_path):
    module = model()
    optimizer = torch.optim.SGD(
        [(n, p) for n, p in module.named_parameters() if "frozen" not in n], lr=0.1, momentum=1
    )
    loss_of(module, 0).backward()
    optimizer.step()
    found = read(
        {"model": module.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "a.pt", {}
    )
    assert set(found.optimizer.tensors) == set(states(module, optimizer))
    assert found.optimizer.groups[0].options["momentum"] == 1
    assert isinstance(found.step, Unknown)


def test_optimizer_without_model_keeps_step(tmp_path):
    found = read(trained()[1].state_dict(), tmp_path / "a.pt", {})
    assert (found.tensors, found.optimizer, found.step) == ({}, None, STEPS)
    assert "15 numbered parameters" in found.notes[0]


def test_equal_unused_weights_are_tied(tmp_path):
    module, optimizer = trained()
    separate = {name: each.clone() for name, each in module.state_dict().items()}
    found = read({"model": separate, "optimizer": named(module, optimizer)}, tmp_path / "a.pt", {})
    assert found.ties == {"head.weight": "embed.weight"}
    assert found.frozen == {"frozen.weight", "frozen.bias"}


def named(module, optimizer):
    """Return the form of FSDP.optim_state_dict."""
    names = {param: name for name, param in module.named_parameters()}
    groups = [
        {**group, "params": [names[each] for each in group["params"]]}
        for group in optimizer.param_groups
    ]
    return {"state": states(module, optimizer), "param_groups": groups}


def test_other_values_by_path(tmp_path):
    value = {
        "model": {"w": torch.ones(2)},
        "scheduler": {"last_epoch": 3, "_last_lr": [0.1]},
        "rng": torch.arange(9),
        "loops": {"fit": {"a.b": 1}},
        "scale": torch.tensor(2.5),
        "steps": {0: "a"},
        "global_step": 7,
    }
    found = read(value, tmp_path / "a.pt", {})
    rng = found.values["rng"]
    assert isinstance(rng, Tensor)
    with TensorReader(tmp_path / "a.pt") as reader:
        assert np.array_equal(reader.read_tensor(rng), np.arange(9))
    assert {key: each for key, each in found.values.items() if key != "rng"} == {
        "scheduler.last_epoch": 3,
        "scheduler._last_lr": [0.1],
        "loops.fit": {"a.b": 1},
        "scale": 2.5,
        "steps": {0: "a"},
        "global_step": 7,
    }
    assert found.step == 7
    assert found.notes == ("contains tensors outside the model, in rng",)


def test_views_transposed_and_empty_tensors(tmp_path, form):
    base = torch.arange(24.0).reshape(4, 6)
    value = {
        "t": base.T,
        "row": base[1],
        "column": base[:, 2],
        "none": torch.empty(0, 3),
        "one": torch.tensor(5.0),
    }
    same_tensors(read(value, tmp_path / "a.pt", form), value)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.float8_e4m3fn],
)
def test_dtypes(tmp_path, form, dtype):
    if dtype is torch.float8_e4m3fn and form:
        pytest.skip("torch itself cannot save it in the form of before 1.6")
    value = {"w": torch.arange(6).to(dtype)}
    same_tensors(read(value, tmp_path / "a.pt", form), value)


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 0.999])
def test_truncated_file_is_an_error(tmp_path, form, share):
    path = tmp_path / "a.pt"
    module, optimizer = trained()
    torch.save({"model": module.state_dict(), "optimizer": optimizer.state_dict()}, path, **form)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(CheckpointUnreadable, match=r"truncated"):
        torch_save.read_contents(path)


def test_malicious_legacy_pickle_is_refused(tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "a.pt"
    start = torch_legacy.MAGIC + b"".join(each for each in (b"\x80\x02M\xe9\x03.", b"\x80\x02}."))
    path.write_bytes(start + by_name("os", "system", (f"touch {marker}",)) + b"\x80\x02].")
    with pytest.raises(CheckpointUnreadable, match=r"os\.system") as caught:
        torch_save.read_contents(path)
    assert isinstance(caught.value.__cause__, torch_pickle.GlobalRefused)
    assert not marker.exists()


def test_wrong_legacy_counts_are_detected(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(4)}, path, **FORMS["legacy"])
    data = bytearray(path.read_bytes())
    data[-24:-16] = struct.pack("<q", 1 << 60)
    path.write_bytes(data)
    with pytest.raises(CheckpointUnreadable, match="truncated"):
        torch_save.read_contents(path)


def test_large_legacy_file_is_not_loaded(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(4)}, path, **FORMS["legacy"])
    data = path.read_bytes().replace(
        struct.pack("<q", 4) + torch.ones(4).numpy().tobytes(), struct.pack("<q", 1 << 36)
    )
    path.write_bytes(data)
    os.truncate(path, len(data) + (1 << 38))
    found = torch_legacy.read_torch_file(path)
    assert next(iter(found.records.values())).size == 1 << 38


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x03\x04", b"hello", torch_legacy.MAGIC, torch_legacy.MAGIC + b"\x80\x02K\x01."],
)
def test_other_files_are_not_recognized(tmp_path, content):
    path = tmp_path / "a.pt"
    path.write_bytes(content)
    if torch_save.detect_format(path) is not None:
        with pytest.raises(CheckpointUnreadable):
            torch_save.read_contents(path)


ODD = [
    {"state": {0: {"step": [1]}}, "param_groups": [{"params": [0]}]},
    {
        "state": {0: {1: torch.ones(2), "step": float("nan")}},
        "param_groups": [{"params": [0], "param_names": [3]}],
    },
    {"state": {0: 3}, "param_groups": [{"params": [0, 0, True], "param_names": ["w", "w", "w"]}]},
    {
        "state": {"w": {"exp_avg": {"a": 1}, "b": None}},
        "param_groups": [{"params": ["w", 0], 5: "x"}],
    },
    {"state": {}, "param_groups": []},
    {"state": {(1, 2): {}}, "param_groups": [{"params": [[1]]}]},
    {"state": {0: {"step": torch.ones(3)}}, "param_groups": [{"params": [0]}]},
]


@pytest.mark.parametrize("optimizer", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize(
    "weights", [{"w": torch.ones(2)}, {"w": None}, {3: torch.ones(2), "x.": torch.ones(2)}, {}]
)
def test_unusual_content_is_accepted(tmp_path, optimizer, weights):
    found = read(
        {"model": weights, "optimizer": optimizer, 4: [{}, ()], "": {"": 1}}, tmp_path / "a.pt", {}
    )
    assert found.format is CheckpointFormat.TORCH
