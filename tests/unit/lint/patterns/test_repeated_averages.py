"""Averages that are divided twice, sums that are taken twice, means gathered as samples."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

"""
FOUND = {
    "an average divided in place": """
def log(value):
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    value /= dist.get_world_size()
    return value
""",
    "an average of gradients divided by a variable": """
def sync(model):
    ranks = dist.get_world_size()
    for p in model.parameters():
        dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        p.grad.div_(ranks)
""",
    "an average divided in the result": """
def log(value, world_size):
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    return value / world_size
""",
    "a sum taken twice": """
def count(hits):
    dist.all_reduce(hits)
    dist.all_reduce(hits)
    return hits.item()
""",
    "gradients divided although DDP averages": """
def train(net, batches):
    model = DDP(net)
    for x in batches:
        model(x).mean().backward()
        for p in model.parameters():
            p.grad /= dist.get_world_size()
""",
    "a loss divided although DDP averages": """
def train(net, x):
    model = DDP(net)
    loss = model(x).mean()
    loss = loss / dist.get_world_size()
    loss.backward()
""",
    "a loss divided in the call": """
def train(net, x, scaler):
    model = DDP(net)
    loss = model(x).mean()
    scaler.scale(loss / dist.get_world_size()).backward()
""",
    "a mean that is gathered as samples": """
def evaluate(accelerator, model, loader):
    for x, y in loader:
        hits = (model(x) == y).float().mean()
        print(accelerator.gather_for_metrics(hits))
""",
}
FINE = {
    "gradients that the program sums itself": """
def train(net, batches):
    model = DDP(net)
    for x in batches:
        with model.no_sync():
            model(x).mean().backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()
""",
    "a sum divided": """
def log(value):
    dist.all_reduce(value)
    value /= dist.get_world_size()
    return value
""",
    "an average or a sum divided, by the backend": """
def log(value):
    if dist.get_backend() == "nccl":
        dist.all_reduce(value, op=dist.ReduceOp.AVG)
    else:
        dist.all_reduce(value)
        value /= dist.get_world_size()
    return value
""",
    "an average divided by something else": """
def log(value, steps):
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    return value / steps
""",
    "a buffer that is filled again": """
def log(value, other):
    dist.all_reduce(value, op=dist.ReduceOp.AVG)
    print(value)
    value = other.clone()
    value = value / dist.get_world_size()
    return value
""",
    "sums over two groups": """
def count(hits, rows, columns):
    dist.all_reduce(hits, group=rows)
    dist.all_reduce(hits, group=columns)
""",
    "a sum that changes in between": """
def count(hits):
    dist.all_reduce(hits)
    hits.zero_()
    dist.all_reduce(hits)
""",
    "the largest value of a sum": """
def count(hits):
    dist.all_reduce(hits)
    dist.all_reduce(hits, op=dist.ReduceOp.MAX)
""",
    "a loss summed over samples": """
def train(net, x):
    model = DDP(net)
    loss = model(x).sum() / 100
    loss = loss / dist.get_world_size()
    loss.backward()
""",
    "a loss divided without a wrapper": """
def train(net, x):
    loss = net(x).mean()
    loss = loss / dist.get_world_size()
    loss.backward()
""",
    "a reported loss": """
def train(net, x):
    model = DDP(net)
    loss = model(x).mean()
    loss.backward()
    loss = loss / dist.get_world_size()
    print(loss)
""",
    "gathered samples": """
def evaluate(accelerator, model, loader):
    for x, y in loader:
        hits = (model(x) == y).float()
        print(accelerator.gather_for_metrics(hits).mean())
""",
    "means of rows": """
def evaluate(accelerator, model, loader):
    for x, y in loader:
        hits = (model(x) == y).float().mean(1)
        print(accelerator.gather_for_metrics(hits).mean())
""",
}


def messages(source: str) -> list[str]:
    program = program_from_sources({"m": ("m.py", HEAD + source)})
    return [found.detail for found in program.analyze() if found.kind == "habit-result"]


@pytest.mark.parametrize("source", FOUND.values(), ids=list(FOUND))
def test_a_result_that_is_scaled_twice_is_found(source: str) -> None:
    assert len(messages(source)) == 1


@pytest.mark.parametrize("source", FINE.values(), ids=list(FINE))
def test_a_result_that_is_scaled_once_is_fine(source: str) -> None:
    assert messages(source) == []
