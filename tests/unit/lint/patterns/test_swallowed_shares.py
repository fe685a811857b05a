"""Handlers that go on after a failure of the rank's own share, while the others gather."""

import pytest

from tests.unit.lint.programs import program_from_sources

EVALUATOR = """
import torch.distributed as dist

def evaluate(model, task):
    scores = []
    for document in {share}:
        scores.append(model(document))
    {collect}
    return scores
"""
RUNNER = """
import logging
from evaluator import evaluate

def run(model, tasks):
    {loop}
        try:
            evaluate(model, task)
        except {caught} as error:
            {handler}
"""
DEFAULTS = {
    "share": "task.shard(dist.get_rank(), dist.get_world_size())",
    "collect": "dist.all_gather_object([None] * dist.get_world_size(), scores)",
    "loop": "for task in tasks:",
    "caught": "Exception",
    "handler": "logging.error('%s', error)",
}


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ({}, 1),
        ({"share": "task.loader"}, 1),
        ({"share": "range(4)"}, 0),
        ({"collect": "print(scores)"}, 0),
        ({"loop": "if tasks:"}, 0),
        ({"caught": "KeyError"}, 0),
        ({"handler": "raise RuntimeError(task) from error"}, 0),
    ],
)
def test_a_failure_of_the_ranks_own_share(parts, count):
    parts = DEFAULTS | parts
    files = {
        "evaluator": ("evaluator.py", EVALUATOR.format(**parts)),
        "runner": ("runner.py", RUNNER.format(**parts)),
    }
    found = program_from_sources(files).analyze()
    assert len([each for each in found if each.kind == "swallowed"]) == count
