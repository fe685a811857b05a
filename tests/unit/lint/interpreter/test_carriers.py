"""Every way to keep a value and every shape of control flow, with values that differ or agree.

A construct is a section of carriers.txt (what keeps ``value``, what reads it again), shapes.txt
(what calls ``enter`` or not, as ``differs`` is) or agreements.txt (what makes ``agreed`` of
``value``). A new one that is not found is a missing mechanism.
"""

import re
import textwrap
from pathlib import Path

import pytest

from holdfast.lint.run import lint_paths


def sections(name):
    """Return the named parts of each section of a file."""
    text = Path(__file__).with_name(name).read_text()
    return {
        title: dict(part.split("\n", 1) for part in re.split(r"^# ", body, flags=re.MULTILINE)[1:])
        for title, body in re.findall(r"^## (.*)\n((?:(?!## ).*\n)*)", text, re.MULTILINE)
    }


CARRIERS, SHAPES = sections("carriers.txt"), sections("shapes.txt")
AGREEMENTS = sections("agreements.txt")
BOX = CARRIERS.pop("box")["defined"]
PROGRAM = """
import asyncio, contextlib, dataclasses, functools, itertools, json, logging, os, sys
from collections import Counter, defaultdict, deque, namedtuple
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as dnn
from torch.utils.data import DataLoader, DistributedSampler


def enter():
    dist.all_reduce(torch.ones(1))


{defined}


def main(dataset, items, n):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    {before}
    for batch in DataLoader(dataset, sampler=DistributedSampler(dataset), batch_size=4):
{body}


if __name__ == "__main__":
    main([1, 2, 3], [1, 2, 3], int(sys.argv[1]))
"""
OWN = "value = (batch > 0).sum().item()"
AGREED = "value = (batch > 0).sum()\ndist.all_reduce(value)\nvalue = value.item()"
TESTS = {
    "a branch": "if {read} > 3:\n    enter()",
    "an early end": "if {read} > 3:\n    break\nenter()",
    "a count": "rounds = 0\nwhile rounds < {read}:\n    rounds += 1\n    enter()",
}
#: Advice that such a small program gets in any case.
OTHER_RULES = ("hot-loop-sync", "group-left-at-exit", "missing-set-epoch")


def found(folder, *body, defined="", before="pass"):
    """Return whether a program with this loop has a finding that concerns collectives."""
    path = folder / "program.py"
    path.write_text(
        PROGRAM.format(
            defined=defined,
            before=textwrap.indent(before, "    ").strip(),
            body=textwrap.indent("\n".join(map(str.strip, body)), " " * 8),
        )
    )
    return any(each.rule not in OTHER_RULES for each in lint_paths([path]).findings)


def keeps(folder, name, value, test):
    """Return whether a test of what a carrier keeps is reported."""
    carrier = CARRIERS[name]
    body = (value, carrier.get("keep", ""), TESTS[test].format(read=carrier["read"].strip()))
    defined = re.sub(r"^BOX$", BOX, carrier.get("defined", ""), flags=re.MULTILINE)
    return found(folder, *body, defined=defined, before=carrier.get("before", "pass"))


@pytest.mark.parametrize("name", CARRIERS)
def test_rank_local_data_is_found_through(name, tmp_path):
    assert [test for test in TESTS if not keeps(tmp_path, name, OWN, test)] == []


@pytest.mark.parametrize("name", CARRIERS)
def test_agreed_data_is_not_reported_through(name, tmp_path):
    agreed = {} if name == "branch append" else TESTS  # judged by its name: len(kept)
    assert [test for test in agreed if keeps(tmp_path, name, AGREED, test)] == []


@pytest.mark.parametrize("name", SHAPES)
def test_a_test_that_differs_is_found_in_the_shape(name, tmp_path):
    body, defined = SHAPES[name]["body"], SHAPES[name].get("defined", "")
    for differs in ("rank == 0", "(batch > 3).any().item()"):
        assert found(tmp_path, f"differs = {differs}", body, defined=defined), differs


@pytest.mark.parametrize("name", SHAPES)
def test_a_test_that_agrees_is_not_reported_in_the_shape(name, tmp_path):
    body, defined = SHAPES[name]["body"], SHAPES[name].get("defined", "")
    for agrees in ("n == 7", f"None\n{AGREED}\ndiffers = value > 0"):
        assert not found(tmp_path, f"differs = {agrees}", body, defined=defined), agrees


@pytest.mark.parametrize("name", AGREEMENTS)
def test_a_value_that_ranks_agreed_on_is_not_reported(name, tmp_path):
    parts = AGREEMENTS[name]
    for own in (OWN, "value = torch.nn.functional.mse_loss(batch, batch).item()", "value = rank"):
        body = (own, parts["agree"], TESTS["a branch"].format(read="agreed"))
        before = parts.get("before", "pass")
        assert not found(tmp_path, *body, defined=parts.get("defined", ""), before=before), own
