"""The guide's commands for checkpoints: each is one that `ckpt convert` takes, and none is missing."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.actions.conversion.targets import NEVER, WRITERS, named
from holdfast.cli.ckpt.convert import command
from holdfast.plan.generate.carrying import SIDES, pairs
from holdfast.plan.generate.migration import Format

PAGE = Path(__file__).parents[3] / "docs" / "migration.md"
READ = [form for form in Format if form is not Format.TORCHTITAN]  # which is written alone


def test_every_form_that_is_read_has_its_checkpoints():
    assert set(SIDES) == {*READ, None}


@pytest.mark.parametrize("pair", list(pairs()), ids=lambda pair: f"{pair.origin.title} to {pair.to.title}")
def test_the_command_of_a_pair_is_one(pair):
    program, *words = shlex.split(pair.command)
    assert (program, *words[:2]) == ("holdfast", "ckpt", "convert")
    asked = command.make_context("convert", words[2:]).params
    assert (str(asked["source"]), str(asked["target"])) == (pair.origin.source, "converted")
    target = named(asked["to"])
    assert target not in NEVER
    if asked["form"]:
        assert asked["form"] in import_module(WRITERS[target]).FORMS


def test_the_guide_has_every_pair():
    page = PAGE.read_text()
    lines = [f"| {pair.origin.title} | {pair.to.title} | `{pair.command}` |" for pair in pairs()]
    assert len(lines) == len(SIDES) * (len(SIDES) - 1)
    assert [line for line in lines if line not in page] == []


def test_of_every_side_the_guide_says_how_it_saves_and_loads():
    page = PAGE.read_text()
    assert [side.title for side in SIDES.values() if side.saved not in page or side.loaded not in page] == []
