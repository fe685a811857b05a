"""Checklists: items from TOML, facts, states of outcomes. What is unknown never passes."""

from __future__ import annotations

import json
import os
import shlex
import time

import pytest

from holdfast.core.errors import InvalidValue, MissingFile, UnknownName
from holdfast.host.checks import CHECKS
from holdfast.preflight.checklists import facts
from holdfast.preflight.checklists.items import (
    CHECKLISTS,
    ChecklistItem,
    read_checklist,
    read_items,
)
from holdfast.preflight.checklists.outcome import (
    ItemOutcome,
    combine_states,
    describe_output,
    exit_status,
    state_of_status,
)
from holdfast.preflight.checklists.rendering import checklist_page
from holdfast.preflight.checklists.runner import ChecklistContext, run_items
from holdfast.report.check_table import CheckState

ITEMS = {name: read_checklist(name) for name in CHECKLISTS}
STATE = {state.name: state for state in CheckState}


def item(**fields):
    return ChecklistItem(**{"id": "a", "title": "A", "action": "Do it.", **fields})


def outcome_of(values=(), **fields):
    (outcome,) = run_items([item(**fields)], ChecklistContext(dict(values)))
    return outcome


@pytest.mark.parametrize("name", CHECKLISTS)
def test_our_items_are_valid(name):
    ids = [each.id for each in ITEMS[name]]
    assert len(set(ids)) == len(ids)
    for each in ITEMS[name]:
        assert set(each.checks) <= CHECKS.keys()
        assert not each.fact or each.fact in facts.FACTS
        assert not each.command or shlex.split(each.command)[0] == "holdfast"
        assert each.action.endswith((".", ")", "'", "y"))


def test_every_host_check_is_in_a_checklist():
    used = {name for items in ITEMS.values() for each in items for name in each.checks}
    assert used == CHECKS.keys()


def test_items_about_checkpoints_are_unknown_without_their_folder():
    for each in ITEMS["start"]:
        if {"disk", "checkpoints"} & set(each.checks):
            (outcome,) = run_items([each], ChecklistContext({}))
            assert (outcome.state, outcome.text) == (
                CheckState.UNKNOWN,
                "not checked: needs --checkpoints",
            )


# Files of items


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ('[[item]]\nid = "a"', InvalidValue, "missing required field `title`"),
        (
            '[[item]]\nid = "a"\ntitle = ""\naction = ""',
            InvalidValue,
            "needs exactly one of checks, command and fact",
        ),
        (
            '[[item]]\nid = "a"\ntitle = ""\naction = ""\ncommand = "x"\ncomand = "y"',
            InvalidValue,
            "unknown field `comand`",
        ),
        (
            '[[item]]\nid = "a"\ntitle = ""\naction = ""\ncommand = "x {scirpt}"',
            UnknownName,
            "placeholder",
        ),
        ("[[item", InvalidValue, "invalid items in "),
    ],
)
def test_invalid_files(tmp_path, text, error, message):
    (tmp_path / "items.toml").write_text(text)
    with pytest.raises(error) as caught:
        read_items(tmp_path / "items.toml")
    assert message in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(MissingFile):
        read_items(tmp_path / "no.toml")


def test_an_unknown_checklist():
    with pytest.raises(UnknownName, match="unknown checklist 'strat'; did you mean start"):
        read_checklist("strat")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"checks": ("nmes",)}, "check of item a: 'nmes'; did you mean names"),
        ({"fact": "alert"}, "did you mean alerts"),
    ],
)
def test_unknown_names_in_items(fields, message):
    with pytest.raises(UnknownName, match=message):
        outcome_of(**fields)


# States


@pytest.mark.parametrize(
    ("words", "status", "state"),
    [
        (["holdfast"], 0, "OK"),
        (["holdfast"], 1, "ERROR"),
        (["holdfast"], 2, "UNKNOWN"),
        (["holdfast"], 3, "UNKNOWN"),
        (["ping"], 0, "OK"),
        (["ping"], 2, "ERROR"),
        (["ping"], 127, "UNKNOWN"),
        (["ping"], -9, "UNKNOWN"),
    ],
)
def test_states_of_statuses(words, status, state):
    assert state_of_status(words, status) is STATE[state]


@pytest.mark.parametrize(
    ("states", "combined"),
    [
        ("OK UNKNOWN", "UNKNOWN"),
        ("UNKNOWN ERROR", "ERROR"),
        ("ABSENT OK", "OK"),
        ("ABSENT ABSENT", "ABSENT"),
        ("OK NOTE WARNING", "WARNING"),
        ("", "UNKNOWN"),
    ],
)
def test_combined_states(states, combined):
    assert combine_states([STATE[each] for each in states.split()]) is STATE[combined]


def outcome(state, **fields):
    return ItemOutcome(
        **{
            "id": "a",
            "title": "A",
            "state": state,
            "text": "",
            "command": "",
            "action": "",
            **fields,
        }
    )


@pytest.mark.parametrize(
    ("states", "status"),
    [("OK ABSENT", 0), ("OK WARNING", 0), ("OK UNKNOWN", 3), ("UNKNOWN ERROR", 1), ("", 3)],
)
def test_exit_statuses(states, status):
    assert exit_status([outcome(STATE[each]) for each in states.split()]) == status


