"""``holdfast bench`` over two hosts: the interface between them, its rate, and the pair of ranks."""

from __future__ import annotations

import json

import pytest

from tests.network_namespaces import DEVICE, hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]


def test_the_link_between_two_hosts_is_measured_and_compared_with_its_rate(tmp_path):
    words = ["bench", "-b", "64K", "-e", "4M", "-f", "8", "-n", "5", "--pairs", "--save"]
    with hosts(2) as both:
        both[1].limit("1gbit")
        torchrun = [
            "-m",
            "torch.distributed.run",
            "--nnodes=2",
            "--nproc-per-node=1",
            "--master-port=29500",
            f"--master-addr={both[0].address}",
        ]
        started = [
            host.fork(
                *torchrun,
                f"--node-rank={number}",
                "-m",
                "holdfast",
                *words,
                tmp_path / f"{number}.json",
                GLOO_SOCKET_IFNAME=DEVICE,
                HOLDFAST_CACHE=str(tmp_path / f"cache{number}"),
            )
            for number, host in enumerate(both)
        ]
        assert [each.wait(90) for each in started] == [0, 0], [each.errors for each in started]
    found = json.loads((tmp_path / "0.json").read_bytes())
    assert not (tmp_path / "1.json").exists()  # only one rank writes a file
    measured = found["measurement"]
    assert [(host["name"], host["interface"], host["ranks"]) for host in measured["hosts"]] == [
        ("node0", DEVICE, [0]),
        ("node1", DEVICE, [1]),
    ]
    assert (
        measured["hosts"][0]["line_rate"] == 10_000e6 / 8
    )  # rate that the kernel reports for a virtual interface
    (pair,) = measured["pairs"]
    assert 0.02e9 < pair["bandwidth"] < 0.3e9
    assert 0.05e9 < measured["fits"][0]["bandwidth"] < 0.3e9
    assert [(claim["cause"], claim["level"]) for claim in found["findings"]] == [
        ("collectives-below-line-rate", "note")
    ]
    assert all((tmp_path / f"cache{number}" / "links.json").exists() for number in range(2))
