"""Do the hosts' clocks agree?"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from holdfast.facts.reach import Gathered
from holdfast.findings import Fact, Finding, Level, Subject, finding
from holdfast.rules.causes import by_name

#: Beyond a second, times in logs and files of two hosts mislead; beyond 50 ms, the order of events does.
_FAR_S, _NOTED_S = 1.0, 0.05


def judge(gathered: Gathered) -> Iterator[Finding]:
    """Who is off from most. Of two hosts that differ nobody knows which one is right, and the second is named."""
    if len(gathered.clocks) < 2:
        return
    ahead = sorted(clock.ahead_s for clock in gathered.clocks)
    usual = median(ahead) if len(ahead) > 2 else next(c.ahead_s for c in gathered.clocks)
    for clock in gathered.clocks:
        off = clock.ahead_s - usual
        if abs(off) - clock.within_s <= _NOTED_S:
            continue
        copy = gathered.present[clock.number].copy
        than = "most hosts'" if len(ahead) > 2 else f"that of {gathered.present[gathered.clocks[0].number].copy.host}"
        yield finding(
            by_name("clocks-differ"),
            f"the clock of {copy.label} is {abs(off):.3f} s {'ahead of' if off > 0 else 'behind'} {than}",
            level=Level.WARNING if abs(off) > _FAR_S else Level.NOTE, subject=Subject(host=copy.host), confidence=0.97,
            evidence=tuple(
                Fact(text=f"{each.ahead_s:+.4f} s against the leader's, give or take {each.within_s * 1e3:.2f} ms",
                     origin="ten exchanges of the time", host=gathered.present[each.number].copy.host)
                for each in gathered.clocks[:16]
            ),
        )  # fmt: skip
