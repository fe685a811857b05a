"""Hosts of one job that are not alike: software, code, variables, and what sets the pace of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from holdfast.facts.checks import Seen
from holdfast.facts.checks.cuda import Cuda
from holdfast.facts.checks.gpus import Gpus
from holdfast.facts.checks.memory import Memory
from holdfast.facts.checks.processors import Processors
from holdfast.facts.checks.software import Software
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, finding
from holdfast.report.text import plural
from holdfast.rules.causes import by_name
from holdfast.rules.environment.hosts import differences as variables_that_differ

#: Packages of which every rank has to have the same version, or they do not understand each other.
_SAME = frozenset({"torch", "nvidia_nccl_cu11", "nvidia_nccl_cu12", "nvidia_nccl_cu13", "deepspeed", "triton"})
_MOST_NAMED = 8
_GIB = 1 << 30
_ABSENT = "(not installed)"

Looks = Mapping[str, Seen | Unknown]


class Property(NamedTuple):
    """Something that hosts are compared by: ``of`` gives its value as text, or None where it is not known."""

    name: str
    check: str
    of: Callable[[Any], str | None]
    cause: str
    level: Level


def _code(seen: Software) -> str | None:
    return seen.code.fingerprint if seen.code is not None and seen.code.fingerprint else None


def _driver(seen: Cuda) -> str | None:
    return seen.module if isinstance(seen.module, str) else None


def _gpus(seen: Gpus) -> str | None:
    return plural(len(seen.of_driver), "GPU") if seen.of_driver and not seen.absent else None


def _cores(seen: Processors) -> str | None:
    return f"{seen.cores:g} cores" if seen.cores is not None else None


def _memory(seen: Memory) -> str | None:
    """To an eighth of a power of two: hosts that were bought together differ by some MiB."""
    if not isinstance(seen.total, int):
        return None
    step = max(1 << max(seen.total.bit_length() - 4, 0), 1)
    return f"{round(seen.total / step) * step / _GIB:.0f} GiB of memory"


PROPERTIES = (
    Property("Python", "software", lambda seen: seen.python, "software-differs-between-hosts", Level.WARNING),
    Property("holdfast", "software", lambda seen: seen.holdfast, "software-differs-between-hosts", Level.NOTE),
    Property("the training program", "software", _code, "code-differs-between-hosts", Level.WARNING),
    Property("NVIDIA's driver", "cuda", _driver, "software-differs-between-hosts", Level.WARNING),
    Property("the number of GPUs", "gpus", _gpus, "straggler", Level.WARNING),
    Property("the number of processors", "processors", _cores, "straggler", Level.NOTE),
    Property("the memory", "memory", _memory, "straggler", Level.NOTE),
)  # fmt: skip


#: The checks that hosts are compared by.
COMPARED = tuple(dict.fromkeys(each.check for each in PROPERTIES))


def judge(looks: Mapping[str, Looks], environs: Mapping[str, Mapping[str, str]]) -> tuple[Finding, ...]:
    """What differs over hosts, given by name with what their checks saw and their variables.

    What most hosts have is taken for the right one, and those that have another are named; without a majority all are.
    """
    if len(looks) < 2:
        return ()
    found = [claim for each in PROPERTIES for claim in differs(each, _values(each, looks))]
    return (*found, *_packages(looks), *variables_that_differ(environs))


def _values(what: Property, looks: Mapping[str, Looks]) -> dict[str, str]:
    seen = {host: each.get(what.check) for host, each in looks.items()}
    told = {host: what.of(each) for host, each in seen.items() if each is not None and not isinstance(each, Unknown)}
    return {host: value for host, value in told.items() if value is not None}


def _packages(looks: Mapping[str, Looks]) -> Iterator[Finding]:
    """One finding for each package that all ranks must have alike, and one for all the others together."""
    software = {host: each.get("software") for host, each in looks.items()}
    packages = {host: each.packages for host, each in software.items() if isinstance(each, Software)}
    names = sorted({name for each in packages.values() for name in each})
    cause = "software-differs-between-hosts"
    others = []
    for name in names:
        values = {host: each.get(name, _ABSENT) for host, each in packages.items()}
        if len(set(values.values())) == 1:
            continue
        if name in _SAME:
            yield from differs(Property(name.replace("_", "-"), "software", str, cause, Level.ERROR), values)
        else:
            others.append((name, values))
    if others:
        odd = sorted({host for _, values in others for host in _odd(values)})
        told = ", ".join(name.replace("_", "-") for name, _ in others[:_MOST_NAMED])
        more = f" and {len(others) - _MOST_NAMED} more" if len(others) > _MOST_NAMED else ""
        facts = tuple(
            Fact(text=f"{name} {value}", origin="sys.path", host=host)
            for name, values in others[:_MOST_NAMED]
            for host, value in values.items()
            if host in odd[:2]
        )
        yield finding(
            by_name(cause), f"versions of {plural(len(others), 'package')} differ between hosts: {told}{more}",
            level=Level.WARNING, subject=_subject(odd), evidence=facts, confidence=0.8,
        )  # fmt: skip


def differs(what: Property, values: Mapping[str, str]) -> Iterator[Finding]:
    """One finding where the hosts' values of it are not all the same."""
    if len(set(values.values())) < 2:
        return
    odd = _odd(values)
    usual, times = Counter(values.values()).most_common(1)[0]
    told = ", ".join(f"{values[host]} on {host}" for host in odd[:_MOST_NAMED])
    more = f" and {len(odd) - _MOST_NAMED} more" if len(odd) > _MOST_NAMED else ""
    rest = f", {usual} on {'the other' if times == 1 else f'the other {times}'}" if len(odd) < len(values) else ""
    yield finding(
        by_name(what.cause), f"{what.name} differs between hosts: {told}{more}{rest}", level=what.level,
        subject=_subject(odd), confidence=0.9,
        evidence=tuple(Fact(text=f"{what.name}: {values[host]}", origin=f"the check {what.check}", host=host)
                       for host in (*odd, *(host for host in values if host not in odd))[: 2 * _MOST_NAMED]),
    )  # fmt: skip


def _odd(values: Mapping[str, str]) -> list[str]:
    """Hosts that have another value than most; all where there is no majority."""
    usual, times = Counter(values.values()).most_common(1)[0]
    return [host for host, value in values.items() if value != usual or times * 2 <= len(values)]


def _subject(odd: list[str]) -> Subject:
    return Subject(host=odd[0] if len(odd) == 1 else None)
