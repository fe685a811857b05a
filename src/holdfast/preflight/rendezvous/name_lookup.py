"""Resolve names in a subprocess, so that a resolver waiting for a dead server blocks nothing."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
from collections.abc import Iterable

from holdfast.core.findings import Unknown
from holdfast.host import programs

#: getaddrinfo itself would try two servers for 5 s each, twice (resolv.conf(5)).
LIMIT_S = 3.0
_MAX_NAMES = 64
_SCRIPT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def resolve(name):
    try:
        entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(entry[4][0] for entry in entries))
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
names = json.load(sys.stdin)
with ThreadPoolExecutor(16) as pool:
    json.dump(dict(zip(names, pool.map(resolve, names))), sys.stdout)
"""


async def resolve_names(
    names: Iterable[str], limit_s: float = LIMIT_S
) -> dict[str, tuple[str, ...] | Unknown]:
    """Return the addresses of each name in resolver order; an address resolves to itself."""
    resolved: dict[str, tuple[str, ...] | Unknown] = {}
    unresolved = []
    for name in dict.fromkeys(names):
        try:
            resolved[name] = (str(ipaddress.ip_address(name.strip("[]"))),)
        except ValueError:
            unresolved.append(name)
    if unresolved:
        resolved |= await asyncio.to_thread(_run_resolver, unresolved[:_MAX_NAMES], limit_s)
    return resolved


def _run_resolver(names: list[str], limit_s: float) -> dict[str, tuple[str, ...] | Unknown]:
    command = [sys.executable, "-I", "-S", "-c", _SCRIPT]
    output = programs.run_program(command, limit_s, json.dumps(names).encode())
    if isinstance(output, Unknown):
        timed_out = "did not answer" in output.why
        why = Unknown(f"the resolver did not answer within {limit_s:g} s") if timed_out else output
        return dict.fromkeys(names, why)
    try:
        answers = json.loads(output)
    except ValueError:
        return dict.fromkeys(names, Unknown("the resolver's answer is not valid JSON"))
    return {
        name: tuple(answer)
        if isinstance(answer := answers.get(name), list)
        else Unknown(str(answer))
        for name in names
    }
