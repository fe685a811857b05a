"""Differences between the hosts of a job.

Software, code, variables, and speed-relevant hardware.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.causes.environment.code_differs_between_hosts import CODE_DIFFERS_BETWEEN_HOSTS
from holdfast.causes.environment.software_differs_between_hosts import (
    SOFTWARE_DIFFERS_BETWEEN_HOSTS,
)
from holdfast.causes.performance.straggler import STRAGGLER
from holdfast.core.findings import Cause, Fact, Finding, Level, Subject, Unknown, make_finding
from holdfast.core.text import pluralize
from holdfast.host.checks import CheckResult
from holdfast.host.checks.devices.cuda import CudaResult
from holdfast.host.checks.devices.gpus import GpusResult
from holdfast.host.checks.system.memory import MemoryResult
from holdfast.host.checks.system.processors import ProcessorsResult
from holdfast.host.checks.system.software import SoftwareResult
from holdfast.host.variable_rules.across_hosts import host_differences as variables_that_differ

#: Packages whose version must be the same on all ranks, or they cannot communicate.
_MUST_MATCH = frozenset(
    {"torch", "nvidia_nccl_cu11", "nvidia_nccl_cu12", "nvidia_nccl_cu13", "deepspeed", "triton"}
)
_MAX_NAMED = 8
_GIB = 1 << 30
_ABSENT = "(not installed)"

HostResults = Mapping[str, CheckResult | Unknown]


class HostProperty(NamedTuple):
    """A compared property: ``of`` returns its value as text, or None if unknown."""

    name: str
    check: str
    of: Callable[[Any], str | None]
    cause: Cause
    level: Level


def _code(result: SoftwareResult) -> str | None:
    return result.code.fingerprint if result.code is not None and result.code.fingerprint else None


def _driver(result: CudaResult) -> str | None:
    return result.module if isinstance(result.module, str) else None


def _gpus(result: GpusResult) -> str | None:
    return (
        pluralize(len(result.of_driver), "GPU") if result.of_driver and not result.absent else None
    )


def _cores(result: ProcessorsResult) -> str | None:
    return f"{result.cores:g} cores" if result.cores is not None else None


def _memory(result: MemoryResult) -> str | None:
    """Round to an eighth of a power of two: identical hosts differ by some MiB."""
    if not isinstance(result.total, int):
        return None
    step = max(1 << max(result.total.bit_length() - 4, 0), 1)
    return f"{round(result.total / step) * step / _GIB:.0f} GiB"


PROPERTIES = (
    HostProperty(
        "Python",
        "software",
        lambda result: result.python,
        SOFTWARE_DIFFERS_BETWEEN_HOSTS,
        Level.WARNING,
    ),
    HostProperty(
        "holdfast",
        "software",
        lambda result: result.holdfast,
        SOFTWARE_DIFFERS_BETWEEN_HOSTS,
        Level.NOTE,
    ),
    HostProperty("training code", "software", _code, CODE_DIFFERS_BETWEEN_HOSTS, Level.WARNING),
    HostProperty(
        "NVIDIA driver version", "cuda", _driver, SOFTWARE_DIFFERS_BETWEEN_HOSTS, Level.WARNING
    ),
    HostProperty("number of GPUs", "gpus", _gpus, STRAGGLER, Level.WARNING),
    HostProperty("number of CPU cores", "processors", _cores, STRAGGLER, Level.NOTE),
    HostProperty("memory size", "memory", _memory, STRAGGLER, Level.NOTE),
)


#: The checks whose results are compared.
COMPARED = tuple(dict.fromkeys(each.check for each in PROPERTIES))


def judge(
    results: Mapping[str, HostResults], environs: Mapping[str, Mapping[str, str]]
) -> tuple[Finding, ...]:
    """Return the differences between hosts, from their check results and variables by host name.

    The majority value counts as correct, and the other hosts are named; without a majority, all
    are.
    """
    if len(results) < 2:
        return ()
    differences = [
        finding
        for each in PROPERTIES
        for finding in property_differences(each, _values(each, results))
    ]
    return (*differences, *_packages(results), *variables_that_differ(environs))


def _values(what: HostProperty, results: Mapping[str, HostResults]) -> dict[str, str]:
    by_host = {host: each.get(what.check) for host, each in results.items()}
    values = {
        host: what.of(each)
        for host, each in by_host.items()
        if each is not None and not isinstance(each, Unknown)
    }
    return {host: value for host, value in values.items() if value is not None}


def _packages(results: Mapping[str, HostResults]) -> Iterator[Finding]:
    """Yield one finding per package that must match, and one for all other packages together."""
    software = {host: each.get("software") for host, each in results.items()}
    packages = {
        host: each.packages for host, each in software.items() if isinstance(each, SoftwareResult)
    }
    names = sorted({name for each in packages.values() for name in each})
    cause = SOFTWARE_DIFFERS_BETWEEN_HOSTS
    others = []
    for name in names:
        values = {host: each.get(name, _ABSENT) for host, each in packages.items()}
        if len(set(values.values())) == 1:
            continue
        if name in _MUST_MATCH:
            yield from property_differences(
                HostProperty(name.replace("_", "-"), "software", str, cause, Level.ERROR), values
            )
        else:
            others.append((name, values))
    if others:
        odd = sorted({host for _, values in others for host in _odd(values)})
        named = ", ".join(name.replace("_", "-") for name, _ in others[:_MAX_NAMED])
        more = f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else ""
        facts = tuple(
            Fact(text=f"{name} {value}", origin="sys.path", host=host)
            for name, values in others[:_MAX_NAMED]
            for host, value in values.items()
            if host in odd[:2]
        )
        yield make_finding(
            cause,
            f"versions of {pluralize(len(others), 'package')} differ between hosts: {named}{more}",
            level=Level.WARNING,
            subject=_subject(odd),
            evidence=facts,
            confidence=0.8,
        )


def property_differences(what: HostProperty, values: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a finding if the hosts' values differ."""
    if len(set(values.values())) < 2:
        return
    odd = _odd(values)
    usual, times = Counter(values.values()).most_common(1)[0]
    named = ", ".join(f"{values[host]} on {host}" for host in odd[:_MAX_NAMED])
    more = f" and {len(odd) - _MAX_NAMED} more" if len(odd) > _MAX_NAMED else ""
    rest = (
        f", {usual} on {'the other' if times == 1 else f'the other {times}'}"
        if len(odd) < len(values)
        else ""
    )
    yield make_finding(
        what.cause,
        f"{what.name} differs between hosts: {named}{more}{rest}",
        level=what.level,
        subject=_subject(odd),
        confidence=0.9,
        evidence=tuple(
            Fact(
                text=f"{what.name}: {values[host]}",
                origin=f"holdfast check --only {what.check}",
                host=host,
            )
            for host in (*odd, *(host for host in values if host not in odd))[: 2 * _MAX_NAMED]
        ),
    )


def _odd(values: Mapping[str, str]) -> list[str]:
    """Return the hosts whose value differs from the majority's; all without a majority."""
    usual, times = Counter(values.values()).most_common(1)[0]
    return [host for host, value in values.items() if value != usual or times * 2 <= len(values)]


def _subject(odd: list[str]) -> Subject:
    return Subject(host=odd[0] if len(odd) == 1 else None)
