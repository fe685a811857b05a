"""What the own name and the endpoint's mean on this host, and what name the host's own addresses have.

gloo publishes the address that the host's own name resolves to; torch's c10d rendezvous publishes ``socket.getfqdn()``.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from holdfast.facts import proc
from holdfast.facts.checks import Place, Seen, fact
from holdfast.facts.checks.interfaces import addresses
from holdfast.facts.resolver import Answer, ask, called, full_name, hosts
from holdfast.findings import Fact, Unknown


class Names(Seen, frozen=True, kw_only=True):
    """``published`` is the name that c10d gives to peers, with what it means here; ``back`` the name of an own address.

    ``addresses`` are the host's own, ``in_file`` says that /etc/hosts has the own name.
    """

    own: Answer
    published: Answer
    endpoint: Answer | None = None
    back: tuple[tuple[str, str | Unknown], ...] = ()
    addresses: tuple[str, ...] = ()
    in_file: bool = False

    def facts(self) -> tuple[Fact, ...]:
        """See :meth:`Seen.facts`."""
        asked = [("own name", self.own)]
        asked += [("name that c10d publishes", self.published)] if self.published.asked != self.own.asked else []
        asked += [("endpoint", self.endpoint)] if self.endpoint is not None else []
        told = [fact(f"{what} {answer.asked}", _said(answer), "getaddrinfo") for what, answer in asked]
        return (*told, *(fact(f"name of {address}", name or "none", "gethostbyaddr") for address, name in self.back))


def _said(answer: Answer) -> str:
    return (", ".join(answer.addresses) or answer.trouble) + (
        f", after {answer.elapsed_s:.1f} s" if answer.elapsed_s > 1 else ""
    )


def look(place: Place) -> Names:
    """Ask all at once, as a server that is gone costs seconds each time."""
    name = host_name(place)
    held = [text.partition("/")[0] for texts in addresses(place).values() for text in texts]
    wide = [text for text in held if not text.startswith(("127.", "fe80:")) and text != "::1"][:4]
    lines = hosts(place)
    with ThreadPoolExecutor(8) as pool:
        own = pool.submit(ask, place, name)
        published = pool.submit(_published, place, name)
        endpoint = pool.submit(ask, place, place.endpoint[0]) if place.endpoint is not None else None
        back = [(address, pool.submit(called, place, address)) for address in wide]
        return Names(
            own=own.result(), published=published.result(), endpoint=endpoint.result() if endpoint else None,
            back=tuple((address, answer.result()) for address, answer in back), addresses=tuple(held),
            in_file=not isinstance(lines, Unknown) and any(name in line.names for line in lines),
        )  # fmt: skip


def host_name(place: Place) -> str:
    """As uname has it."""
    if place.root == "/":
        return os.uname().nodename
    said = proc.text(place.path("/etc/hostname"))
    return said.strip() if isinstance(said, str) else "localhost"


def _published(place: Place, name: str) -> Answer:
    """What ``socket.getfqdn`` gives, looked up again."""
    full = full_name(place, name)
    return Answer(asked=name, trouble=full.why) if isinstance(full, Unknown) else ask(place, full)
