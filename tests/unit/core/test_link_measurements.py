"""The file of link fits: replacement, bounds, and rejection of invalid files."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import link_measurements
from holdfast.core.measurements.fit import AlphaBetaFit

FIT = AlphaBetaFit(
    collective="all_reduce",
    way="torch",
    backend="gloo",
    dtype="float32",
    ranks=4,
    hosts=1,
    latency_s=1e-4,
    latency_interval_s=(1e-4, 2e-4),
    bandwidth=1e9,
    bandwidth_interval=(0.5e9, None),
    worst_error=0.1,
)


def test_a_newer_fit_of_the_same_kind_replaces_the_older(tmp_path):
    file = tmp_path / "deep" / "links.json"
    other = replace(FIT, ranks=8)
    assert link_measurements.save_fits([FIT, other], file) == file
    link_measurements.save_fits([replace(FIT, bandwidth=2e9)], file)
    assert link_measurements.load_fits(file) == (other, replace(FIT, bandwidth=2e9))


def test_the_oldest_fits_are_dropped(tmp_path):
    file = tmp_path / "links.json"
    link_measurements.save_fits(
        [replace(FIT, ranks=ranks) for ranks in range(link_measurements.MAX_FITS + 5)], file
    )
    assert [fit.ranks for fit in link_measurements.load_fits(file)] == list(
        range(5, link_measurements.MAX_FITS + 5)
    )


@pytest.mark.parametrize(
    "data", [b"", b"{}{", b'{"schema": "another", "fits": []}', b"[" * 5000, b" " * (2 << 20)]
)
def test_an_invalid_file_is_ignored_and_replaced(data, tmp_path):
    file = tmp_path / "links.json"
    file.write_bytes(data)
    assert link_measurements.load_fits(file) == ()
    link_measurements.save_fits([FIT], file)
    assert link_measurements.load_fits(file) == (FIT,)


def test_an_unwritable_folder_is_not_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert link_measurements.save_fits([FIT], tmp_path / "file" / "links.json") is None


def test_find_fit_matches_ranks_and_prefers_the_slowest():
    other_hosts = replace(FIT, hosts=4, bandwidth=1e8)
    fits = (FIT, other_hosts, replace(FIT, ranks=2), replace(FIT, way="pieces", bandwidth=1))
    assert link_measurements.find_fit(fits, backend="gloo", ranks=4, hosts=1) == FIT
    assert link_measurements.find_fit(fits, backend="gloo", ranks=4) == other_hosts
    assert link_measurements.find_fit(fits, backend="nccl", ranks=4) is None
    assert link_measurements.find_fit(fits, backend="gloo", ranks=5) is None
