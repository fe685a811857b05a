"""Resolution of this host's name and of the endpoint, and reverse lookup of this host's addresses.

gloo publishes the address to which the host name resolves; torch's c10d rendezvous publishes
``socket.getfqdn()``.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.network.interfaces import interface_of_address
from holdfast.host.checks.network.resolver import (
    NameLookup,
    fully_qualified_name,
    read_hosts_file,
    resolve_name,
    reverse_lookup,
)
from holdfast.host.processes import proc


class HostNamesResult(CheckResult, frozen=True, kw_only=True):
    """Lookups of this host's name, of the name that c10d publishes, and of the endpoint.

    ``reverse``: name of each own address. ``interfaces``: interface of each address of this host.
    ``in_file``: /etc/hosts has the own name.
    """

    own: NameLookup
    published: NameLookup
    endpoint: NameLookup | None = None
    reverse: tuple[tuple[str, str | Unknown], ...] = ()
    interfaces: dict[str, str] = msgspec.field(default_factory=dict)
    in_file: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of this host."""
        return tuple(self.interfaces)

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        lookups = [("host name", self.own)]
        if self.published.name != self.own.name:
            lookups.append(("name published by c10d", self.published))
        if self.endpoint is not None:
            lookups.append(("endpoint", self.endpoint))
        facts = [
            check_fact(f"{kind} {lookup.name}", _describe_lookup(lookup), "getaddrinfo")
            for kind, lookup in lookups
        ]
        return (
            *facts,
            *(
                check_fact(f"name of {address}", name or "none", "gethostbyaddr")
                for address, name in self.reverse
            ),
        )


def _describe_lookup(lookup: NameLookup) -> str:
    return (", ".join(lookup.addresses) or lookup.failure) + (
        f", after {lookup.elapsed_s:.1f} s" if lookup.elapsed_s > 1 else ""
    )


def inspect(context: CheckContext) -> HostNamesResult:
    """Run all lookups concurrently: an unreachable name server costs seconds for each."""
    name = own_host_name(context)
    interfaces = interface_of_address(context)
    routable = [
        text for text in interfaces if not text.startswith(("127.", "fe80:")) and text != "::1"
    ][:4]
    lines = read_hosts_file(context)
    with ThreadPoolExecutor(8) as pool:
        own = pool.submit(resolve_name, context, name)
        published = pool.submit(_published_name, context, name)
        endpoint = (
            pool.submit(resolve_name, context, context.endpoint[0])
            if context.endpoint is not None
            else None
        )
        reverse = [(address, pool.submit(reverse_lookup, context, address)) for address in routable]
        return HostNamesResult(
            own=own.result(),
            published=published.result(),
            endpoint=endpoint.result() if endpoint else None,
            reverse=tuple((address, lookup.result()) for address, lookup in reverse),
            interfaces=interfaces,
            in_file=not isinstance(lines, Unknown) and any(name in line.names for line in lines),
        )


def own_host_name(context: CheckContext) -> str:
    """Return the node name of uname."""
    if context.root == "/":
        return os.uname().nodename
    content = proc.read_text(context.path("/etc/hostname"))
    return content.strip() if isinstance(content, str) else "localhost"


def _published_name(context: CheckContext, name: str) -> NameLookup:
    """Resolve the result of ``socket.getfqdn``."""
    full = fully_qualified_name(context, name)
    if isinstance(full, Unknown):
        return NameLookup(name=name, failure=full.why)
    return resolve_name(context, full)
