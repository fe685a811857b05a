"""Whether the hosts' clocks agree."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from holdfast.causes.network.clocks_differ import CLOCKS_DIFFER
from holdfast.core.findings import Fact, Finding, Level, Subject, make_finding
from holdfast.preflight.rendezvous import Observations

#: Beyond 1 s, times in logs of two hosts mislead; beyond 50 ms, the order of events does.
_WARNING_S, _NOTE_S = 1.0, 0.05


def judge(observed: Observations) -> Iterator[Finding]:
    """Yield the hosts whose clock differs from the median; of two hosts, the second is named."""
    if len(observed.clocks) < 2:
        return
    reference = observed.clocks[0]
    several = len(observed.clocks) > 2
    usual = median(clock.ahead_s for clock in observed.clocks) if several else reference.ahead_s
    for clock in observed.clocks:
        offset = clock.ahead_s - usual
        if abs(offset) - clock.within_s <= _NOTE_S:
            continue
        peer = observed.participants[clock.number].peer
        other = observed.participants[reference.number].peer.host
        than = "most hosts'" if several else f"that of {other}"
        yield make_finding(
            CLOCKS_DIFFER,
            f"the clock of {peer.label} is {abs(offset):.3f} s "
            f"{'ahead of' if offset > 0 else 'behind'} {than}",
            level=Level.WARNING if abs(offset) > _WARNING_S else Level.NOTE,
            subject=Subject(host=peer.host),
            confidence=0.97,
            evidence=tuple(
                Fact(
                    text=f"{each.ahead_s:+.4f} s relative to the leader's clock, "
                    f"± {each.within_s * 1e3:.2f} ms",
                    origin="ten exchanges of the time",
                    host=observed.participants[each.number].peer.host,
                )
                for each in observed.clocks[:16]
            ),
        )
