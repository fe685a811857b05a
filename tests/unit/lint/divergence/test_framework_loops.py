"""What the loops of frameworks do with flags and results, shares of data, and one-rank updates."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import os, time
import lightning as L
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from transformers import TrainerCallback

dist.init_process_group("nccl")
rank, world = dist.get_rank(), dist.get_world_size()
"""
CALLBACK = """
class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        {body}
"""
MODULE = """
class Net(L.LightningModule):
    def __init__(self):
        super().__init__()
        {option}
    def training_step(self, batch, batch_idx):
        loss = self.layer(batch).mean()
        if {test}:
            return None
        return loss
"""
SHARE = """
def share(lines):
    for number, line in enumerate(lines):
        if {test}:
            yield torch.tensor(line)
def validate(model):
    total = 0.0
    for x in share([[1], [2]]):
        total += model(x).mean().item()
    return total
if validate(DDP(torch.nn.Linear(1, 1))) < 1.0:
    dist.barrier()
"""
KEYS = """
def count(loader):
    found = {{}}
    for x, kind in loader:
        found.setdefault({key}, []).append(1)
    for each in found:
        dist.all_reduce(torch.ones(1))
data = torch.utils.data.TensorDataset(torch.zeros(9))
count(DataLoader(data, sampler=DistributedSampler(data)))
"""
UPDATE = """
class Trainer:
    def step(self, x):
        self.model(x).mean().backward()
        if {test}:
            {update}
        self.optimizer.step()
Trainer().step(torch.ones(1))
"""
CLIP = "torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)"
DIFFER = {
    "stop on a file": CALLBACK.format(
        body="if os.path.exists('stop'):\n            control.should_training_stop = True"
    ),
    "stop on the clock": CALLBACK.format(
        body="control.should_training_stop = time.time() > self.end"
    ),
    "no loss": MODULE.format(option="", test="torch.isnan(loss)"),
    "a share": SHARE.format(test="number % world == rank"),
    "keys of the data": KEYS.format(key="kind"),
    "clipping": UPDATE.format(test="rank == 0", update=CLIP),
}
ALIKE = {
    "stop at a step": CALLBACK.format(
        body="if state.global_step > args.limit:\n            control.should_training_stop = True"
    ),
    "an agreed stop": CALLBACK.format(
        body="if rank == 0 and os.path.exists('stop'):\n            control.should_training_stop = "
        "True\n        control.should_training_stop = agree(control.should_training_stop)"
    ),
    "go on": CALLBACK.format(
        body="if os.path.exists('go'):\n            control.should_training_stop = False"
    ),
    "no loss at a step": MODULE.format(option="", test="batch_idx == 0"),
    "own optimization": MODULE.format(
        option="self.automatic_optimization = False", test="torch.isnan(loss)"
    ),
    "all lines": SHARE.format(test="number % world == 0"),
    "one key": KEYS.format(key='"all"'),
    "clipping on all": UPDATE.format(test="world > 1", update=CLIP),
    "another step": UPDATE.format(test="rank == 0", update="self.profiler.step()"),
}


def found(text):
    program = program_from_sources({"main": ("main.py", HEAD + text)})
    kinds = ("branch", "exit", "loop", "habit-state", "habit-branch")
    return [each.kind for each in program.analyze() if each.kind in kinds]


@pytest.mark.parametrize("name", DIFFER)
def test_ranks_differ(name):
    assert found(DIFFER[name])


@pytest.mark.parametrize("name", ALIKE)
def test_ranks_are_alike(name):
    assert found(ALIKE[name]) == []


OUTPUTS = """
class Stop(L.Callback):
    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if {test}:
            trainer.should_stop = True
"""


@pytest.mark.parametrize(
    ("test", "count"),
    [
        ("outputs['loss'].item() > 1e4", 1),
        ("batch['labels'].max() > 9", 1),
        ("batch_idx > 100", 0),
        ("trainer.strategy.reduce_boolean_decision(outputs['loss'].item() > 1e4)", 0),
    ],
)
def test_a_callback_of_lightning_that_stops_by_the_ranks_own_batch(test, count):
    found = program_from_sources({"train": ("train.py", HEAD + OUTPUTS.format(test=test))})
    assert len([each for each in found.analyze() if each.kind == "habit-branch"]) == count
