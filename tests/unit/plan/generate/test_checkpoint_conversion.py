"""The guide's checkpoint commands are valid `ckpt convert` commands, and complete."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from docs.migration_guide import CONVERSION_SIDES, conversion_pairs
from holdfast.ckpt.convert.targets import UNSUPPORTED_TARGETS, WRITERS, parse_format
from holdfast.cli.ckpt.convert import command
from holdfast.plan.generate.migration import ConfigFormat

PAGE = Path(__file__).parents[4] / "docs" / "migration.md"
READABLE_FORMATS = [
    form for form in ConfigFormat if form is not ConfigFormat.TORCHTITAN
]  # only written


def test_every_readable_format_has_checkpoint_conversion():
    assert set(CONVERSION_SIDES) == {*READABLE_FORMATS, None}


@pytest.mark.parametrize(
    "pair", list(conversion_pairs()), ids=lambda pair: f"{pair.origin.title} to {pair.to.title}"
)
def test_the_command_of_a_pair_is_valid(pair):
    program, *arguments = shlex.split(pair.command)
    assert (program, *arguments[:2]) == ("holdfast", "ckpt", "convert")
    parameters = command.make_context("convert", arguments[2:]).params
    assert (str(parameters["source"]), str(parameters["target"])) == (
        pair.origin.source,
        "converted",
    )
    target = parse_format(parameters["to"])
    assert target not in UNSUPPORTED_TARGETS
    if parameters["form"]:
        assert parameters["form"] in import_module(WRITERS[target]).FORMS


def test_the_guide_has_every_pair():
    page = PAGE.read_text()
    lines = [
        f"| {pair.origin.title} | {pair.to.title} | `{pair.command}` |"
        for pair in conversion_pairs()
    ]
    assert len(lines) == len(CONVERSION_SIDES) * (len(CONVERSION_SIDES) - 1)
    assert [line for line in lines if line not in page] == []


def test_guide_lists_save_and_load_of_every_form():
    page = PAGE.read_text()
    assert [
        side.title
        for side in CONVERSION_SIDES.values()
        if side.saved not in page or side.loaded not in page
    ] == []
