"""Lists of passing and failing hosts: with the scheduler's names, if it names the nodes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from holdfast.preflight.check_hosts import write_host_lists


@pytest.mark.parametrize(
    ("names", "passing", "failing"),
    [
        (("node07", "node09"), "node09\n", "node07\n"),
        (("node07",), "b\n", "node07\n"),
        ((), "b\n", "a\n"),
    ],
)
def test_names(tmp_path, names, passing, failing):
    hosts = SimpleNamespace(passing=("b (node 1)",), failing=("a (node 0)",))
    write_host_lists(hosts, f"{tmp_path}/", names)
    assert (tmp_path / "passing.txt").read_text() == passing
    assert (tmp_path / "failing.txt").read_text() == failing
