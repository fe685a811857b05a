"""`holdfast checklist`: text, JSON, page, own items, and errors in one sentence."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.in_process import run_holdfast

OWN = """
[[item]]
id = "licence"
title = "The licence server answers"
command = "false"
action = "Call the administrator."

[[item]]
id = "space"
title = "There is space"
command = "true"
action = "Delete files."
"""


@pytest.fixture
def own(tmp_path):
    (tmp_path / "own.toml").write_text(OWN)
    return ("--items", tmp_path / "own.toml")


def test_own_items(own):
    done = run_holdfast("checklist", "start", *own, "--only", "licence", "--only", "space")
    assert done.returncode == 1
    assert "checklist start: 2 items: 1 ok, 1 error" in done.stdout
    assert "✗  The licence server answers (licence)" in done.stdout
    assert "Call the administrator." in done.stdout
    assert "$ false" in done.stdout
    assert "Delete files." not in done.stdout


def test_json_and_page(own, tmp_path):
    done = run_holdfast(
        "checklist", "start", *own, "--only", "licence", "--json", "--html", tmp_path / "page.html"
    )
    document = json.loads(done.stdout)
    assert (document["command"], document["checklist"]) == ("checklist", "start")
    (item,) = document["items"]
    assert (item["id"], item["state"], item["command"]) == ("licence", "error", "false")
    assert "The licence server answers" in (tmp_path / "page.html").read_text()


def test_an_item_without_its_value_is_unknown():
    done = run_holdfast("checklist", "start", "--only", "data")
    assert done.returncode == 3
    assert "?  Data shards" in done.stdout
    assert "not checked: needs --data" in done.stdout


def test_own_items_replace_ours(tmp_path):
    (tmp_path / "own.toml").write_text(OWN.replace("licence", "alerts"))
    done = run_holdfast("checklist", "start", "--items", tmp_path / "own.toml", "--list")
    assert sum(line.startswith("alerts ") for line in done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("strat",), "holdfast: unknown checklist 'strat'; did you mean start?"),
        (("start", "--only", "nams"), "holdfast: unknown item 'nams'; did you mean names?"),
        (("start", "--items", "no.toml"), "holdfast: cannot open no.toml"),
        (
            ("start", "--html", "nowhere/page.html"),
            "holdfast: cannot open nowhere/page.html: its folder does not exist",
        ),
    ],
)
def test_mistakes_are_one_sentence(words, message):
    done = run_holdfast("checklist", *words)
    assert done.returncode == 2
    assert done.stderr.startswith(message), done.stderr
    assert done.stderr.count("\n") == 1
