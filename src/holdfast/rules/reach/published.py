"""Does each host give its peers an address at which they can reach it?"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.facts.reach import Gathered, Present, Published
from holdfast.facts.reach.addresses import is_loopback
from holdfast.findings import Fact, Finding, Level, Subject, Unknown, finding
from holdfast.rules.causes import by_name


def judge(gathered: Gathered) -> Iterator[Finding]:
    """An interface that is named and not there, and a loopback address among several machines.

    Where there are GPUs, gloo's address is a warning: NCCL carries the training then.
    """
    several = len({each.copy.machine for each in gathered.present}) > 1
    for present in gathered.present:
        for each in present.copy.published:
            if each.who == "NCCL" and not present.copy.devices and not isinstance(each.address, Unknown):
                continue
            message = _wrong(present, each, several=several)
            if message:
                yield _finding(present, each, message)


def _wrong(present: Present, chosen: Published, *, several: bool) -> str:
    if isinstance(chosen.address, Unknown):
        unused = chosen.who == "NCCL" and not present.copy.devices
        return "" if unused else f"{chosen.who} of {present.copy.label} has no address to publish: {chosen.address.why}"
    if several and is_loopback(chosen.address):
        return (
            f"{chosen.who} of {present.copy.label} would publish {chosen.address} ({chosen.why}), at which every other "
            "host finds itself"
        )
    return ""


def _finding(present: Present, chosen: Published, message: str) -> Finding:
    beside = chosen.who == "gloo" and present.copy.devices
    known = ", ".join(f"{each.name} {each.address}" for each in present.copy.interfaces)
    return finding(
        by_name("network-interface-wrong"), message, level=Level.WARNING if beside else Level.ERROR,
        subject=Subject(host=present.copy.host), confidence=0.7 if beside else 0.95,
        evidence=(Fact(text=f"interfaces that are up: {known}", origin="getifaddrs", host=present.copy.host),),
    )  # fmt: skip
