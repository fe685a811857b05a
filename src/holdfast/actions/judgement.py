"""From silence to a verdict: suspect, look twice a second apart, judge, and be patient with what is only slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.actions import source_lint
from holdfast.actions.source_lint import SourceLint
from holdfast.facts import source
from holdfast.facts.node import Summary
from holdfast.facts.ranks import Group, Life, Place, RankState
from holdfast.facts.source import Surroundings
from holdfast.findings import Finding, Verdict
from holdfast.rules import hang, source_match, stall
from holdfast.rules.places import STEPS_UP
from holdfast.rules.stall import Limits

BETWEEN_SAMPLES_S = 1.0
#: How long after the first close look the other nodes' looks are waited for.
OTHERS_LIMIT_S = 4.0
AFTER_OTHERS_S = 0.4
#: A rank that may simply need longer is looked at again after this many seconds.
LOOK_AGAIN_S = 2.0
#: How long ranks that are gone keep a verdict waiting for what the source says.
SOURCE_LIMIT_S = 1.5
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
        self._lint = SourceLint()
        self._kept: Outcome | None = None

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
            self._kept = None
        silent_s = now - table.silent_since
        if self._kept is not None:
            return self._with_source(self._kept, silent_s)
        return self._look(table, silent_s, look_closer, everybody)

    def _look(
        self,
        table: Summary,
        silent_s: float,
        look_closer: Callable[[], Summary],
        everybody: Callable[[Summary], Summary],
    ) -> Outcome:
        now = table.silent_since + silent_s
        if self._done or silent_s < stall.threshold_s(table.ranks, self.limits) or now < self._look_again_at:
            return Outcome(table)
        if not self.suspects:
            self._suspected_at = now
            self._lint.begin(look_closer().ranks)
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
        outcome = self.decide(closer, time.time() - table.silent_since)
        return outcome if outcome.verdict is None else self._with_source(outcome, outcome.silent_s)

    def _with_source(self, outcome: Outcome, silent_s: float) -> Outcome:
        """The outcome with what the source says, for which it is kept a few seconds if need be."""
        verdict = outcome.verdict
        if verdict is not None and source_match.concerns(verdict, outcome.table.ranks) and self._lint.is_under_way:
            self._kept = outcome
            return Outcome(outcome.table)
        self._kept = None
        if verdict is None:
            return outcome
        ranks, groups = outcome.table.ranks, outcome.table.groups
        return replace(outcome, verdict=held_against_source(verdict, ranks, groups, self._lint, 0.0), silent_s=silent_s)

    def final(self, table: Summary) -> Verdict:
        """The verdict over a job that will not go on, with what the source says where that is soon known."""
        return held_against_source(self.judge(table), table.ranks, table.groups, self._lint, SOURCE_LIMIT_S)

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


def held_against_source(
    verdict: Verdict,
    ranks: Sequence[RankState],
    groups: Mapping[str, Group],
    lint: SourceLint | None = None,
    wait_s: float = source_lint.PATIENT_S,
) -> Verdict:
    """The verdict with the root that the program's source gives it, where that is known within so many seconds."""
    if not source_match.concerns(verdict, ranks):
        return verdict
    lint = lint or SourceLint(wait_s)
    lint.begin(ranks)
    hints = lint.hints(wait_s)
    return source_match.refine(verdict, ranks, groups, _sources(ranks), hints) if hints else verdict


def _unlooked(state: RankState) -> bool:
    """True where two stacks of a living rank are still to come (nothing says that they cannot be had)."""
    return state.life not in (Life.DEAD, Life.UNKNOWN) and len(state.stacks) < 2 and not state.unseen


def _sources(ranks: Sequence[RankState]) -> dict[Place, Surroundings]:
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
