"""Plays scenarios one after the other, each in a folder of its own, and says what came of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from holdfast.actions.chaos import assess
from holdfast.actions.chaos.assess import Played
from holdfast.actions.chaos.places import why_not
from holdfast.actions.chaos.play import play
from holdfast.actions.chaos.scenario import Scenario
from holdfast.errors import HoldfastError, WorldError
from holdfast.facts.versions import versions
from holdfast.report.reliability import Outcome
from holdfast.report.text import one_line


def campaign(scenarios: Iterable[Scenario], folder: Path) -> Iterator[Outcome]:
    """The outcome of each, as it comes; what was not survived leaves its folder below ``folder`` for who looks into it.

    One that cannot be played to its end, because the job does not run in peace or a blow does not meet, counts as not
    survived, and the others are played all the same.
    """
    peace: dict[Scenario, Played] = {}
    for scenario in scenarios:
        if why := why_not(scenario):
            yield not_played(scenario, why)
            continue
        try:
            outcome = _hurt(scenario, peace, folder)
        except (HoldfastError, psutil.Error, subprocess.SubprocessError, OSError) as error:
            outcome = _outcome(scenario, wrong=(one_line(str(error)),), at=round(time.time()))
        yield outcome


def _hurt(scenario: Scenario, peace: dict[Scenario, Played], folder: Path) -> Outcome:
    calm = scenario.calm
    if calm not in peace:
        peace[calm] = _in_peace(calm, folder)
    here = Path(tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=folder))
    played = play(scenario, here)
    wrong = assess.wrong(scenario, played, peace[calm])
    if not wrong:
        shutil.rmtree(here, ignore_errors=True)
    causes = tuple(root["cause"] if root else "none" for root in played.roots)
    return _outcome(
        scenario, causes=causes, redone=assess.redone(played), took_s=round(played.took_s, 2),
        peace_s=round(peace[calm].took_s, 2), wrong=tuple(wrong), at=round(time.time()),
    )  # fmt: skip


def machine() -> Mapping[str, str]:
    """What a page of results says of the machine: cores, and the versions that matter."""
    found = dict(fact.text.split(": ", 1) for fact in versions() if ": " in fact.text)
    return {
        "cores": str(os.cpu_count()),
        **{name: found[name] for name in ("torch", "Python", "kernel") if name in found},
    }


def not_played(scenario: Scenario, why: str) -> Outcome:
    """The outcome of a scenario that was not played."""
    return _outcome(scenario, skipped=why)


def _outcome(scenario: Scenario, **found: object) -> Outcome:
    return Outcome(
        name=scenario.name, fault=scenario.fault, moment=scenario.moment, mode=scenario.mode, ranks=scenario.ranks,
        hosts=scenario.hosts, **found,  # type: ignore[arg-type] # the fields of an outcome
    )  # fmt: skip


def _in_peace(calm: Scenario, folder: Path) -> Played:
    here = Path(tempfile.mkdtemp(prefix="peace-", dir=folder))
    played = play(calm, here)
    wrong = assess.wrong(calm, played, played)
    if wrong:
        what = f"the job cannot be hurt, because it does not run in peace: {wrong[0]}"
        raise WorldError(what, next_step=f"see {here}/output0.0.txt")
    shutil.rmtree(here, ignore_errors=True)
    return played
