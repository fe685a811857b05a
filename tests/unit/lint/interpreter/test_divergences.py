"""Gradient accumulation boundaries that depend on the length of a loader."""

from tests.unit.lint.programs import program_from_sources

BOUNDARY = """\
import torch
import torch.distributed as dist

def train(rows, gradients, every=4):
    mine = %s
    loader = torch.utils.data.DataLoader(mine, batch_size=2)
    for at in range(100):
        if (at + 1) %% every == 0 or at == len(loader) - 1:
            dist.all_reduce(gradients)

train(torch.ones(9), torch.zeros(3))
"""


def test_a_boundary_by_a_rank_local_length_diverges():
    (divergence,) = program_from_sources(
        {"main": ("main.py", BOUNDARY % "torch.split(rows, 3)[dist.get_rank()]")}
    ).analyze()
    assert (divergence.kind, divergence.location.line) == ("branch", 9)


def test_a_boundary_by_a_uniform_length_does_not_diverge():
    assert program_from_sources({"main": ("main.py", BOUNDARY % "rows")}).analyze() == []
