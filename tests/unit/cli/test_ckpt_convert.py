"""`holdfast ckpt convert`: output, exit status, invalid options."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from holdfast.ckpt.formats.registry import read_checkpoint
from holdfast.cli.ckpt.convert import _parse_size
from holdfast.core.errors import InvalidValue
from tests.unit.cli.in_process import run_holdfast


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a file saved by a DistributedDataParallel job."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {f"module.{name}": each for name, each in model.state_dict().items()}
    torch.save({"model": state, "optimizer": optimizer.state_dict(), "step": 1}, folder / "ddp.pt")
    return folder


def run_command(folder, *arguments):
    """Run the command in a new process; return exit status, stdout, stderr."""
    found = subprocess.run(
        [sys.executable, "-m", "holdfast", "ckpt", "convert", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return found.returncode, found.stdout, found.stderr


def convert(folder, *arguments):
    """Run the command in this process; return exit status, stdout, stderr."""
    done = run_holdfast("ckpt", "convert", *arguments, folder=folder)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_output(folder):
    status, out, error = run_command(folder, "ddp.pt", "zero", "--to", "zero2", "--ranks", "2")
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    assert (status, error) == (0, "")
    assert "converted in" in lines[0]
    assert lines[1:4] == [
        "from  ddp.pt (torch)",
        "to  zero (zero2)",
        "written  2 model tensors, 4 optimizer tensors, in 4 files",
    ]
    assert " ".join(lines[4:]).startswith(
        "verified  2 model tensors, 4 optimizer tensors: bit-identical to the source"
    )
    assert sorted(each.name for each in (folder / "zero").iterdir()) == ["global_step1", "latest"]


def test_json(folder):
    status, out, _ = convert(
        folder, "ddp.pt", "plain.safetensors", "--to", "safetensors", "--no-verify", "--json"
    )
    found = json.loads(out)
    assert (status, found["schema"], found["command"]) == (0, "holdfast/1", "ckpt convert")
    converted = found["converted"]
    assert (converted["source_format"], converted["target_format"]) == ("torch", "safetensors")
    assert (converted["tensors"], converted["states"], converted["proof"]) == (2, 0, None)
    assert len(converted["left_out_states"]) == 4
    assert converted["size"] == (folder / "plain.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ddp.pt", "x", "--to", "zerro2"), "unknown format 'zerro2'; did you mean zero2"),
        (
            ("ddp.pt", "x", "--to", "fsdp1-local"),
            "fsdp1-local cannot be written: its flat shards need equal wrapping",
        ),
        (
            ("ddp.pt", "x", "--to", "torch", "--form", "odd"),
            "'odd' is not a form of torch; torch has the forms by-number",
        ),
        (
            ("ddp.pt", "x", "--to", "torch", "--shard-size", "big"),
            "'big' is not a size; use e.g. 5GB or 500MiB",
        ),
        (
            ("ddp.pt", "x", "--to", "torch", "--map", "a=b"),
            "'a=b' matches no name; the closest name is bias",
        ),
        (("ddp.pt", "ddp.pt", "--to", "torch", "--overwrite"), "ddp.pt is the source"),
        (("none.pt", "x", "--to", "torch"), "cannot open none.pt: no such file or folder"),
    ],
)
def test_invalid_arguments(folder, arguments, expected):
    status, out, error = convert(folder, *arguments)
    assert (status, out) == (2, "")
    assert expected in error
    assert error.count("\n") == 1
    assert not (folder / "x").exists()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("5GB", 5_000_000_000),
        ("1.5 MiB", 1_572_864),
        ("700", 700),
        ("2k", 2000),
        ("3tb", 3 * 10**12),
    ],
)
def test_sizes(text, size):
    assert _parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-3GB", "GB", "1e9", "0.0001"])
def test_invalid_sizes(text):
    with pytest.raises(InvalidValue):
        _parse_size(text)


def test_torchtitan_is_a_target(folder):
    status, out, _ = convert(folder, "ddp.pt", "step-1", "--to", "torchtitan")
    assert (status, "exclude_from_loading dataloader" in " ".join(out.split())) == (0, True)
    assert read_checkpoint(folder / "step-1").writer == "torchtitan"
