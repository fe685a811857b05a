"""Parameters that an annotation gives a library's class, and models that a function converts."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
import lightning as L
from torch.nn.parallel import DistributedDataParallel as DDP
"""
SAVED = """
def save(run: %s, path):
    run.save_checkpoint(path)
def finish(make, path):
    run = make()
    if run.is_global_zero:
        save(run, path)
"""
CONVERTED = """
def evaluate(model, batches):
    for x in batches:
        model(x)
def main(batches):
    model = %s
    if dist.get_rank() == 0:
        evaluate(model, batches)
    dist.barrier()
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
    def forward(self, x):
        return x
"""


def branches(text):
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    return [each.op.name for each in program.analyze() if each.kind == "branch"]


def test_an_annotation_with_a_library_class_says_what_a_method_enters():
    assert branches(SAVED % "L.Trainer") == ["save_checkpoint"]


@pytest.mark.parametrize(
    "model",
    [
        "DDP(Net())",
        "torch.compile(DDP(Net()))",
        "DDP(torch.nn.SyncBatchNorm.convert_sync_batchnorm(Net()))",
    ],
)
def test_a_compiled_or_converted_model_stays_wrapped(model):
    assert branches(CONVERTED % model) == ["forward"]


def test_a_compiled_model_without_a_wrapper_enters_nothing():
    assert branches(CONVERTED % "torch.compile(Net())") == []
