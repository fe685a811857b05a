"""Purpose of memory allocations, from the stacks of a training step.

The steps run on the CPU; stacks of a GPU have the same files.
"""

from __future__ import annotations

import sys

import pytest

from holdfast.core.rank_table import SourceLine
from holdfast.host.allocation_purpose import AllocationPurpose, purpose_of

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


def stack_frames():
    """Return the stack as in a memory snapshot: innermost frame first."""
    frame, frames = sys._getframe(1), []
    while frame is not None:
        frames.append(SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return frames


class PurposeRecorder(torch.utils._python_dispatch.TorchDispatchMode):
    """Record the purposes of each operator's allocations."""

    def __init__(self):
        super().__init__()
        self.uses = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.uses.setdefault(operator.__name__, set()).add(purpose_of(stack_frames()))
        return operator(*args, **(kwargs or {}))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, numbers):
        return self.head(torch.relu(self.body(numbers)))


def test_a_training_step():
    numbers, labels = torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
    with PurposeRecorder() as recorder:
        model = Model()
    assert recorder.uses["empty.memory_format"] == {AllocationPurpose.PARAMETERS}
    with PurposeRecorder() as recorder:
        model.to(torch.float64).to(torch.float32)
    assert recorder.uses["_to_copy.default"] == {AllocationPurpose.PARAMETERS}
    optimizer = torch.optim.AdamW(model.parameters())
    with PurposeRecorder() as recorder:
        logits = model(numbers)
    assert recorder.uses["addmm.default"] == {AllocationPurpose.ACTIVATIONS}
    with PurposeRecorder() as recorder:
        loss = functional.cross_entropy(logits, labels)
    assert recorder.uses["_log_softmax.default"] == {AllocationPurpose.LOSS}
    with PurposeRecorder() as recorder:
        loss.backward()
    assert set.union(*recorder.uses.values()) == {AllocationPurpose.BACKWARD}
    with PurposeRecorder() as recorder:
        optimizer.step()
    assert recorder.uses["zeros_like.default"] == {AllocationPurpose.OPTIMIZER}
    assert set.union(*recorder.uses.values()) == {AllocationPurpose.OPTIMIZER}


def test_loading_a_checkpoint(tmp_path):
    model = Model()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    with PurposeRecorder() as recorder:
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert set.union(*recorder.uses.values()) == {AllocationPurpose.LOADED}
