"""What a conversion loses is a warning and a status; keys of DCP are an option."""

import random

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import save_file

from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.distributed.index import read_index
from holdfast.ckpt.verification import verify_checkpoint
from holdfast.cli.ckpt.convert import command
from holdfast.plan.torch_tracing.description import summarize_module
from holdfast.plan.torch_tracing.loading import build_module, load_function


@pytest.fixture
def accelerate(tmp_path):
    """Write what Accelerate's save_state writes under DDP: safetensors and a numbered optimizer."""
    folder = tmp_path / "state"
    folder.mkdir()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    save_file(dict(model.state_dict()), folder / "model.safetensors")
    torch.save(optimizer.state_dict(), folder / "optimizer.bin")
    torch.save({"step": 1}, folder / "random_states_0.pkl")
    (tmp_path / "order").write_text("\n".join(name for name, _ in model.named_parameters()))
    return folder


def convert(accelerate, to, *options):
    target = accelerate.with_name("target")
    arguments = [str(accelerate), str(target), "--to", to, *options]
    # click caches the help option of a command: the same one as below the root command
    result = CliRunner().invoke(
        command, arguments, standalone_mode=False, help_option_names=["-h", "--help"]
    )
    assert result.exception is None, result.exception
    return result.return_value, " ".join(result.output.split()), target


@pytest.mark.parametrize("to", ["dcp", "torch", "zero1"])
def test_a_lost_optimizer_is_a_warning_and_a_status(accelerate, to):
    status, output, _ = convert(accelerate, to)
    assert status == 1
    assert output.startswith("! ")
    assert "not written optimizer state omitted: 4 numbered parameters without names" in output
    assert "--order FILE" in output


@pytest.mark.parametrize(
    ("to", "options"), [("dcp", ["--no-optimizer"]), ("safetensors", [])], ids=["unwanted", "no"]
)
def test_an_optimizer_that_is_not_wanted_is_no_loss(accelerate, to, options):
    assert convert(accelerate, to, *options)[0] == 0


def test_the_key_of_the_optimizer_in_dcp_is_an_option(accelerate):
    order = str(accelerate.with_name("order"))
    status, _, target = convert(accelerate, "dcp", "--order", order, "--optimizer-key", "optim")
    assert status == 0
    keys = {entry.path[0] for entry in read_index(target / ".metadata")}
    assert "optim" in keys
    assert "optimizer" not in keys
    assert registry.read_checkpoint(target).optimizer is not None


def describe_in_this_process(source):
    """Do what the tracing process does; importing torch there takes two seconds."""
    function = load_function(source)
    with torch.device("meta"):
        return summarize_module(build_module(source, function)[0])


def test_the_order_is_read_from_the_model_s_code(accelerate, monkeypatch):
    monkeypatch.setattr("holdfast.plan.torch_tracing.describe_module", describe_in_this_process)
    code = accelerate.with_name("train.py")
    code.write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.add_module('0', torch.nn.Linear(4, 4))\n"
        "        self.add_module('1', torch.nn.Linear(4, 4))\n"
    )
    status, output, target = convert(accelerate, "torch", "--model", f"{code}:Net")
    assert (status, "omitted" in output) == (0, False)
    names = torch.load(target, weights_only=True)["optimizer"]["param_groups"][0]["param_names"]
    assert names == ["0.weight", "0.bias", "1.weight", "1.bias"]


def test_pickles_beside_the_weights_are_judged(tmp_path):
    folder = tmp_path / "checkpoint-5"
    folder.mkdir()
    save_file({"w": torch.ones(3)}, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "llama"}')
    torch.save({"lr": 0.1}, folder / "training_args.bin")
    assert verify_checkpoint(folder).exit_status == 3

    class Evil:
        def __reduce__(self):
            return eval, ("1 + 1",)

    torch.save({"lr": Evil()}, folder / "training_args.bin")
    report = verify_checkpoint(folder)
    assert report.exit_status == 1
    assert "training_args.bin would run" in report.verdict.root.message


def test_client_state_of_deepspeed_has_the_step(accelerate):
    order = str(accelerate.with_name("order"))
    _, _, target = convert(accelerate, "zero1", "--order", order, "--ranks", "1")
    states = torch.load(next(target.rglob("*model_states.pt")), weights_only=False)
    assert (states["step"], states["global_steps"]) == (1, 1)


def test_random_states_in_a_lightning_checkpoint_are_kept(tmp_path):
    model = torch.nn.Linear(2, 2)
    states = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": np.random.RandomState(3).get_state(),
        "torch.cuda": [],
    }
    checkpoint = {"epoch": 1, "global_step": 4, "pytorch-lightning_version": "2.6.0"}
    checkpoint |= {"state_dict": model.state_dict(), "rng_states": states}
    torch.save(checkpoint, tmp_path / "a.ckpt")
    status, output, target = convert(tmp_path / "a.ckpt", "lightning")
    assert (status, "not plain values" in output) == (0, False)
    kept = torch.load(target, weights_only=True)["rng_states"]
    assert torch.equal(kept["torch"], states["torch"])
    assert (kept["python"], kept["torch.cuda"]) == (states["python"], [])
    restored = np.random.RandomState()
    restored.set_state(kept["numpy"])
    assert restored.rand() == np.random.RandomState(3).rand()
