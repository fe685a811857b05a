"""Lines of /etc/hosts, which the resolver consults before DNS."""

from __future__ import annotations

import msgspec

from holdfast.core.findings import Fact, Unknown
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.network.host_names import own_host_name
from holdfast.host.checks.network.interfaces import interface_of_address
from holdfast.host.checks.network.resolver import (
    HostsLine,
    read_hosts_file,
    remote_endpoint_addresses,
)

HOSTS_PATH = "/etc/hosts"


class HostsFileResult(CheckResult, frozen=True, kw_only=True):
    """All lines, this host's name, and the interface of each of its addresses.

    ``endpoint_is_remote``: the endpoint is another host.
    """

    lines: tuple[HostsLine, ...] | Unknown
    name: str
    interfaces: dict[str, str] = msgspec.field(default_factory=dict)
    endpoint_is_remote: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of this host, sorted."""
        return tuple(sorted(self.interfaces))

    def facts(self) -> tuple[Fact, ...]:
        """Return the lines about this host."""
        if isinstance(self.lines, Unknown):
            return (check_fact(HOSTS_PATH, self.lines, HOSTS_PATH),)
        own = tuple(
            check_fact(f"line {line.number}", describe_line(line), f"{HOSTS_PATH}:{line.number}")
            for line in self.lines_with(self.name)
        )
        return (
            check_fact(
                HOSTS_PATH, f"{len(self.lines)} lines, {len(own)} with {self.name}", HOSTS_PATH
            ),
            *own,
        )

    def lines_with(self, name: str) -> tuple[HostsLine, ...]:
        """Return the lines that contain this name."""
        return (
            ()
            if isinstance(self.lines, Unknown)
            else tuple(line for line in self.lines if name in line.names)
        )


def describe_line(line: HostsLine) -> str:
    """Return the line with its first six names."""
    return " ".join((line.address, *line.names[:6]))


def inspect(context: CheckContext) -> HostsFileResult:
    """Read the file."""
    return HostsFileResult(
        lines=read_hosts_file(context),
        name=own_host_name(context),
        interfaces=interface_of_address(context),
        endpoint_is_remote=bool(remote_endpoint_addresses(context)),
    )
