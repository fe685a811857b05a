"""Translations: complete, current, with the same code as the English text, and shown where chosen."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest
from rich.cells import cell_len

from holdfast.causes import FAMILIES, all_causes
from holdfast.causes.sync.rank_guarded_collective import RANK_GUARDED_COLLECTIVE
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.causes.translations import LANGUAGES, chosen_language, translations, translator
from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Verdict, make_finding
from holdfast.report import html
from holdfast.report.html import incident_page
from holdfast.report.terminal import render_verdict
from tests.unit.cli.in_process import run_holdfast
from tests.unit.report.sample import incident

OTHERS = sorted(LANGUAGES.keys() - {"en"})
#: Code in backticks; outside of it, what a translation must keep: variables, options and calls.
CODE = re.compile(r"`[^`]*`")
NAMES = re.compile(r"--[a-z][a-z-]+|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+(?:=\w+)?|\b[a-z_]+_[a-z_]+\b")
#: A label of a page.
LABEL = re.compile(r'"([^"]+)" \| translated')
#: A cause, and the end and the beginning of two translated texts of it.
GUARDED = RANK_GUARDED_COLLECTIVE
SUMMARY = "只有部分 rank 到达某个集合通信。"
REMEDY = "把集合通信移出该分支"


def known_texts() -> dict[str, set[str]]:
    """Return the English texts that can be translated, by cause."""
    return {
        cause.name: {
            cause.summary,
            cause.what_happens,
            *(remedy.text for remedy in cause.remedies),
        }
        for cause in all_causes()
    }


def kept_parts(text: str) -> Counter[str]:
    """Return the parts of a text that its translation keeps."""
    return Counter(CODE.findall(text)) + Counter(NAMES.findall(CODE.sub("", text)))


@pytest.fixture
def chinese(monkeypatch):
    monkeypatch.setenv("HOLDFAST_LANG", "zh")


@pytest.mark.parametrize("language", OTHERS)
def test_every_cause_is_translated(language):
    entries = translations(language)
    missing = {
        cause.name: texts
        for cause in all_causes()
        if (
            texts := {
                text: "TRANSLATE"
                for text in (cause.summary, *(remedy.text for remedy in cause.remedies))
                if text not in entries.get(cause.name, {}) and text not in entries["shared"]
            }
        )
    }
    assert missing == {}, json.dumps(missing, ensure_ascii=False, indent=1)


@pytest.mark.parametrize("language", OTHERS)
def test_no_translation_is_of_an_old_text(language):
    texts = known_texts()
    texts["shared"] = set().union(*texts.values())
    texts["labels"] = set(translations(language)["labels"])
    stale = [
        f"{name}: {english}"
        for name, entry in translations(language).items()
        for english in entry.keys() - texts.get(name, set())
    ]
    assert stale == []


@pytest.mark.parametrize("language", OTHERS)
def test_one_text_has_one_translation(language):
    entries = translations(language)
    texts = Counter(english for entry in entries.values() for english in entry)
    assert [english for english, count in texts.items() if count > 1] == []
    assert set(FAMILIES.values()) <= entries["labels"].keys()


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_keeps_code_options_and_variables(language):
    changed = [
        f"{english}\n{text}\n{kept_parts(english)} != {kept_parts(text)}"
        for entry in translations(language).values()
        for english, text in entry.items()
        if kept_parts(english) != kept_parts(text)
    ]
    assert changed == []


def test_a_lost_option_would_be_noticed():
    assert kept_parts("Set `a` with --max-restarts and NCCL_DEBUG=INFO.") == Counter(
        ["`a`", "--max-restarts", "NCCL_DEBUG=INFO"]
    )


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"),
        ({"LANG": "C.UTF-8"}, "en"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "zh_CN.UTF-8", "HOLDFAST_LANG": "en"}, "en"),
        ({"HOLDFAST_LANG": "zh"}, "zh"),
    ],
)
def test_the_variable_precedes_the_locale(environ, language):
    assert chosen_language(environ) == language


def test_an_unknown_language_is_rejected():
    with pytest.raises(InvalidValue, match="not one of en, zh"):
        chosen_language({"HOLDFAST_LANG": "fr"})


@pytest.mark.usefixtures("chinese")
@pytest.mark.parametrize(
    ("encoding", "text"),
    [("utf-8", SUMMARY), (None, SUMMARY), ("gbk", SUMMARY), ("ascii", GUARDED.summary)],
)
def test_an_encoding_without_the_characters_keeps_english(encoding, text):
    assert translator(encoding)(GUARDED.summary).endswith(text)


def test_explain_prints_the_chosen_language():
    for arguments in (
        ("explain", "SYNC004", "--lang", "zh"),
        ("--lang", "zh", "explain", "SYNC004"),
    ):
        printed = run_holdfast(*arguments).stdout
        assert SUMMARY in printed
        assert REMEDY in printed
    assert REMEDY in run_holdfast("explain", "SYNC004", HOLDFAST_LANG="zh").stdout
    assert SUMMARY in run_holdfast("explain", "--list", LANG="zh_CN.UTF-8").stdout
    assert GUARDED.summary in " ".join(run_holdfast("explain", "SYNC004").stdout.split())


def test_json_stays_english():
    arguments = ("explain", "SYNC004", "--json")
    assert run_holdfast(*arguments, "--lang", "zh").stdout == run_holdfast(*arguments).stdout


def test_diagnose_prints_remedies_in_the_chosen_language(tmp_path):
    (tmp_path / "job.log").write_text(RANK_MISSING_COLLECTIVE.signals[0].examples[0] + "\n")
    printed = run_holdfast("diagnose", tmp_path / "job.log", HOLDFAST_LANG="zh").stdout
    assert "有一个 rank 始终没有进入其他 rank 正在等待的集合通信。" in printed
    assert "会重启作业" in printed
    assert "ranks did not reach a monitored barrier" in printed


@pytest.mark.usefixtures("chinese")
def test_an_incident_is_shown_in_the_chosen_language_within_the_width():
    root = make_finding(GUARDED, "all_reduce at train.py:12 is entered by rank 0 only")
    out = io.StringIO()
    render_verdict(Verdict(question="why", root=root), file=out, width=80)
    printed = out.getvalue()
    assert "all_reduce at train.py:12 is entered by rank 0 only" in printed
    assert SUMMARY in printed
    assert REMEDY in printed
    assert max(map(cell_len, printed.splitlines())) <= 80


@pytest.mark.usefixtures("chinese")
def test_an_incident_page_has_remedies_in_the_chosen_language():
    sample = incident()
    root = make_finding(RANK_MISSING_COLLECTIVE, "rank 2 never entered all_reduce #70")
    page = incident_page(Verdict(question="why", root=root), sample.timeline, title="incident 0")
    assert "给这一行的阻塞调用加上超时" in page
    assert "有一个 rank 始终没有进入其他 rank 正在等待的集合通信。" in page
    assert "<h2>证据</h2>" in page


@pytest.mark.parametrize("language", OTHERS)
def test_every_label_of_a_page_is_translated(language):
    templates = Path(html.__file__).with_name("templates").glob("*.html")
    labels = {
        label for file in templates for label in LABEL.findall(file.read_text(encoding="utf-8"))
    }
    assert len(labels) > 30
    assert labels - translations(language)["labels"].keys() == set()
