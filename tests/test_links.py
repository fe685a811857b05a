"""The file of fits: what is kept, what replaces what, and that nothing strange in it is believed."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast import links
from holdfast.measured.fit import Fit

FIT = Fit(
    collective="all_reduce", way="torch", backend="gloo", dtype="float32", ranks=4, hosts=1, latency_s=1e-4,
    latency_interval_s=(1e-4, 2e-4), bandwidth=1e9, bandwidth_interval=(0.5e9, None), worst_error=0.1,
)  # fmt: skip


def test_a_newer_fit_of_the_same_kind_replaces_the_older(tmp_path):
    file = tmp_path / "deep" / "links.json"
    other = replace(FIT, ranks=8)
    assert links.keep([FIT, other], file) == file
    links.keep([replace(FIT, bandwidth=2e9)], file)
    assert links.kept(file) == (other, replace(FIT, bandwidth=2e9))


def test_the_oldest_are_forgotten(tmp_path):
    file = tmp_path / "links.json"
    links.keep([replace(FIT, ranks=ranks) for ranks in range(links.MOST_KEPT + 5)], file)
    assert [fit.ranks for fit in links.kept(file)] == list(range(5, links.MOST_KEPT + 5))


@pytest.mark.parametrize("data", [b"", b"{}{", b'{"schema": "another", "fits": []}', b"[" * 5000, b" " * (2 << 20)])
def test_a_strange_file_is_nothing_and_is_replaced(data, tmp_path):
    file = tmp_path / "links.json"
    file.write_bytes(data)
    assert links.kept(file) == ()
    links.keep([FIT], file)
    assert links.kept(file) == (FIT,)


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_fits(tmp_path):
    (tmp_path / "file").write_text("")
    assert links.keep([FIT], tmp_path / "file" / "links.json") is None


def test_the_fit_of_as_many_ranks_is_found_and_the_slowest_where_hosts_are_not_known():
    apart = replace(FIT, hosts=4, bandwidth=1e8)
    fits = (FIT, apart, replace(FIT, ranks=2), replace(FIT, way="pieces", bandwidth=1))
    assert links.known(fits, backend="gloo", ranks=4, hosts=1) == FIT
    assert links.known(fits, backend="gloo", ranks=4) == apart
    assert links.known(fits, backend="nccl", ranks=4) is None
    assert links.known(fits, backend="gloo", ranks=5) is None
