"""The boundary of gradient accumulation, where the end of a rank's own data moves it."""

from holdfast.facts.code.programs import program

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


def test_a_boundary_by_the_length_of_the_ranks_own_loader_parts_ranks():
    (parting,) = program({"main": ("main.py", BOUNDARY % "torch.split(rows, 3)[dist.get_rank()]")}).look()
    assert (parting.kind, parting.place.line) == ("branch", 9)


def test_a_boundary_by_the_length_of_everybodys_loader_does_not():
    assert program({"main": ("main.py", BOUNDARY % "rows")}).look() == []
