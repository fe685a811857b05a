"""A mesh of 1,024 hosts with three faults.

Prints scheduling rounds, and the time to judge the observations.

The baseline is the naive approach: every ordered pair in its own step, and one report per failing
pair; the ratios are of steps, and of findings to read.
"""

from __future__ import annotations

import time
from statistics import median

from holdfast.core.round_robin import round_count, round_pairs
from holdfast.preflight.check_hosts import judge_hosts
from holdfast.preflight.rendezvous import (
    ClockOffset,
    ConnectAttempt,
    ConnectOutcome,
    EndpointAccess,
    InterfaceAddress,
    LinkMeasurement,
    Observations,
    Participant,
    Peer,
    ProbeResult,
    PublishedAddress,
)

SIZES = (64, 256, 1024)
TARGET_S = 2.0
BAD, SLOW, LINK = 17, 40, (3, 5)


def _participant(number: int, size: int) -> Participant:
    address = f"10.0.{number >> 8}.{number & 255}"
    peer = Peer(
        key=f"{number}",
        node=number,
        nodes=size,
        host=f"h{number}",
        name=f"h{number}",
        machine=f"m{number}",
        version="1",
        endpoint="h0:29500",
        interfaces=(InterfaceAddress("eth0", address, 1500),),
        published=(PublishedAddress(library="gloo", address=address, interface="eth0"),),
    )
    main = (
        ConnectAttempt(address="10.0.0.0", port=29500, outcome=ConnectOutcome.OPEN)
        if number
        else None
    )
    access = EndpointAccess(
        host="h0",
        port=29500,
        addresses=("10.0.0.0",),
        owned=not number,
        main=main,
        bound="" if number else "listening",
    )
    return Participant(
        number=number,
        peer=peer,
        access=access,
        seen_as=address,
        probe_port=40_000,
        leads=not number,
    )


def _observations(size: int) -> Observations:
    failing = [(source, BAD) for source in range(size) if source != BAD] + [LINK]
    failed_probes = tuple(
        ProbeResult(
            source=source,
            target=target,
            purpose="data",
            attempt=ConnectAttempt(
                address="10.0.0.1", port=40_000, outcome=ConnectOutcome.TIMED_OUT, elapsed_s=3.2
            ),
        )
        for source, target in failing
    )
    broken = {tuple(sorted(pair)) for pair in failing}
    links = tuple(
        LinkMeasurement(
            source=a, target=b, round_trip_s=1e-4, forth=1e8 if SLOW in (a, b) else 1e9, back=1e9
        )
        for number in range(round_count(size))
        for a, b in round_pairs(size, number)
        if (a, b) not in broken
    )
    participants = tuple(_participant(number, size) for number in range(size))
    clocks = tuple(ClockOffset(number, 0.0, 1e-4) for number in range(size))
    return Observations(
        nodes=size,
        waited_s=1.0,
        participants=participants,
        failed_probes=failed_probes,
        probe_count=size * (size - 1),
        links=links,
        clocks=clocks,
        rounds=round_count(size),
    )


def main() -> None:
    """Print one line per size."""
    print(
        "   hosts  rounds  one pair at a time    scheduled       judged   findings  failing pairs"
    )
    for size in SIZES:
        scheduled, judged = [], []
        for _ in range(3):
            begun = time.perf_counter()
            pair_count = sum(
                1 for number in range(round_count(size)) for _ in round_pairs(size, number)
            )
            scheduled.append(time.perf_counter() - begun)
            assert pair_count == size * (size - 1) // 2
            observed = _observations(size)
            begun = time.perf_counter()
            hosts = judge_hosts(observed)
            judged.append(time.perf_counter() - begun)
        causes = sorted(
            (finding.cause, finding.subject.host or finding.subject.link) for finding in hosts.reach
        )
        assert causes == [
            ("firewall-blocked-ports", f"h{BAD}"),
            ("firewall-blocked-ports", "h3 -> h5"),
            ("slow-link", f"h{SLOW}"),
        ], causes
        steps = size * (size - 1)
        print(
            f"{size:8,} {round_count(size):7,} {steps:10,} ({steps / round_count(size):5,.0f} x) "
            f"{median(scheduled):9.3f} s "
            f"{median(judged):10.3f} s {len(hosts.reach):10} {len(observed.failed_probes):14,}"
        )
    print(
        f"target: {SIZES[-1]:,} hosts judged within {TARGET_S:g} s: "
        f"{'yes' if median(judged) <= TARGET_S else 'NO'}"
    )
