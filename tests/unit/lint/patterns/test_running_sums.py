"""Totals that are summed over the ranks in the loop that counts them."""

import pytest

from tests.unit.lint.programs import program_from_sources

HEAD = """\
import torch
import torch.distributed as dist
"""
HELPER = """\
def reduce_sum(value):
    value = torch.tensor(value).cuda()
    dist.all_reduce(value)
    return value.item()
"""
MEAN = f"{HELPER.replace('return value.item()', 'return value.item() / dist.get_world_size()')}"
METER = """\
class Meter:
    def __init__(self):
        self.sum, self.count = torch.zeros(1), torch.zeros(1)

    def update(self, value, n=1):
        self.sum += value * n
        self.count += n

    def synchronize(self):
        dist.all_reduce(self.sum)
        dist.all_reduce(self.count)
"""
SMOOTHED = """\
class Smoothed:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, value):
        self.total += value
        self.count += 1

    def synchronize(self):
        pair = torch.tensor([self.count, self.total])
        dist.all_reduce(pair)
        pair = pair.tolist()
        self.count = int(pair[0])
        self.total = pair[1]
"""
LOOP = "def run(loader, model):\n{before}    for step, batch in enumerate(loader):\n{body}"


def loop(body, before=""):
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return LOOP.format(before=f"    {before}\n" if before else "", body=lines)


FOUND = [
    loop("total += model(batch)\ndist.all_reduce(total)  # found", "total = torch.zeros(1)"),
    HELPER + loop("total += len(batch)\ntotal = reduce_sum(total)  # found", "total = 0"),
    METER + loop("meter.update(model(batch))\nmeter.synchronize()  # found", "meter = Meter()"),
    SMOOTHED
    + loop(
        "meter.update(model(batch))\nif step % 9 == 0:\n    meter.synchronize()  # found",
        "meter = Smoothed()",
    ),
    """\
class Trainer:
    def __init__(self):
        self.hits = {}

    def count(self, batch):
        for name, value in batch.items():
            self.hits[name] = self.hits.get(name, 0) + value

    def reduce(self):
        for name in sorted(self.hits):
            dist.all_reduce(self.hits[name])

    def run(self, loader):
        for batch in loader:
            self.count(batch)
            self.reduce()  # found
""",
]
FINE = [
    loop("dist.all_reduce(batch)\nmodel.update(batch.item())"),
    loop("dist.all_reduce(total)\nmodel.update(total)", "total = 0"),
    loop("total += model(batch)", "total = torch.zeros(1)") + "    dist.all_reduce(total)\n",
    loop("total = model(batch)\ntotal += 1\ndist.all_reduce(total)"),
    loop("total += model(batch)\nshown = total.clone()\ndist.all_reduce(shown)", "total = 0"),
    loop("total += model(batch)\ndist.all_reduce(total, op=dist.ReduceOp.AVG)", "total = 0"),
    loop("total += model(batch)\ndist.all_reduce(total)\ntotal /= dist.get_world_size()"),
    loop("total += 1\nif step == 9:\n    dist.all_reduce(total)\n    break", "total = 0"),
    loop(
        "total += 1\nif step % 9 == 0:\n    dist.all_reduce(total)\n    total.zero_()", "total = 0"
    ),
    HELPER + loop("total += len(batch)\nshown = reduce_sum(total)", "total = 0"),
    MEAN + loop("total += len(batch)\ntotal = reduce_sum(total)", "total = 0"),
    METER + loop("meter = Meter()\nmeter.update(model(batch))\nmeter.synchronize()"),
    METER + loop("meter.update(model(batch))", "meter = Meter()") + "    meter.synchronize()\n",
    METER.replace("synchronize", "reset")
    + loop("meter.update(1)\nmeter.reset()", "meter = Meter()"),
]


def found_lines(body):
    text = f"{HEAD}{body}"
    program = program_from_sources({"main": ("main.py", text)})
    lines = text.splitlines()
    return [
        "# found" in lines[each.location.line - 1]
        for each in program.analyze()
        if each.kind == "habit-result" and "each round" in each.detail
    ]


@pytest.mark.parametrize("body", FOUND)
def test_a_total_that_is_summed_while_it_counts_is_found(body):
    assert found_lines(body) == [True]


@pytest.mark.parametrize("body", FINE)
def test_a_total_that_is_summed_once_is_fine(body):
    assert found_lines(body) == []


def test_functions_of_other_files_are_followed():
    files = {
        "comm": ("comm.py", HEAD + HELPER),
        "scores": (
            "scores.py",
            (
                "class Scores:\n    def update(self, totals, batch):\n"
                "        totals['n'] += len(batch)\n        return totals\n"
            ),
        ),
        "main": (
            "main.py",
            (
                f"{HEAD}import comm\nfrom scores import Scores\n\n\nclass Trainer:\n"
                "    def __init__(self):\n        self.scores = Scores()\n\n"
                "    def reduce(self, totals):\n        for name in totals:\n"
                "            totals[name] = comm.reduce_sum(totals[name])\n        return totals\n\n"
                "    def run(self, loader):\n        totals = {'n': 0}\n        for batch in loader:\n"
                "            totals = self.scores.update(totals, batch)\n"
                "            totals = self.reduce(totals)\n"
            ),
        ),
    }
    found = [
        each.location.function
        for each in program_from_sources(files).analyze()
        if "each round" in each.detail
    ]
    assert found == ["run"]
