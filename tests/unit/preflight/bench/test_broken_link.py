"""The link that broke in mid-benchmark, from errors of gloo and NCCL."""

from __future__ import annotations

import pytest

from holdfast.core.measurements import BenchHost
from holdfast.preflight.bench.broken_link import describe_broken_link

HOST = BenchHost(name="node1", interface="ens1")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            "[/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:41235",
            "the link from node1 (ens1) to 10.0.0.2",
        ),
        (
            "[pair.cc:1] Connection reset by peer [fd00::2]:99",
            "the link from node1 (ens1) to fd00::2",
        ),
        (
            "NCCL error: socketProgress: Connection closed by remote peer 10.1.0.7<40123>",
            "the link from node1 (ens1) to 10.1.0.7",
        ),
        ("Connection closed by peer [127.0.0.1]:41235", ""),
        ("Timed out waiting 300000ms for recv operation to complete", ""),
        ("peer [999.1.1.1]:1", ""),
    ],
)
def test_the_error_of_the_backend_names_the_link(error, expected):
    assert describe_broken_link(error, HOST) == expected
