"""Judges whether there is a route to the rendezvous, and whether it uses the intended interface."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from holdfast.causes.network.hostname_resolution import HOSTNAME_RESOLUTION
from holdfast.causes.network.master_unreachable import MASTER_UNREACHABLE
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.causes.remedies import automatic
from holdfast.core.findings import Finding, Level, Unknown, make_finding
from holdfast.host.check_rules.interface_names import INTERFACE_VARIABLES, matching_interfaces
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.network.interfaces import VIRTUAL_INTERFACE
from holdfast.host.checks.network.routes import RouteLookup, RoutesResult


def judge(result: RoutesResult, context: CheckContext) -> Iterator[Finding]:
    """No route is an error.

    A loopback address, a virtual interface or an unselected one a warning.
    """
    if isinstance(result.routes, Unknown) or not result.routes:
        return
    first = result.routes[0]
    route = next((route for route in result.routes if not route.refused), None)
    if route is None:
        yield _unreachable_finding(result, first)
        return
    if first.refused:
        yield make_finding(
            HOSTNAME_RESOLUTION,
            f"{result.endpoint} resolves to {first.address} first, which has no route "
            f"({first.refused}): programs that do not fall back to {route.address} fail",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.6,
        )
    if route.local:
        yield from _judge_loopback(result, route)
    else:
        yield from _judge_interface(result, route, context)


def _unreachable_finding(result: RoutesResult, route: RouteLookup) -> Finding:
    return make_finding(
        MASTER_UNREACHABLE,
        f"no route from this host to {result.endpoint} ({route.address}): {route.refused}. torch "
        "would retry for 30 minutes",
        evidence=result.facts(),
        remedies=(
            automatic("Show the kernel's route.", f"ip route get {route.address}"),
            *MASTER_UNREACHABLE.remedies,
        ),
        confidence=0.95,
    )


def _judge_loopback(result: RoutesResult, route: RouteLookup) -> Iterator[Finding]:
    if ip_address(route.address).is_loopback and result.endpoint not in {
        "localhost",
        route.address,
    }:
        yield make_finding(
            HOSTNAME_RESOLUTION,
            f"{result.endpoint} resolves to the loopback address {route.address} on this host: "
            "correct only if this host is the endpoint; any other host would connect to itself",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.6,
        )


def _judge_interface(
    result: RoutesResult, route: RouteLookup, context: CheckContext
) -> Iterator[Finding]:
    interface = route.interface
    if interface is None:
        return
    if VIRTUAL_INTERFACE.match(interface):
        yield make_finding(
            NETWORK_INTERFACE_WRONG,
            f"the route to {result.endpoint} uses {interface}, an interface of containers, virtual "
            "machines or a VPN: other hosts may be unreachable or slow",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.5,
        )
    for variable in (name for name in INTERFACE_VARIABLES if context.environ.get(name)):
        value = context.environ[variable]
        if not matching_interfaces(variable, value, [interface]):
            yield make_finding(
                NETWORK_INTERFACE_WRONG,
                f"{variable}={value}, but the route to {result.endpoint} uses {interface}: ranks "
                f"will communicate "
                "over another network than the rendezvous, which other hosts may not have",
                level=Level.WARNING,
                evidence=(*result.facts(), check_fact(variable, value, "the environment")),
                confidence=0.4,
            )
