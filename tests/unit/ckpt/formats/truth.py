"""Test helper: compares a checkpoint with the reference tensors of its generator, bit by bit."""

from pathlib import Path

import numpy as np
import torch

from holdfast.ckpt.tensor_blocks import TensorReader
from tests.golden.checkpoints.model import LEARNING_RATE, STEPS


def bits(tensor):
    """Return the bytes of a torch tensor."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def same_tensors(contents, expected, prefix=""):
    """Assert that all model tensors are equal; names are prefixed with ``prefix``."""
    assert {*contents.tensors, *contents.ties} == {prefix + name for name in expected}
    with TensorReader(Path(contents.root)) as reader:
        for name, tensor in expected.items():
            found = contents.tensors[contents.ties.get(prefix + name, prefix + name)]
            assert found.shape == tuple(tensor.shape)
            assert f"torch.{found.dtype}" == str(tensor.dtype)
            assert np.array_equal(
                reader.read_tensor(found).reshape(-1).view(np.uint8), bits(tensor)
            ), name


def same_optimizer(contents, expected, prefix="", rate=LEARNING_RATE):
    """Assert that all parameter states and groups are equal."""
    optimizer = contents.optimizer
    assert set(optimizer.tensors) == {prefix + name for name in expected}
    with TensorReader(Path(contents.root)) as reader:
        for name, state in expected.items():
            assert optimizer.numbers[prefix + name]["step"] == STEPS
            for key in ("exp_avg", "exp_avg_sq"):
                found = optimizer.tensors[prefix + name][key]
                whole = reader.read_tensor(found).reshape(-1)
                assert np.array_equal(whole.view(np.uint8), bits(state[key])), (name, key)
    assert {name for group in optimizer.groups for name in group.params} == {
        prefix + name for name in expected
    }
    assert all(group.options["lr"] == rate for group in optimizer.groups)
    assert {group.options["weight_decay"] for group in optimizer.groups} == {0.1, 0.0}


def truth_of(folder):
    """Return the reference that the generator saved next to the checkpoint."""
    return torch.load(folder / "truth.pt", weights_only=False)
