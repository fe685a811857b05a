"""`holdfast ckpt convert` as a user calls it: what it prints, how it ends, and what it makes of wrong options."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from holdfast.cli.ckpt.convert import _size
from holdfast.errors import BadValue


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With a file that a job of DistributedDataParallel saved."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {f"module.{name}": each for name, each in model.state_dict().items()}
    torch.save({"model": state, "optimizer": optimizer.state_dict(), "step": 1}, folder / "ddp.pt")
    return folder


def convert(folder, *arguments):
    """Exit status, stdout, stderr."""
    found = subprocess.run(
        [sys.executable, "-m", "holdfast", "ckpt", "convert", *arguments], cwd=folder, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    return found.returncode, found.stdout, found.stderr


@pytest.mark.slow
def test_what_is_printed(folder):
    status, out, error = convert(folder, "ddp.pt", "zero", "--to", "zero2", "--ranks", "2")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert (status, error) == (0, "")
    assert "converted in" in lines[0]
    assert lines[1:4] == [
        "from  ddp.pt (torch)", "to  zero (zero2)",
        "written  2 tensors of the model and 4 tensors of the optimizer, in 4 files",
    ]  # fmt: skip
    told = " ".join(lines[4:])
    assert told.startswith("read back  2 tensors of the model and 4 tensors of the optimizer, each bit that of the sou")
    assert sorted(each.name for each in (folder / "zero").iterdir()) == ["global_step1", "latest"]


@pytest.mark.slow
def test_json(folder):
    status, out, _ = convert(folder, "ddp.pt", "plain.safetensors", "--to", "safetensors", "--no-verify", "--json")
    found = json.loads(out)
    assert (status, found["schema"], found["command"]) == (0, "holdfast/1", "ckpt convert")
    converted = found["converted"]
    assert (converted["source_format"], converted["target_format"]) == ("torch", "safetensors")
    assert (converted["tensors"], converted["states"], converted["proof"]) == (2, 0, None)
    assert len(converted["left_out_states"]) == 4
    assert converted["size"] == (folder / "plain.safetensors").stat().st_size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ddp.pt", "x", "--to", "zerro2"), "there is no format 'zerro2'; did you mean zero2"),
        (("ddp.pt", "x", "--to", "fsdp1-local"), "fsdp1-local is never written: its flat shards fit"),
        (("ddp.pt", "x", "--to", "torch", "--form", "odd"), "'odd' is no form of torch; torch has the forms by-number"),
        (("ddp.pt", "x", "--to", "torch", "--shard-size", "big"), "'big' is no size; write 5GB, or 500MiB"),
        (("ddp.pt", "x", "--to", "torch", "--map", "a=b"), "'a=b' changes no name; names are such as"),
        (("ddp.pt", "ddp.pt", "--to", "torch", "--overwrite"), "ddp.pt is the source"),
        (("none.pt", "x", "--to", "torch"), "cannot open none.pt: there is no such file or folder"),
    ],
)
def test_mistakes(folder, arguments, said):
    status, out, error = convert(folder, *arguments)
    assert (status, out) == (2, "")
    assert said in error
    assert error.count("\n") == 1
    assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5_000_000_000), ("1.5 MiB", 1_572_864), ("700", 700), ("2k", 2000), ("3tb", 3 * 10**12)]
)
def test_sizes(text, size):
    assert _size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-3GB", "GB", "1e9", "0.0001"])
def test_what_is_no_size(text):
    with pytest.raises(BadValue):
        _size(text)
