"""Sending the reports of all nodes to the first one, over real connections on this machine."""

from __future__ import annotations

import asyncio
import secrets
import socket

import pytest

from holdfast.diagnose.attach import gathering
from holdfast.diagnose.attach.gathering import (
    CopyRendezvous,
    NodeReport,
    collect_reports,
    send_report,
)


@pytest.fixture
def rendezvous():
    return CopyRendezvous("127.0.0.1", secrets.token_bytes(32))


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch):
    monkeypatch.setattr(gathering, "GATHER_TIMEOUT_S", 2.0)
    monkeypatch.setattr(gathering, "_STEP_TIMEOUT_S", 0.5)


async def own_report():
    return NodeReport(0, why="nothing runs here")


async def gather_all(rendezvous, nodes, *others):
    """Return the reports of the first copy, its failure, and the result of each sender."""
    (reports, failure), *results = await asyncio.gather(
        collect_reports(rendezvous, nodes, own_report), *others
    )
    return {node: report.why for node, report in reports.items()}, failure, results


def run(*what):
    return asyncio.run(gather_all(*what))


def test_all_reports_arrive_in_any_order(rendezvous):
    async def late():
        await asyncio.sleep(0.5)
        return await send_report(rendezvous, NodeReport(2, why="b" * (1 << 20)))

    reports, failure, results = run(
        rendezvous, 3, late(), send_report(rendezvous, NodeReport(1, why="a"))
    )
    assert reports == {0: "nothing runs here", 1: "a", 2: "b" * (1 << 20)}
    assert (failure, results) == ("", [None, None])


def test_missing_report_is_skipped_after_the_timeout(rendezvous):
    reports, failure, _ = run(rendezvous, 3, send_report(rendezvous, NodeReport(1, why="a")))
    assert (set(reports), failure) == ({0, 1}, "")


def test_peer_without_the_secret_is_refused(rendezvous):
    class Other(CopyRendezvous):
        ports = rendezvous.ports

    other = Other("127.0.0.1", secrets.token_bytes(32))
    reports, _, (result,) = run(
        rendezvous, 2, send_report(other, NodeReport(1, why="not one of us"))
    )
    assert set(reports) == {0}
    assert "no connection to the copy on 127.0.0.1" in result.why


def test_unrelated_clients_are_ignored(rendezvous):
    async def unrelated_client(request):
        await asyncio.sleep(0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", rendezvous.ports[0])
        writer.write(request)
        await reader.read()
        writer.close()

    async def own_node():
        await asyncio.sleep(0.4)
        return await send_report(rendezvous, NodeReport(1, why="a"))

    reports, _, results = run(
        rendezvous,
        2,
        unrelated_client(b""),
        unrelated_client(b"GET / HTTP/1.1\r\n\r\n" * 99),
        own_node(),
    )
    assert (reports[1], results[-1]) == ("a", None)


def test_port_in_use_is_skipped_by_both_sides(rendezvous):
    with socket.socket() as listener:
        listener.bind(("", rendezvous.ports[0]))
        listener.listen()
        reports, _, results = run(rendezvous, 2, send_report(rendezvous, NodeReport(1, why="a")))
    assert (reports[1], results) == ("a", [None])


def test_failure_names_the_ports_if_none_is_free(rendezvous):
    class Taken(CopyRendezvous):
        ports = rendezvous.ports[:1]

    with socket.socket() as listener:
        listener.bind(("", rendezvous.ports[0]))
        listener.listen()
        reports, failure, _ = run(Taken("127.0.0.1", rendezvous.secret), 2)
    assert set(reports) == {0}
    assert failure == f"none of the ports {rendezvous.ports[0]} is free"


def test_unknown_host_name_is_reported(rendezvous):
    result = asyncio.run(
        send_report(CopyRendezvous("no-such-host.invalid", rendezvous.secret), NodeReport(1))
    )
    assert "no connection to the copy on no-such-host.invalid within 2 s" in result.why
