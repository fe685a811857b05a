"""What names mean on this host, asked in a process of its own: a resolver that waits for a dead server stops nobody."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import sys
from collections.abc import Iterable

from holdfast.facts import programs
from holdfast.findings import Unknown

#: getaddrinfo alone would try two servers for 5 s each, twice (resolv.conf(5)).
LIMIT_S = 3.0
_MOST_NAMES = 64
_ASK = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def ask(name):
    try:
        return list(dict.fromkeys(entry[4][0] for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)))
    except (OSError, UnicodeError) as error:
        return str(getattr(error, "strerror", None) or error)
names = json.load(sys.stdin)
with ThreadPoolExecutor(16) as pool:
    json.dump(dict(zip(names, pool.map(ask, names))), sys.stdout)
"""


async def meaning(names: Iterable[str], limit_s: float = LIMIT_S) -> dict[str, tuple[str, ...] | Unknown]:
    """The addresses that each name means here, in the order in which they are tried; an address means itself."""
    found: dict[str, tuple[str, ...] | Unknown] = {}
    asked = []
    for name in dict.fromkeys(names):
        try:
            found[name] = (str(ipaddress.ip_address(name.strip("[]"))),)
        except ValueError:
            asked.append(name)
    if asked:
        found |= await asyncio.to_thread(_aside, asked[:_MOST_NAMES], limit_s)
    return found


def _aside(names: list[str], limit_s: float) -> dict[str, tuple[str, ...] | Unknown]:
    command = [sys.executable, "-I", "-S", "-c", _ASK]
    said = programs.said(command, limit_s, json.dumps(names).encode())
    if isinstance(said, Unknown):
        slow = Unknown(f"the resolver did not answer within {limit_s:g} s") if "did not answer" in said.why else said
        return dict.fromkeys(names, slow)
    try:
        answers = json.loads(said)
    except ValueError:
        return dict.fromkeys(names, Unknown("the resolver gave no answer that can be read"))
    return {
        name: tuple(answer) if isinstance(answer := answers.get(name), list) else Unknown(str(answer)) for name in names
    }
