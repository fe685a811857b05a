"""Element types of tensors made from numbers that differ between ranks."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist

rank = dist.get_rank()

def weight(is_main):
    return 1.0 if is_main else 0

"""
FOUND = {
    "a test": "if rank == 0:\n    seen = 1.5\nelse:\n    seen = 0\ndist.all_reduce(torch.tensor(seen))",
    "a function": "dist.all_reduce(torch.as_tensor(weight(rank == 0), device='cuda'))",
    "a dict": """
metrics = {"loss": torch.zeros(1)}
metrics["count"] = torch.tensor(1.0 if rank == 0 else 0)
for value in metrics.values():
    dist.reduce(value, dst=0)""",
}
FINE = {
    "one type": "dist.all_reduce(torch.tensor(1.0 if rank == 0 else 0.0))",
    "a given type": "dist.all_reduce(torch.tensor(weight(rank == 0), dtype=torch.float32))",
    "a converted tensor": "dist.all_reduce(torch.tensor(weight(rank == 0)).float())",
    "the same test on all ranks": "dist.all_reduce(torch.tensor(weight(args.weighted)))",
    "a number of its own": "print(torch.tensor(weight(rank == 0)))\ndist.barrier()",
}


def kinds(body):
    program = program_from_sources({"main": ("main.py", f"{HEAD}{body}\n")})
    return [each.kind for each in program.analyze() if each.kind in ("type", "shape")]


@pytest.mark.parametrize("name", FOUND)
def test_another_type_on_some_ranks_is_found_at_the_collective(name):
    assert kinds(FOUND[name]) == ["type"]


@pytest.mark.parametrize("name", FINE)
def test_one_type_on_all_ranks_is_fine(name):
    assert kinds(FINE[name]) == []
