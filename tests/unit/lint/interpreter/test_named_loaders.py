"""What is called a loader and is otherwise unknown has batches of the rank's own."""

import pytest

from tests.unit.lint.programs import program_from_sources

PROGRAM = """\
import torch.distributed as dist
from data import build
from torch.nn.parallel import DistributedDataParallel as DDP

class Trainer:
    def __init__(self, net, config):
        self.model = DDP(net)
        self.train_loader, self.rows = build(config)
    def run(self):
        train_loader, rows = build()
        for batch in {loader}:
            if {test}:
                continue
            self.model(batch["x"]).mean().backward()
"""


def analyze(loader, test="batch['mask'].sum() == 0"):
    source = PROGRAM.format(loader=loader, test=test)
    return [each.kind for each in program_from_sources({"main": ("main.py", source)}).analyze()]


@pytest.mark.parametrize("loader", ["train_loader", "self.train_loader"])
def test_batches_of_a_loader_from_an_unread_function(loader):
    assert analyze(loader) == ["exit"]
    assert analyze(loader, "batch['step'] % 4 == 0") == []


@pytest.mark.parametrize("rows", ["rows", "self.rows", "range(4)"])
def test_other_names_are_unknown(rows):
    assert analyze(rows) == []


@pytest.mark.parametrize(
    ("test", "count"),
    [
        ("y[0] % 2 == 0", 1),
        ("y[0] > 3", 1),
        ("y.mean() < 0", 1),
        ("y.shape[0] > 3", 0),
        ("rows[0] > 3", 0),
    ],
)
def test_one_element_of_a_batch_is_the_ranks_own(test, count):
    text = f"""
import torch.distributed as dist
def run(train_loader, loss, rows):
    for x, y in train_loader:
        if {test}:
            dist.all_reduce(loss)
"""
    found = program_from_sources({"main": ("main.py", text)}).analyze()
    assert len([each for each in found if each.kind == "branch"]) == count


EPISODE = """
import torch.distributed as dist
def run(policy, env, loss):
    observation, done = env.reset(), False
    while not done:
        observation, reward, done, info = {step}(policy(observation))
        dist.all_reduce(loss)
"""


@pytest.mark.parametrize(("step", "count"), [("env.step", 1), ("scheduler.step", 0)])
def test_an_episode_ends_on_each_rank_at_its_own_time(step, count):
    text = EPISODE.format(step=step)
    found = program_from_sources({"main": ("main.py", text)}).analyze()
    assert len([each for each in found if each.kind == "loop"]) == count


PLATEAU = """
import torch
{start}
from data import make
train_loader, model, optimizer = make()
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
for batch in train_loader:
    loss = model(batch)
    scheduler.step(loss.item())
"""


@pytest.mark.parametrize(
    ("start", "count"), [("import torch.distributed as dist", 1), ("import os", 0)]
)
def test_a_plateau_of_a_script_that_trains_on_several_ranks(start, count):
    found = program_from_sources({"main": ("main.py", PLATEAU.format(start=start))}).analyze()
    assert len([each for each in found if each.kind == "state"]) == count
