"""``holdfast check --html``."""

import re

from tests.unit.cli.in_process import run_holdfast


def test_the_page_has_every_check_and_loads_nothing(tmp_path):
    page = tmp_path / "check.html"
    names = ("limits", "tasks")
    only = [argument for name in names for argument in ("--only", name)]
    done = run_holdfast("check", *only, "--html", str(page), folder=tmp_path)
    assert done.returncode in (0, 1), done.stderr
    text = page.read_text()
    assert all(f">{name}<" in text for name in names)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)


def test_the_page_is_refused_where_nothing_is_checked(tmp_path):
    done = run_holdfast("check", "--connect", "--html", "a.html", folder=tmp_path)
    assert done.returncode == 2
    assert "--html cannot be combined with --connect" in done.stderr
