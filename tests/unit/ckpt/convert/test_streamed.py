"""torch loads and maps the files written by the test helper ``streamed``."""

import torch

from holdfast.ckpt.convert.archives import Storages
from holdfast.ckpt.convert.files import TargetFile, TargetFiles
from tests.golden.checkpoints.model import loss_of, model, optimizer_of
from tests.unit.ckpt.convert.streamed import neutral, stream


def test_torch_loads_and_maps_an_archive(tmp_path):
    module = model()
    optimizer = optimizer_of(module)
    loss_of(module, 0).backward()
    optimizer.step()
    contents = neutral(tmp_path, module, optimizer)
    storages = Storages()
    value = {name: storages.tensor(each) for name, each in contents.tensors.items()}
    value["count"] = 3
    path = stream(
        TargetFiles((TargetFile("", (storages.file(value),)),)), contents, tmp_path / "out.pt"
    )
    for mapped in (False, True):
        loaded = torch.load(path, mmap=mapped, weights_only=True)
        assert loaded.pop("count") == 3
        assert set(loaded) == set(contents.tensors)
        assert all(torch.equal(each, module.state_dict()[name]) for name, each in loaded.items())


def test_optimizer_is_stored_by_name(tmp_path):
    module = model()
    optimizer = optimizer_of(module)
    loss_of(module, 0).backward()
    optimizer.step()
    contents = neutral(tmp_path, module, optimizer, step=1)
    assert contents.ties == {"head.weight": "embed.weight"}
    assert contents.frozen == {"frozen.weight", "frozen.bias"}
    assert contents.buffers == {"scale", "seen"}
    assert set(contents.optimizer.tensors["embed.weight"]) == {"exp_avg", "exp_avg_sq"}
    assert contents.optimizer.numbers["embed.weight"] == {"step": 1.0}
    assert [len(group.params) for group in contents.optimizer.groups] == [7, 8]
