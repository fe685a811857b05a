"""Every code block of the documentation is run, compared or read; see tests/doc_pages.py."""

from __future__ import annotations

import os
from fnmatch import fnmatch
from subprocess import CalledProcessError
from tomllib import TOMLDecodeError

import pytest

from holdfast.core.settings import cache_folder
from tests import doc_pages
from tests.fork_server import fork_server

RUN = [
    page
    for page in doc_pages.pages()
    if not doc_pages.tested_elsewhere(page) and doc_pages.blocks_of(page)
]
#: Of the environment, so that no variable of this machine changes what commands print.
KEPT = ("PATH", "PYTHONPYCACHEPREFIX")


def run(tmp_path, function, *arguments):
    """Call a function in a process that has torch imported; fail with its traceback."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ}
    environment |= {"HOME": str(tmp_path), "COLUMNS": "100"}
    folder, errors = tmp_path / "folder", tmp_path / "errors"
    folder.mkdir()
    with errors.open("w") as file:
        process = fork_server("tests.doc_pages").start(
            function, *arguments, environment=environment, folder=folder, stderr=file
        )
        try:
            status = process.wait(60)
        finally:
            process.kill()
    assert status == 0, errors.read_text()


@pytest.mark.parametrize("page", RUN)
def test_the_blocks_of_a_page_do_what_it_shows(page, tmp_path):
    run(tmp_path, doc_pages.run_page, page, str(cache_folder()))


def test_the_remedies_of_the_causes_are_commands_that_exist(tmp_path):
    run(tmp_path, doc_pages.parse_remedies)


def test_every_block_has_a_kind_and_most_are_run():
    kinds = doc_pages.census()
    total = sum(kinds.values())
    not_run = sum(count for (_, reason), count in kinds.items() if reason)
    assert not_run < total / 4


def test_the_tests_of_the_other_pages_exist():
    for page, test in doc_pages.TESTED_BY.items():
        assert (doc_pages.ROOT / test).is_file()
        assert any(fnmatch(each, f"{page}*") for each in doc_pages.pages())


@pytest.mark.parametrize(
    ("language", "text", "error"),
    [
        ("python", "undefined_name", NameError),
        ("sh", "holdfast lint --no-such-option train.py", AssertionError),
        ("sh", "if true", CalledProcessError),
        ("text", "$ holdfast explain SYNC004\nanother text", AssertionError),
        ("text", "output of no command", AssertionError),
        ("toml", "key =", TOMLDecodeError),
    ],
)
def test_the_checks_can_fail(language, text, error, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = doc_pages.Block("docs/lint.md", 1, language, "", text, "")
    with pytest.raises(error):
        doc_pages.PageRun("docs/lint.md").run(block)
