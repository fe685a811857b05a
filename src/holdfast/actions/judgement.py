"""From silence to a verdict: suspect, look twice a second apart, judge, and be patient with what is only slow."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.facts import source
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Life, Place, RankState
from holdfast.facts.source import Surroundings
from holdfast.findings import Finding, Verdict
from holdfast.rules import hang, stall
from holdfast.rules.places import STEPS_UP
from holdfast.rules.stall import Limits

BETWEEN_SAMPLES_S = 1.0
#: How long after the first close look the other nodes' looks are waited for.
OTHERS_LIMIT_S = 4.0
AFTER_OTHERS_S = 0.4
#: A rank that may simply need longer is looked at again after this many seconds.
LOOK_AGAIN_S = 2.0
#: After this much silence that is being waited out, one line says so.
SAY_AFTER_S = 30.0
#: Calls a rank whose source is looked at, and places in all.
SITES = 64
MOST_PLACES = 256

#: Causes that a longer wait may still cure; all others are certain once seen.
_MAY_CURE_ITSELF = frozenset(
    {
        "rank-missing-collective",
        "file-io-blocked",
        "rank-uninterruptible-io",
        "dataloader-worker-died",
        "network-fabric-fault",
        "stalled-outside-collectives",
        "store-wait",  # one rank imports for longer than the others
    }
)


@dataclass(frozen=True)
class Outcome:
    """What came of one look: nothing, a line for people, or a verdict with the table it was made from."""

    table: Summary
    verdict: Verdict | None = None
    note: str | None = None
    silent_s: float = 0.0


class Judgement:
    """Follows one generation of the job from silence to silence."""

    def __init__(self, limits: Limits) -> None:
        #: May change while the job runs.
        self.limits = limits
        self._silent_since = 0.0
        self._suspected_at = 0.0
        self._look_again_at = 0.0
        self._done = False
        self._said = False

    @property
    def suspects(self) -> bool:
        """True between the first close look and the judgement: the next tick should come soon."""
        return self._suspected_at > 0

    def consider(
        self, table: Summary, look_closer: Callable[[], Summary], everybody: Callable[[Summary], Summary]
    ) -> Outcome:
        """Look at ``table``; when the job is silent for too long, look closer, again a second later, and judge.

        Called at every tick; never waits. Other nodes are given a moment to send their own close looks.
        """
        now = time.time()
        if table.silent_since > self._silent_since:  # somebody advanced
            self._silent_since, self._suspected_at, self._look_again_at = table.silent_since, 0.0, 0.0
            self._done = self._said = False
        silent_s = now - table.silent_since
        if self._done or silent_s < stall.threshold_s(table.ranks, self.limits) or now < self._look_again_at:
            return Outcome(table)
        if not self.suspects:
            self._suspected_at = now
            look_closer()
            return Outcome(table)
        if now < self._suspected_at + BETWEEN_SAMPLES_S:
            return Outcome(table)
        closer = everybody(look_closer())
        late = closer.silent_since == table.silent_since and now < self._suspected_at + OTHERS_LIMIT_S
        if late and any(_unlooked(state) for state in closer.ranks):
            self._look_again_at = now + AFTER_OTHERS_S
            return Outcome(closer)
        self._suspected_at, self._look_again_at = 0.0, now + LOOK_AGAIN_S
        if closer.silent_since > table.silent_since:
            return Outcome(closer)
        return self.decide(closer, time.time() - table.silent_since)

    def decide(self, table: Summary, silent_s: float) -> Outcome:
        """Judge a close look at a job that has been silent for so long, or be patient and say why."""
        verdict = self.judge(table)
        if verdict.root is None:
            return Outcome(table)
        waiting = self._patience(verdict.root, table)
        if waiting is not None and silent_s < waiting.until_s:
            note = None
            if silent_s > SAY_AFTER_S and not self._said:
                self._said = True
                note = f"silent for {silent_s:.0f} s: {verdict.root.message}; not called a hang, for {waiting.why}"
            return Outcome(table, note=note)
        self._done = True
        return Outcome(table, verdict, silent_s=silent_s)

    def _patience(self, root: Finding, table: Summary) -> stall.Patience | None:
        if root.cause not in _MAY_CURE_ITSELF:
            return None
        state = next((state for state in table.ranks if state.rank == root.subject.rank), None)
        if state is None:
            return stall.patience_with_all(table.ranks, self.limits)
        return stall.patience(state, self.limits, awaited=any(state.pending for state in table.ranks))

    def judge(self, table: Summary) -> Verdict:
        """The verdict over ``table``, with the source around every place that the ranks' calls name."""
        return hang.judge(table.ranks, table.groups, world_size=table.world_size, source=_sources(table.ranks))


def _unlooked(state: RankState) -> bool:
    """True where two stacks of a living rank are still to come (nothing says that they cannot be had)."""
    return state.life not in (Life.DEAD, Life.UNKNOWN) and len(state.stacks) < 2 and not state.unseen


def _sources(ranks: tuple[RankState, ...]) -> dict[Place, Surroundings]:
    """The source around the calls that ranks are in or made last, and around what calls their functions."""
    calls = [call for state in ranks for call in (*state.pending, *state.recent[-SITES:])]
    level = {place for call in calls for place in (call.site, call.caller) if place is not None}
    found: dict[Place, Surroundings] = {}
    for _ in range(STEPS_UP + 1):
        wanted = sorted(level - found.keys(), key=str)[:MOST_PLACES]
        seen = {place: source.surroundings(place) for place in wanted}
        found |= {place: around for place, around in seen.items() if isinstance(around, Surroundings)}
        level = {caller for place in wanted if place in found for caller in found[place].callers}
    return found
