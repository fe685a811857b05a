"""Runs scenarios one after the other, each in its own folder, and yields their outcomes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import psutil

from holdfast.chaos import assessment
from holdfast.chaos.assessment import ScenarioRun
from holdfast.chaos.environment import unsupported_reason
from holdfast.chaos.reliability import ScenarioOutcome
from holdfast.chaos.runner import run_scenario
from holdfast.chaos.scenario import Scenario
from holdfast.core.errors import HoldfastError, WorldError
from holdfast.core.text import one_line
from holdfast.host.versions import installed_versions


def run_campaign(scenarios: Iterable[Scenario], folder: Path) -> Iterator[ScenarioOutcome]:
    """Yield the outcome of each scenario; a failed one keeps its folder below ``folder``.

    A scenario that cannot be completed, because the undisturbed run fails or a fault cannot be
    injected, counts as failed; the others still run.
    """
    undisturbed_runs: dict[Scenario, ScenarioRun] = {}
    for scenario in scenarios:
        if why := unsupported_reason(scenario):
            yield skipped_outcome(scenario, why)
            continue
        try:
            outcome = _run_and_assess(scenario, undisturbed_runs, folder)
        except (HoldfastError, psutil.Error, subprocess.SubprocessError, OSError) as error:
            outcome = _outcome(scenario, violations=(one_line(str(error)),), at=round(time.time()))
        yield outcome


def _run_and_assess(
    scenario: Scenario, undisturbed_runs: dict[Scenario, ScenarioRun], folder: Path
) -> ScenarioOutcome:
    plain = scenario.undisturbed
    if plain not in undisturbed_runs:
        undisturbed_runs[plain] = _run_undisturbed(plain, folder)
    run_folder = Path(tempfile.mkdtemp(prefix=f"{scenario.name}-", dir=folder))
    observed = run_scenario(scenario, run_folder)
    violations = assessment.find_violations(scenario, observed, undisturbed_runs[plain])
    if not violations:
        shutil.rmtree(run_folder, ignore_errors=True)
    causes = tuple(root["cause"] if root else "none" for root in observed.roots)
    return _outcome(
        scenario,
        causes=causes,
        repeated_steps=assessment.count_repeated_steps(observed),
        took_s=round(observed.took_s, 2),
        undisturbed_s=round(undisturbed_runs[plain].took_s, 2),
        violations=tuple(violations),
        at=round(time.time()),
    )


def describe_machine() -> Mapping[str, str]:
    """Return the machine facts for the results page: cores and relevant versions."""
    versions = dict(fact.text.split(": ", 1) for fact in installed_versions() if ": " in fact.text)
    return {
        "cores": str(os.cpu_count()),
        **{name: versions[name] for name in ("torch", "Python", "kernel") if name in versions},
    }


def skipped_outcome(scenario: Scenario, why: str) -> ScenarioOutcome:
    """Return the outcome of a scenario that was not run."""
    return _outcome(scenario, skipped=why)


def _outcome(scenario: Scenario, **fields: object) -> ScenarioOutcome:
    return ScenarioOutcome(
        name=scenario.name,
        fault=scenario.fault,
        moment=scenario.moment,
        mode=scenario.mode,
        ranks=scenario.ranks,
        hosts=scenario.hosts,
        **fields,  # type: ignore[arg-type] # the fields of an outcome
    )


def _run_undisturbed(scenario: Scenario, folder: Path) -> ScenarioRun:
    run_folder = Path(tempfile.mkdtemp(prefix="undisturbed-", dir=folder))
    observed = run_scenario(scenario, run_folder)
    violations = assessment.find_violations(scenario, observed, observed)
    if violations:
        what = f"the undisturbed run of the scenario failed: {violations[0]}"
        raise WorldError(what, next_step=f"see {run_folder}/output0.0.txt")
    shutil.rmtree(run_folder, ignore_errors=True)
    return observed
