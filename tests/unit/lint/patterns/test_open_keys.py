"""Collectives for each key that a rank's own data has added."""

import pytest

from tests.unit.lint.programs import program_from_sources

TRAINER = """
from collections import defaultdict
import torch

class Trainer:
    def __init__(self, accelerator):
        self.accelerator = accelerator
        self.pending = defaultdict(list)
        self.means = {{}}

    def log(self, name, value):
        {add}

    def flush(self):
        {agree}
        for name in {keys}:
            mean = torch.tensor(self.pending[name]).mean()
            self.means[name] = {reduce}
        {clear}
"""
REWARD = """
def reward(texts, log):
    for text in texts:
        if {test}:
            log("length", len(text))
"""
DEFAULTS = {
    "add": "self.pending[name].append(value)",
    "agree": "pass",
    "keys": "sorted(self.pending)",
    "reduce": "self.accelerator.gather(mean).mean()",
    "clear": "self.pending.clear()",
}


def loops(test="'answer' in text", **parts):
    files = {
        "trainer": ("trainer.py", TRAINER.format(**DEFAULTS | parts)),
        "reward": ("reward.py", REWARD.format(test=test)),
    }
    found = program_from_sources(files).analyze()
    return [each.location.line for each in found if each.kind == "habit-loop"]


@pytest.mark.parametrize("keys", ["sorted(self.pending)", "self.pending", "list(self.pending)"])
def test_keys_that_the_data_added(keys):
    assert loops(keys=keys) == [16]


@pytest.mark.parametrize(
    "parts",
    [
        {"agree": "names = gather_object(list(self.pending))"},
        {"reduce": "mean.item()"},
        {"clear": "pass"},
        {"add": "self.pending['loss'].append(value)"},
        {"keys": "('length', 'score')"},
        {"test": "step % 10 == 0"},
    ],
)
def test_keys_that_all_ranks_have(parts):
    assert loops(**parts) == []
