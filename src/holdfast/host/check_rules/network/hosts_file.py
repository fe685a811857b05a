"""Judges /etc/hosts: this host's name at a loopback, foreign or second address."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

from holdfast.causes.network.hostname_resolution import HOSTNAME_RESOLUTION
from holdfast.causes.remedies import by_hand
from holdfast.core.findings import Finding, Level, Subject, Unknown, make_finding
from holdfast.host.checks import CheckContext, check_fact
from holdfast.host.checks.network.hosts_file import HOSTS_PATH, HostsFileResult, describe_line
from holdfast.host.checks.network.resolver import HostsLine, is_address


def judge(result: HostsFileResult, context: CheckContext) -> Iterator[Finding]:
    """Report warnings, because a job on one host still runs.

    Errors if the endpoint is another host.
    """
    if isinstance(result.lines, Unknown):
        return
    for line in (line for line in result.lines if not is_address(line.address) or not line.names):
        yield _line_finding(
            result,
            line,
            Level.NOTE,
            f"line {line.number} of {HOSTS_PATH} is not an address with names: it is ignored",
            0.9,
        )
    own = [line for line in result.lines_with(result.name) if is_address(line.address)]
    yield from _judge_own_lines(result, own, context)
    yield from _judge_endpoint_lines(result, context)
    if not any(
        is_address(line.address) and ip_address(line.address).is_loopback
        for line in result.lines_with("localhost")
    ):
        yield make_finding(
            HOSTNAME_RESOLUTION,
            f"{HOSTS_PATH} has no line for localhost at 127.0.0.1: launchers that use the name on "
            "one host depend on DNS for it",
            level=Level.WARNING,
            evidence=result.facts(),
            confidence=0.5,
        )


def _judge_own_lines(
    result: HostsFileResult, own: list[HostsLine], context: CheckContext
) -> Iterator[Finding]:
    """The resolver uses the first matching line (for each IP version) and ignores the others."""
    if not own:
        return
    first, remote = own[0], result.endpoint_is_remote
    if result.name.partition(".")[0] != "localhost" and ip_address(first.address).is_loopback:
        gloo_interface = context.environ.get("GLOO_SOCKET_IFNAME")
        yield _line_finding(
            result,
            first,
            Level.ERROR if remote and not gloo_interface else Level.WARNING,
            f"line {first.number} of {HOSTS_PATH} maps this host's name {result.name} to "
            f"{first.address}: gloo publishes {first.address} for this host, and its peers on "
            "other hosts connect to themselves",
            0.9 if remote else 0.7,
        )
    elif not ip_address(first.address).is_loopback and first.address not in result.addresses:
        yield _line_finding(
            result,
            first,
            Level.WARNING,
            f"line {first.number} of {HOSTS_PATH} maps {result.name} to {first.address}, which is "
            "not an address of this host: peers connect to the wrong host",
            0.8,
        )
    different = sorted({line.address for line in own if ip_address(line.address).version == 4})
    if len(different) > 1:
        yield _line_finding(
            result,
            own[1],
            Level.NOTE,
            f"{HOSTS_PATH} maps {result.name} to {' and to '.join(different)}: which one is used "
            "depends on line order and on the program",
            0.6,
        )


def _judge_endpoint_lines(result: HostsFileResult, context: CheckContext) -> Iterator[Finding]:
    if context.endpoint is None or context.endpoint[0] in {"localhost", result.name}:
        return
    for line in result.lines_with(context.endpoint[0])[:1]:
        if is_address(line.address) and ip_address(line.address).is_loopback:
            yield _line_finding(
                result,
                line,
                Level.WARNING,
                f"line {line.number} of {HOSTS_PATH} maps the endpoint {context.endpoint[0]} to "
                f"{line.address}: unless this host is the endpoint, it connects to itself",
                0.7,
            )


def _line_finding(
    result: HostsFileResult, line: HostsLine, level: Level, message: str, confidence: float
) -> Finding:
    cause = HOSTNAME_RESOLUTION
    address = next(
        (text for text in result.addresses if "." in text and not text.startswith("127.")),
        "LOCAL_ADDRESS",
    )
    change = by_hand(
        f"In line {line.number} of {HOSTS_PATH}, map {result.name} to an address that other "
        f"hosts can reach (possibly `{address} {result.name}`)."
    )
    interface = by_hand(
        "If the file cannot be changed, set the interface that reaches the other hosts.",
        f"export GLOO_SOCKET_IFNAME={result.interfaces.get(address, 'INTERFACE')}",
    )
    names_this_host = result.name in line.names
    return make_finding(
        cause,
        message,
        level=level,
        subject=Subject(file=HOSTS_PATH, line=line.number),
        evidence=(
            check_fact(f"line {line.number}", describe_line(line), f"{HOSTS_PATH}:{line.number}"),
            *result.facts()[:1],
        ),
        remedies=(change, interface, *cause.remedies[:1]) if names_this_host else cause.remedies,
        confidence=confidence,
    )
