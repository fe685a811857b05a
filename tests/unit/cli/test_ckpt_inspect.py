"""``holdfast ckpt inspect``: output, exit status, cost."""

import json
import subprocess
import sys
import zipfile

import pytest
import torch

from holdfast import cli
from tests.golden.checkpoints import sparse
from tests.golden.checkpoints.hostile import CALLS
from tests.golden.checkpoints.model import loss_of, model, optimizer_of

#: A hundred of these layers are 100 GB.
LAYERS, SECONDS, MIB = 100, 2.0, 300


@pytest.fixture
def call(capsys):
    """Return exit status, stdout and stderr of one call."""

    def inspect(*arguments):
        with pytest.raises(SystemExit) as end:
            cli.main(["ckpt", "inspect", *map(str, arguments)])
        shown = capsys.readouterr()
        return end.value.code or 0, shown.out, shown.err

    return inspect


@pytest.fixture
def saved(tmp_path):
    module = model()
    optimizer = optimizer_of(module)
    loss_of(module, 0).backward()
    optimizer.step()
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(state, tmp_path / "a.pt")
    return tmp_path / "a.pt"


def words(text):
    return " ".join(text.split())


def test_contents_of_a_file(call, saved):
    status, out, err = call(saved)
    assert (status, err) == (0, "")
    text = words(out)
    assert "torch.save file, 19 tensors with 6,268 elements" in text
    assert "blocks.0-1.up.weight 2 x float32 [51, 20]" in text
    assert "tied head.weight = embed.weight" in text
    assert "group 0 7 parameters: weight_decay 0.1, lr 0.01" in text
    assert "epoch: 3" in text
    assert "step 1 " in text


def test_every_tensor(call, saved):
    out = words(call(saved, "--tensors")[1])
    for name in ("blocks.0.up.weight", "blocks.1.up.weight"):
        assert f"{name} float32 [51, 20]" in out


def test_json(call, saved):
    status, out, _ = call(saved, "--json")
    found = json.loads(out)
    assert (status, found["schema"], found["command"], found["findings"]) == (
        0,
        "holdfast/1",
        "ckpt inspect",
        [],
    )
    assert (found["format"], found["step"], found["world_size"], found["parameters"]) == (
        "torch",
        1,
        None,
        6268,
    )
    assert found["ties"] == {"head.weight": "embed.weight"}
    assert found["optimizer"]["states"]["exp_avg"]["parameters"] == 15
    assert {each["name"] for each in found["tensors"]} == set(model().state_dict()) - {
        "head.weight"
    }


def test_frozen_option(call, saved):
    assert "whole modules are frozen" in words(call(saved)[1])
    assert "whole modules are frozen" not in words(call(saved, "--frozen", "frozen.*")[1])


def test_missing_files_are_findings(call, tmp_path):
    folder = sparse.safetensors_folder(tmp_path / "hf", layers=2, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    status, out, _ = call(folder)
    assert status == 1
    assert (
        "incomplete missing model-00002-of-00003.safetensors: the index lists 3 tensors in it"
        in words(out)
    )
    (finding,) = json.loads(call(folder, "--json")[1])["findings"]
    assert (finding["code"], finding["level"]) == ("CKPT002", "error")


@pytest.mark.parametrize("name", ["none.pt", "."])
def test_not_a_checkpoint(call, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    status, out, err = call(name)
    assert (status, out) == (2, "")
    assert err.startswith("holdfast: ")
    assert err.count("\n") == 1


def test_malicious_pickle_is_reported_and_not_run(call, tmp_path):
    marker = tmp_path / "ran"
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.writestr("a/data.pkl", CALLS["os.system"](marker))
        archive.writestr("a/version", "3\n")
    status, out, err = call(tmp_path / "a.pt")
    assert (status, out) == (2, "")
    assert "os.system" in err
    assert not marker.exists()


PROBE = """
import os, re, sys
from holdfast import cli
try:
    cli.main(["ckpt", "inspect", sys.argv[1]])
except SystemExit as end:
    peak = re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]
    print(end.code or 0, int(peak) // 1024, sum(os.times()[:2]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_100_gb_checkpoint_is_cheap(tmp_path, kind):
    file = sparse.torch_file(tmp_path / "a.pt", LAYERS) if kind == "torch" else None
    path = file or sparse.safetensors_folder(tmp_path / "hf", LAYERS, shards=20)
    done = subprocess.run(
        [sys.executable, "-c", PROBE, str(path)], capture_output=True, text=True, check=True
    )
    status, mib, seconds = map(float, done.stdout.splitlines()[-1].split())
    assert "50,331,648,000" in done.stdout
    assert status == 0
    assert mib <= MIB
    assert seconds <= SECONDS  # CPU time: the machine may be busy
