"""What memory is for, by stacks that torch has while it trains (on the CPU: those of a GPU are of the same files)."""

from __future__ import annotations

import sys

import pytest

from holdfast.core.rank_table import SourceLine
from holdfast.host.allocation_purpose import AllocationPurpose, purpose_of

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional


def places():
    """The stack as a snapshot has it: innermost first."""
    frame, found = sys._getframe(1), []
    while frame is not None:
        found.append(SourceLine(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


class Told(torch.utils._python_dispatch.TorchDispatchMode):
    """Keeps what each operator's new memory is for."""

    def __init__(self):
        super().__init__()
        self.uses = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.uses.setdefault(operator.__name__, set()).add(purpose_of(places()))
        return operator(*args, **(kwargs or {}))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 16)

    def forward(self, numbers):
        return self.head(torch.relu(self.body(numbers)))


def test_a_training_step():
    numbers, labels = torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
    with Told() as told:
        model = Model()
    assert told.uses["empty.memory_format"] == {AllocationPurpose.PARAMETERS}
    with Told() as told:
        model.to(torch.float64).to(torch.float32)
    assert told.uses["_to_copy.default"] == {AllocationPurpose.PARAMETERS}
    optimizer = torch.optim.AdamW(model.parameters())
    with Told() as told:
        logits = model(numbers)
    assert told.uses["addmm.default"] == {AllocationPurpose.ACTIVATIONS}
    with Told() as told:
        loss = functional.cross_entropy(logits, labels)
    assert told.uses["_log_softmax.default"] == {AllocationPurpose.LOSS}
    with Told() as told:
        loss.backward()
    assert set.union(*told.uses.values()) == {AllocationPurpose.BACKWARD}
    with Told() as told:
        optimizer.step()
    assert told.uses["zeros_like.default"] == {AllocationPurpose.OPTIMIZER}
    assert set.union(*told.uses.values()) == {AllocationPurpose.OPTIMIZER}


def test_a_checkpoint_that_is_loaded(tmp_path):
    model = Model()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    with Told() as told:
        model.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert set.union(*told.uses.values()) == {AllocationPurpose.LOADED}
