"""Launch information of a peer: number of nodes, its node rank, and the endpoint.

Precedence: options, torchrun's variables for its options (PET_*), the environment that srun and
torchrun set for their processes (:mod:`holdfast.host.processes.launched_copies`), then MASTER_ADDR
and MASTER_PORT.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from holdfast.core.errors import InvalidValue, UsageError
from holdfast.host.processes.launched_copies import LaunchedCopy

DEFAULT_PORT = 29500
_ENDPOINT = re.compile(r"(?:\[([^\[\]\s]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?", re.ASCII)


class LaunchInfo(msgspec.Struct, frozen=True, kw_only=True):
    """``is_first_on_node``: False for further processes on one node, which have nothing to do."""

    nodes: int
    node: int | None
    host: str
    port: int
    is_first_on_node: bool = True
    names: tuple[str, ...] = ()


def read_launch_info(
    environ: Mapping[str, str],
    launched: LaunchedCopy | None,
    *,
    nodes: str = "",
    node: int | None = None,
    endpoint: str = "",
) -> LaunchInfo | None:
    """Return the launch information; None for a check of one host only.

    Raises:
        InvalidValue: a number or the endpoint is invalid.
        UsageError: several nodes are specified without an endpoint, or the reverse.
    """
    size = _parse_nodes(nodes or environ.get("PET_NNODES", "")) or (
        launched.nodes if launched is not None else None
    )
    address = endpoint or environ.get("PET_RDZV_ENDPOINT", "") or _master(environ, launched)
    if size is None and not endpoint and not nodes:
        return None
    if size is None:
        raise UsageError("--rdzv-endpoint requires --nnodes N (same on every host)")
    if size == 1:
        return None
    if not address:
        raise UsageError(f"--nnodes {size} requires --rdzv-endpoint HOST:PORT (same on every host)")
    if node is None:
        node = _read_number(environ, "PET_NODE_RANK")
    if node is None and launched is not None:
        node = launched.node
    if node is not None and not 0 <= node < size:
        raise InvalidValue("--node-rank", why=f"{node} is not in 0..{size - 1}")
    host, port = parse_endpoint_options(address)
    names = launched.names if launched is not None and len(launched.names) == size else ()
    return LaunchInfo(
        nodes=size,
        node=node,
        host=host,
        port=port,
        is_first_on_node=launched is None or launched.speaks,
        names=names,
    )


def parse_endpoint_options(endpoint: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[v6]:port``, or a host without port.

    Raises:
        InvalidValue: it is none of them.
    """
    match = _ENDPOINT.fullmatch(endpoint)
    port = int(match[3] or DEFAULT_PORT) if match is not None else 0
    if match is not None and 0 < port < 1 << 16:
        return match[1] or match[2], port
    with suppress(ValueError):
        return str(ipaddress.IPv6Address(endpoint)), DEFAULT_PORT
    raise InvalidValue(
        "--rdzv-endpoint", why=f"{endpoint!r} is not HOST:PORT (use e.g. node0:29500)"
    )


def _master(environ: Mapping[str, str], launched: LaunchedCopy | None) -> str:
    """Return the endpoint of a launcher; torchrun's own store uses MASTER_PORT, so another port."""
    if launched is not None and launched.launcher == "torchrun" and launched.address:
        digest = hashlib.sha256(launched.word.encode(errors="surrogateescape")).digest()
        return f"{launched.address}:{20_000 + int.from_bytes(digest[:2], 'big') % 12_000}"
    address = (
        environ.get("PET_MASTER_ADDR")
        or environ.get("MASTER_ADDR")
        or (launched.address if launched is not None else "")
    )
    port = environ.get("PET_MASTER_PORT") or environ.get("MASTER_PORT") or str(DEFAULT_PORT)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}" if address else ""


def _parse_nodes(text: str) -> int | None:
    """Parse ``4``, or torchrun's ``2:4``, of which the maximum is used."""
    if not text:
        return None
    last = text.rsplit(":", maxsplit=1)[-1]
    if not (last.isascii() and last.isdigit() and 0 < int(last[:7]) <= 1 << 16):
        raise InvalidValue("--nnodes", why=f"{text!r} is not a number of hosts (use e.g. 2)")
    return int(last)


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
