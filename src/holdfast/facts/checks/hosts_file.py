"""What /etc/hosts says of this host and of the endpoint, line by line: it is asked before DNS, and rarely read."""

from __future__ import annotations

from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.interfaces import own
from holdfast.facts.checks.names import host_name
from holdfast.facts.resolver import Line, endpoint_elsewhere, hosts
from holdfast.findings import Fact, Unknown

PATH = "/etc/hosts"


class HostsFile(Seen, frozen=True, kw_only=True):
    """All lines, the own name and the host's own addresses. ``elsewhere``: the endpoint is another host's."""

    lines: tuple[Line, ...] | Unknown
    name: str
    addresses: tuple[str, ...] = ()
    elsewhere: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`: the lines about this host."""
        if isinstance(self.lines, Unknown):
            return (fact(PATH, self.lines, PATH),)
        mine = tuple(fact(f"line {line.number}", said(line), f"{PATH}:{line.number}") for line in self.about(self.name))
        return (fact(PATH, f"{len(self.lines)} lines, {len(mine)} with {self.name} in them", PATH), *mine)

    def about(self, name: str) -> tuple[Line, ...]:
        """The lines with this name."""
        return () if isinstance(self.lines, Unknown) else tuple(line for line in self.lines if name in line.names)


def said(line: Line) -> str:
    """The line in short."""
    return " ".join((line.address, *line.names[:6]))


def look(place: Place) -> HostsFile:
    """Read it."""
    return HostsFile(
        lines=hosts(place),
        name=host_name(place),
        addresses=tuple(sorted(own(place))),
        elsewhere=bool(endpoint_elsewhere(place)),
    )
