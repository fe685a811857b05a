"""What the writers of plain formats wrote is read again by our readers: nothing is lost, nothing is made up."""

from pathlib import Path

import numpy as np
import pytest

from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.targets import writer
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.pieces import Reader
from tests.actions.conversion.streamed import stream
from tests.actions.conversion.writers.trained import trained
from tests.saved.model import STEPS

WEIGHTS = (Format.SAFETENSORS, Format.HUGGINGFACE)
WHOLE = [
    (Format.TORCH, "by-number"), (Format.TORCH, "by-name"), (Format.LIGHTNING, ""), (Format.ACCELERATE, "ddp"),
    (Format.ACCELERATE, "fsdp"), (Format.ACCELERATE, "fsdp-full"),
]  # fmt: skip


def again(folder, target, **wish):
    """The contents that were written, and those that were read from it."""
    contents, _state, _losses = trained(folder)
    options = Options(**wish)
    out = stream(writer(target, options).write(contents, options), contents, folder / "out")
    return contents, formats.read(out)


def numbers(contents, tensors):
    with Reader(Path(contents.root)) as reader:
        return {name: reader.whole(each) for name, each in tensors.items()}


def assert_same(contents, tensors, found, others):
    expected, seen = numbers(contents, tensors), numbers(found, others)
    assert set(seen) == set(expected)
    for name, each in expected.items():
        assert each.dtype == seen[name].dtype
        np.testing.assert_array_equal(each, seen[name])


@pytest.mark.parametrize("shard_bytes", [1 << 30, 6000], ids=["one file", "several"])
@pytest.mark.parametrize("target", WEIGHTS)
def test_weights(tmp_path, target, shard_bytes):
    contents, found = again(tmp_path, target, shard_bytes=shard_bytes)
    assert_same(contents, contents.tensors, found, found.tensors)
    assert list(found.tensors) == list(contents.tensors)
    assert (found.ties, found.step, found.gaps) == (contents.ties, STEPS, ())
    assert found.format is (Format.HUGGINGFACE if shard_bytes == 6000 else target)


@pytest.mark.parametrize(("target", "form"), WHOLE)
def test_everything(tmp_path, target, form):
    contents, found = again(tmp_path, target, form=form)
    assert (found.format, found.ties, found.step, found.gaps) == (target, contents.ties, STEPS, ())
    assert_same(contents, contents.tensors, found, found.tensors)
    assert list(found.tensors) == list(contents.tensors)
    assert (found.frozen, found.buffers) == (contents.frozen, contents.buffers)
    expected, optimizer = contents.optimizer, found.optimizer
    assert [each.params for each in optimizer.groups] == [each.params for each in expected.groups]
    assert [dict(each.options) for each in optimizer.groups] == [dict(each.options) for each in expected.groups]
    assert optimizer.numbers == expected.numbers
    for name, states in expected.tensors.items():
        assert_same(contents, states, found, optimizer.tensors[name])


def test_accelerate_without_an_optimizer(tmp_path):
    contents, found = again(tmp_path, Format.ACCELERATE, optimizer=False)
    assert (found.format, found.world_size, found.optimizer) == (Format.ACCELERATE, 1, None)
    assert_same(contents, contents.tensors, found, found.tensors)


@pytest.mark.parametrize("target", [Format.TORCH, Format.LIGHTNING, Format.ACCELERATE])
def test_the_scheduler(tmp_path, target):
    contents, found = again(tmp_path, target)
    options = Options()
    twice = writer(Format.ACCELERATE, options).write(found, options)
    out = stream(twice, found, tmp_path / "twice")
    expected = {key: each for key, each in contents.values.items() if key.startswith("scheduler.")}
    seen = formats.read(out).values
    assert {key: each for key, each in seen.items() if key.startswith("scheduler.")} == expected
