"""Output of the plain-format writers read back by our readers is complete and unchanged."""

from pathlib import Path

import numpy as np
import pytest

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.targets import load_writer
from holdfast.ckpt.formats import registry
from holdfast.ckpt.tensor_blocks import TensorReader
from tests.golden.checkpoints.model import STEPS
from tests.unit.ckpt.convert.streamed import stream
from tests.unit.ckpt.convert.writers.trained import trained

WEIGHTS = (CheckpointFormat.SAFETENSORS, CheckpointFormat.HUGGINGFACE)
WHOLE = [
    (CheckpointFormat.TORCH, "by-number"),
    (CheckpointFormat.TORCH, "by-name"),
    (CheckpointFormat.LIGHTNING, ""),
    (CheckpointFormat.ACCELERATE, "ddp"),
    (CheckpointFormat.ACCELERATE, "fsdp"),
    (CheckpointFormat.ACCELERATE, "fsdp-full"),
]


def write_and_read(folder, target, **fields):
    """Return the contents that were written, and those read back."""
    contents, _state, _losses = trained(folder)
    options = ConvertOptions(**fields)
    out = stream(load_writer(target, options).write(contents, options), contents, folder / "out")
    return contents, registry.read_checkpoint(out)


def numbers(contents, tensors):
    with TensorReader(Path(contents.root)) as reader:
        return {name: reader.read_tensor(each) for name, each in tensors.items()}


def assert_same(contents, tensors, found, others):
    expected, actual = numbers(contents, tensors), numbers(found, others)
    assert set(actual) == set(expected)
    for name, each in expected.items():
        assert each.dtype == actual[name].dtype
        np.testing.assert_array_equal(each, actual[name])


@pytest.mark.parametrize("shard_bytes", [1 << 30, 6000], ids=["one file", "several"])
@pytest.mark.parametrize("target", WEIGHTS)
def test_weights(tmp_path, target, shard_bytes):
    contents, found = write_and_read(tmp_path, target, shard_bytes=shard_bytes)
    assert_same(contents, contents.tensors, found, found.tensors)
    assert list(found.tensors) == list(contents.tensors)
    assert (found.ties, found.step, found.problems) == (contents.ties, STEPS, ())
    assert found.format is (CheckpointFormat.HUGGINGFACE if shard_bytes == 6000 else target)


@pytest.mark.parametrize(("target", "form"), WHOLE)
def test_everything(tmp_path, target, form):
    contents, found = write_and_read(tmp_path, target, form=form)
    assert (found.format, found.ties, found.step, found.problems) == (
        target,
        contents.ties,
        STEPS,
        (),
    )
    assert_same(contents, contents.tensors, found, found.tensors)
    assert list(found.tensors) == list(contents.tensors)
    assert (found.frozen, found.buffers) == (contents.frozen, contents.buffers)
    expected, optimizer = contents.optimizer, found.optimizer
    assert [each.params for each in optimizer.groups] == [each.params for each in expected.groups]
    assert [dict(each.options) for each in optimizer.groups] == [
        dict(each.options) for each in expected.groups
    ]
    assert optimizer.numbers == expected.numbers
    for name, states in expected.tensors.items():
        assert_same(contents, states, found, optimizer.tensors[name])


def test_accelerate_without_an_optimizer(tmp_path):
    contents, found = write_and_read(tmp_path, CheckpointFormat.ACCELERATE, optimizer=False)
    assert (found.format, found.world_size, found.optimizer) == (
        CheckpointFormat.ACCELERATE,
        1,
        None,
    )
    assert_same(contents, contents.tensors, found, found.tensors)


@pytest.mark.parametrize(
    "target", [CheckpointFormat.TORCH, CheckpointFormat.LIGHTNING, CheckpointFormat.ACCELERATE]
)
def test_the_scheduler(tmp_path, target):
    contents, found = write_and_read(tmp_path, target)
    options = ConvertOptions()
    twice = load_writer(CheckpointFormat.ACCELERATE, options).write(found, options)
    out = stream(twice, found, tmp_path / "twice")
    expected = {key: each for key, each in contents.values.items() if key.startswith("scheduler.")}
    actual = registry.read_checkpoint(out).values
    assert {key: each for key, each in actual.items() if key.startswith("scheduler.")} == expected