def test_the_reason_is_the_worst_finding():
    findings = [{"level": "note", "message": "n"}, {"level": "error", "message": "e"}]
    assert describe_output(json.dumps({"findings": findings, "verdict": None}), "") == "e"
    assert describe_output(json.dumps({"findings": [], "verdict": None}), "") == "nothing wrong"
    assert describe_output("a\nlast\n", "") == "last"
    assert describe_output("", "holdfast: no job\n") == "no job"


# Running


@pytest.mark.parametrize(
    ("command", "state", "text"),
    [
        ("true", "OK", "exit status 0"),
        ("false", "ERROR", "exit status 1"),
        ("no-such-program", "UNKNOWN", "no-such-program: no such file or directory"),
        ("ls {checkpoints}", "UNKNOWN", "not checked: needs --checkpoints"),
        ("ckpt verify {newest_checkpoint}", "UNKNOWN", "not checked: needs --checkpoints"),
    ],
)
def test_commands(command, state, text):
    outcome = outcome_of(command=command)
    assert (outcome.state, outcome.text.lower()) == (STATE[state], text.lower())


def test_a_command_that_does_not_end():
    outcome = outcome_of(command="sleep 60", limit_s=0.1)
    assert (outcome.state, outcome.text) == (CheckState.UNKNOWN, "not done after 0.1 s")


def test_values_are_filled_in_as_single_words(tmp_path):
    outcome = outcome_of({"logs": f"{tmp_path}/a b"}, command="ls {logs}")
    assert outcome.command == f"ls '{tmp_path}/a b'"
    assert outcome.state is CheckState.ERROR
    (tmp_path / "a b").touch()
    assert outcome_of({"logs": f"{tmp_path}/a b"}, command="ls {logs}").state is CheckState.OK


def test_host_checks_share_one_run():
    outcome = outcome_of(checks=("shared-memory", "limits"))
    assert outcome.command == "holdfast check --only shared-memory --only limits"
    assert outcome.state in set(CheckState) - {CheckState.ABSENT}


# Facts


def test_programs_and_packages():
    assert facts.program("sh")[0] is CheckState.OK
    assert facts.program("no-such-program") == (
        CheckState.ERROR,
        "no-such-program is not installed",
    )
    assert facts.package("json")[0] is CheckState.OK
    assert facts.package("no_such_package")[0] is CheckState.ERROR


def test_alerts(monkeypatch):
    monkeypatch.delenv("HOLDFAST_ALERTS", raising=False)
    assert facts.alerts("")[0] is CheckState.ERROR
    monkeypatch.setenv("HOLDFAST_ALERTS", "json://a json://secret")
    assert facts.alerts("") == (CheckState.OK, "2 receivers in HOLDFAST_ALERTS")


def test_data_shards(tmp_path):
    assert facts.data_shards(f"{tmp_path}/*.tar")[0] is CheckState.ERROR
    (tmp_path / "0.tar").write_text("x")
    assert facts.data_shards(f"{tmp_path}/*.tar")[0] is CheckState.OK
    (tmp_path / "1.tar").touch()
    assert facts.data_shards(str(tmp_path)) == (CheckState.ERROR, "1 empty file, e.g. 1.tar")


@pytest.mark.parametrize(
    ("ages_s", "state"),
    [((), "ERROR"), ((60,), "UNKNOWN"), ((700, 100), "OK"), ((5000, 4400), "ERROR")],
)
def test_checkpoint_age(tmp_path, ages_s, state):
    for step, age_s in enumerate(ages_s, 1):
        folder = tmp_path / f"step-{step:012d}"
        folder.mkdir()
        os.utime(folder, (time.time() - age_s,) * 2)
    assert facts.checkpoint_age(str(tmp_path))[0] is STATE[state]
    newest = str(tmp_path / f"step-{len(ages_s):012d}") if ages_s else None
    assert facts.newest_checkpoint(str(tmp_path)) == newest


def ledger(folder, *lines):
    texts = (
        json.dumps({"schema": "holdfast/ledger/1", "at": at, **line})
        for at, line in enumerate(lines)
    )
    (folder / "ledger.jsonl").write_text("".join(f"{text}\n" for text in texts))


BEGUN, STARTED, FAILED = {"event": "begun"}, {"event": "started"}, {"event": "failed"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("events", "rehearsed", "healthy"),
    [
        ((BEGUN, STARTED, {"event": "ended", "status": 0}), "ERROR", "OK"),
        ((BEGUN, STARTED, FAILED, STARTED, {"event": "ended", "status": 0}), "OK", "ERROR"),
        ((BEGUN, STARTED, FAILED, {"event": "ended", "status": 1}), "ERROR", "ERROR"),
        ((BEGUN, STARTED, FAILED, STARTED), "UNKNOWN", "ERROR"),
    ],
)
def test_facts_from_the_history(tmp_path, events, rehearsed, healthy):
    ledger(tmp_path, *events)
    assert facts.restart_rehearsed(str(tmp_path))[0] is STATE[rehearsed]
    assert facts.no_failures(str(tmp_path))[0] is STATE[healthy]


@pytest.mark.slow
def test_an_unreadable_history_is_unknown(tmp_path):
    state, text = facts.no_failures(str(tmp_path / "nowhere"))
    assert state is CheckState.UNKNOWN
    assert "nowhere" in text


def test_the_page_escapes_what_others_wrote():
    page = checklist_page(
        "start", [outcome(CheckState.ERROR, text="<script>alert(1)</script>", action="Act.")]
    )
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "Act." in page
    assert "http" not in page
