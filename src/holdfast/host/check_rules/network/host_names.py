"""Judges whether this host's name and the endpoint resolve to usable addresses."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from holdfast.causes.network.hostname_resolution import HOSTNAME_RESOLUTION
from holdfast.causes.remedies import disruptive
from holdfast.core.findings import Finding, Level, Remedy, make_finding
from holdfast.host.checks import CheckContext
from holdfast.host.checks.network.host_names import HostNamesResult
from holdfast.host.checks.network.resolver import NameLookup

#: A slower resolver tries an unreachable name server first.
_SLOW_S = 1.0


def judge(result: HostNamesResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the endpoint first, because no job starts without it.

    Then the names published to peers.
    """
    if result.endpoint is not None:
        yield from _judge_endpoint(result, result.endpoint, context)
    yield from _judge_own_name(result, context)
    yield from _judge_published_name(result, context)
    lookups = (result.own, result.published, *((result.endpoint,) if result.endpoint else ()))
    slowest = max(lookups, key=lambda lookup: lookup.elapsed_s)
    if slowest.addresses and slowest.elapsed_s > _SLOW_S:
        yield _name_finding(
            result,
            context,
            Level.WARNING,
            f"resolving {slowest.name} took {slowest.elapsed_s:.1f} s: the first name server does "
            "not answer, which delays every start",
            0.8,
        )


def _judge_endpoint(
    result: HostNamesResult, lookup: NameLookup, context: CheckContext
) -> Iterator[Finding]:
    if not lookup.addresses:
        yield _name_finding(
            result,
            context,
            Level.ERROR,
            f"the endpoint {lookup.name} does not resolve ({lookup.failure}): this host cannot "
            "reach the rendezvous",
            0.95 if lookup.is_known_absent else 0.8,
        )
    elif all(ip_address(text).version == 6 for text in lookup.addresses) and not any(
        _routable_addresses(result, version=6)
    ):
        yield _name_finding(
            result,
            context,
            Level.ERROR,
            f"{lookup.name} has only IPv6 addresses, and this host has no routable IPv6 address",
            0.9,
        )


def _judge_own_name(result: HostNamesResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the name that gloo publishes if no interface is set.

    The check hosts-file judges its line of /etc/hosts.
    """
    own = result.own
    if context.environ.get("GLOO_SOCKET_IFNAME") or result.in_file:
        return
    foreign = [
        text
        for text in own.addresses
        if text not in result.addresses and not ip_address(text).is_loopback
    ]
    if not own.addresses:
        yield _name_finding(
            result,
            context,
            Level.WARNING,
            f"this host's name {own.name} does not resolve ({own.failure}): gloo publishes its "
            "loopback address instead, to which peers on other hosts cannot connect",
            0.8,
        )
    elif all(ip_address(text).is_loopback for text in own.addresses):
        yield _name_finding(
            result,
            context,
            Level.WARNING,
            f"this host's name {own.name} resolves to {own.addresses[0]}: gloo publishes it, and "
            "peers on other hosts connect to themselves",
            0.8,
        )
    elif foreign and len(foreign) == len(own.addresses):
        yield _name_finding(
            result,
            context,
            Level.WARNING,
            f"this host's name {own.name} resolves to {foreign[0]}, which is not an address of "
            "this host: peers connect to the wrong host",
            0.7,
        )


def _judge_published_name(result: HostNamesResult, context: CheckContext) -> Iterator[Finding]:
    """Judge the name that the c10d rendezvous publishes for the host of rank 0."""
    name = result.published.name
    if name.partition(".")[0] in {"localhost", "ip6-localhost"}:
        yield _name_finding(
            result,
            context,
            Level.WARNING,
            f"the fully qualified name of this host is {name}, which torch's c10d rendezvous "
            "publishes: if this is the first host, every other host connects to itself",
            0.8,
        )
    elif not result.published.addresses and name != result.own.name:
        yield _name_finding(
            result,
            context,
            Level.WARNING,
            f"the fully qualified name of this host, {name}, does not resolve: the c10d rendezvous "
            "publishes it, and other hosts may not resolve it either",
            0.6,
        )


def _routable_addresses(result: HostNamesResult, version: int) -> list[str]:
    return [
        text
        for text in result.addresses
        if (address := ip_address(text.partition("%")[0])).version == version
        and not (address.is_loopback or address.is_link_local)
    ]


def _name_finding(
    result: HostNamesResult, context: CheckContext, level: Level, message: str, confidence: float
) -> Finding:
    return make_finding(
        HOSTNAME_RESOLUTION,
        message,
        level=level,
        evidence=result.facts(),
        confidence=confidence,
        remedies=(*HOSTNAME_RESOLUTION.remedies[:1], _local_address_remedy(result, context)),
    )


def _local_address_remedy(result: HostNamesResult, context: CheckContext) -> Remedy:
    """Substitute this host's address and interface, and the endpoint, if they are known."""
    own = next(iter(_routable_addresses(result, version=4)), "LOCAL_ADDRESS")
    interface = result.interfaces.get(own, "INTERFACE")
    endpoint = "{}:{}".format(*context.endpoint) if context.endpoint else "MASTER_ADDRESS:29500"
    return disruptive(
        "Workaround: publish an address instead of the name (--local-addr), and set gloo's "
        "interface.",
        f"export GLOO_SOCKET_IFNAME={interface}; "
        f"holdfast run --local-addr {own} --rdzv-endpoint {endpoint} SCRIPT",
    )
