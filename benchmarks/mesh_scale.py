"""A mesh of 1,024 hosts: in how many rounds it is scheduled, and how long judging it takes, with three faults in it.

The peer is what would come to mind first: every ordered pair after the other as its own step, and every failing pair
reported by itself; the ratio is of steps, and of findings that a person has to read.
"""

from __future__ import annotations

import time
from statistics import median

from holdfast.actions.check_hosts import judge
from holdfast.facts.reach import (
    Approach,
    Attempt,
    Clock,
    Copy,
    Crossing,
    Fate,
    Gathered,
    Interface,
    Link,
    Present,
    Published,
)  # fmt: skip
from holdfast.tournament import pairs, rounds

SIZES = (64, 256, 1024)
TARGET_S = 2.0
BAD, SLOW, LINK = 17, 40, (3, 5)


def _present(number: int, size: int) -> Present:
    address = f"10.0.{number >> 8}.{number & 255}"
    copy = Copy(
        key=f"{number}", node=number, nodes=size, host=f"h{number}", name=f"h{number}", machine=f"m{number}",
        version="1", endpoint="h0:29500", interfaces=(Interface("eth0", address, 1500),),
        published=(Published(who="gloo", address=address, interface="eth0"),),
    )  # fmt: skip
    main = Attempt(address="10.0.0.0", port=29500, fate=Fate.OPEN) if number else None
    approach = Approach(
        host="h0", port=29500, addresses=("10.0.0.0",), owned=not number, main=main, bound="" if number else "listening"
    )
    return Present(number=number, copy=copy, approach=approach, seen_as=address, door=40_000, leads=not number)


def _gathered(size: int) -> Gathered:
    failing = [(source, BAD) for source in range(size) if source != BAD] + [LINK]
    crossings = tuple(
        Crossing(source=source, target=target, purpose="data",
                 attempt=Attempt(address="10.0.0.1", port=40_000, fate=Fate.SILENT, elapsed_s=3.2))
        for source, target in failing
    )  # fmt: skip
    broken = {tuple(sorted(pair)) for pair in failing}
    links = tuple(
        Link(source=a, target=b, round_trip_s=1e-4, forth=1e8 if SLOW in (a, b) else 1e9, back=1e9)
        for number in range(rounds(size)) for a, b in pairs(size, number) if (a, b) not in broken
    )  # fmt: skip
    present = tuple(_present(number, size) for number in range(size))
    clocks = tuple(Clock(number, 0.0, 1e-4) for number in range(size))
    return Gathered(
        nodes=size, waited_s=1.0, present=present, crossings=crossings, tried=size * (size - 1), links=links,
        clocks=clocks, rounds=rounds(size),
    )  # fmt: skip


def main() -> None:
    """Print a line a size."""
    print("   hosts  rounds  one pair at a time    scheduled       judged   findings  failing pairs")
    for size in SIZES:
        scheduled, judged = [], []
        for _ in range(3):
            begun = time.perf_counter()
            drawn = sum(1 for number in range(rounds(size)) for _ in pairs(size, number))
            scheduled.append(time.perf_counter() - begun)
            assert drawn == size * (size - 1) // 2
            gathered = _gathered(size)
            begun = time.perf_counter()
            hosts = judge(gathered)
            judged.append(time.perf_counter() - begun)
        causes = sorted((claim.cause, claim.subject.host or claim.subject.link) for claim in hosts.reach)
        assert causes == [
            ("firewall-blocked-ports", f"h{BAD}"), ("firewall-blocked-ports", "h3 -> h5"), ("slow-link", f"h{SLOW}"),
        ], causes  # fmt: skip
        steps = size * (size - 1)
        print(f"{size:8,} {rounds(size):7,} {steps:10,} ({steps / rounds(size):5,.0f} x) {median(scheduled):9.3f} s "
              f"{median(judged):10.3f} s {len(hosts.reach):10} {len(gathered.crossings):14,}")  # fmt: skip
    print(f"target: {SIZES[-1]:,} hosts judged within {TARGET_S:g} s: {'yes' if median(judged) <= TARGET_S else 'NO'}")
