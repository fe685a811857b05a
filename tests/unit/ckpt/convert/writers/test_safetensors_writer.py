"""The real libraries load converted safetensors files and Hugging Face folders."""

import json

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model

from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import huggingface, safetensors
from tests.golden.checkpoints.model import STEPS
from tests.unit.ckpt.convert.streamed import neutral, stream
from tests.unit.ckpt.convert.writers.trained import fresh, same, trained


def test_model_loads_with_ties(tmp_path):
    contents, state, _losses = trained(tmp_path)
    path = stream(
        safetensors.write(contents, ConvertOptions()), contents, tmp_path / "out.safetensors"
    )
    module, _optimizer, _scheduler = fresh()
    assert load_model(module, path) == (set(), [])
    assert same(module.state_dict(), state)
    with safe_open(path, "pt") as found:
        assert found.metadata() == {
            "format": "pt",
            "step": str(STEPS),
            "head.weight": "embed.weight",
        }


def test_losses_are_reported(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    losses = safetensors.write(contents, ConvertOptions()).losses
    assert losses[0] == "The optimizer state was not written: the format only holds weights."
    assert "epoch" in losses[1]
    assert "and 4 more" in losses[1]


def test_step_is_stored_once(tmp_path):
    contents, _state, _losses = trained(tmp_path, values={"global_step": STEPS})
    assert "global_step" not in " ".join(safetensors.write(contents, ConvertOptions()).losses)


def test_data_is_aligned(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    path = stream(
        safetensors.write(contents, ConvertOptions(dtype="float16")),
        contents,
        tmp_path / "out.safetensors",
    )
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0
    widths = {"I64": 8, "F16": 2}
    header.pop("__metadata__")
    assert list(header) == list(contents.tensors)
    assert all(each["data_offsets"][0] % widths[each["dtype"]] == 0 for each in header.values())


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
)
def test_another_dtype(tmp_path, dtype):
    contents, state, _losses = trained(tmp_path)
    path = stream(
        safetensors.write(contents, ConvertOptions(dtype=dtype)),
        contents,
        tmp_path / "out.safetensors",
    )
    target = getattr(torch, dtype)
    expected = {
        name: each.to(target) if each.is_floating_point() else each for name, each in state.items()
    }
    found = load_file(path)
    assert all(
        torch.equal(bytes_of(each), bytes_of(expected[name])) for name, each in found.items()
    )


def bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def test_every_common_dtype(tmp_path):
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in safetensors.DTYPES:
                if name != "float8_e8m0fnu":
                    self.register_buffer(f"of_{name}", torch.ones(3).to(getattr(torch, name)))
            self.register_buffer("none", torch.empty(0, 4))
            self.register_buffer("wide", torch.ones(2, dtype=torch.complex128))

    contents = neutral(tmp_path, Odd())
    written = safetensors.write(contents, ConvertOptions())
    assert written.losses == ("wide was not written: safetensors does not support complex128.",)
    found = load_file(stream(written, contents, tmp_path / "out.safetensors"))
    expected = {name: each for name, each in Odd().state_dict().items() if name != "wide"}
    assert {name: (each.dtype, each.shape) for name, each in found.items()} == {
        name: (each.dtype, each.shape) for name, each in expected.items()
    }


def test_shards_and_index(tmp_path):
    contents, state, _losses = trained(tmp_path)
    folder = stream(
        safetensors.write(contents, ConvertOptions(shard_bytes=6000)), contents, tmp_path / "out"
    )
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05}.safetensors"
    assert index["metadata"]["head.weight"] == "embed.weight"
    found = {name: load_file(folder / file)[name] for name, file in index["weight_map"].items()}
    assert index["metadata"]["total_size"] == sum(each.nbytes for each in found.values())
    assert same({**found, "head.weight": found["embed.weight"]}, state)
    assert all(
        sum(each.nbytes for each in load_file(folder / file).values()) <= 6000 for file in files
    )


def test_oversized_tensor_gets_its_own_file(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    folder = stream(
        safetensors.write(contents, ConvertOptions(shard_bytes=1)), contents, tmp_path / "out"
    )
    assert len(list(folder.glob("*.safetensors"))) == len(contents.tensors)


def small(tmp_path):
    """Return a small transformers model, its folder, and the contents of a checkpoint of it."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    module = transformers.LlamaForCausalLM(config)
    config.save_pretrained(tmp_path)
    (tmp_path / "notes.txt").write_text("not of the model")
    contents = neutral(tmp_path, module)
    files = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    return transformers, module, msgspec.structs.replace(contents, files=files)


@pytest.mark.slow
@pytest.mark.parametrize("shard_bytes", [1 << 30, 5000], ids=["one file", "several"])
def test_transformers_loads_the_folder(tmp_path, shard_bytes):
    transformers, module, contents = small(tmp_path)
    written = huggingface.write(contents, ConvertOptions(shard_bytes=shard_bytes))
    assert written.losses == ()
    folder = stream(written, contents, tmp_path / "out")
    assert not (folder / "notes.txt").exists()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert same(loaded.state_dict(), module.state_dict())
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight


def test_missing_config_is_reported(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    written = huggingface.write(contents, ConvertOptions())
    assert "no config.json" in written.losses[-1]
    assert [file.path for file in written.files] == ["model.safetensors"]


def test_config_with_another_dtype_is_reported(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    contents, _state, _losses = trained(tmp_path)
    there = msgspec.structs.replace(contents, files={"config.json": 2})
    assert (
        "set its dtype to bfloat16"
        in huggingface.write(there, ConvertOptions(dtype="bfloat16")).losses[-1]
    )
