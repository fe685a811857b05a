"""What a copy was told of the job: how many nodes, which of them it is, and where they meet.

Options come first, then torchrun's own variables for its options (PET_*), then what srun and torchrun leave in the
environment of those they start (:mod:`holdfast.facts.copies`), then MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Mapping
from contextlib import suppress

import msgspec

from holdfast.errors import BadValue
from holdfast.facts.copies import Copy

DEFAULT_PORT = 29500
_ENDPOINT = re.compile(r"(?:\[([^\[\]\s]+)\]|([^:\[\]\s]+))(?::(\d{1,5}))?", re.ASCII)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """``speaks``: False for further copies on one node, which have nothing to do."""

    nodes: int
    node: int | None
    host: str
    port: int
    speaks: bool = True
    names: tuple[str, ...] = ()


def told(
    environ: Mapping[str, str], copy: Copy | None, *, nodes: str = "", node: int | None = None, endpoint: str = ""
) -> Told | None:
    """What was told; None where this is about one host alone.

    Raises:
        BadValue: a number or the endpoint cannot be read, or several nodes are told and no endpoint.
    """
    size = _nodes(nodes or environ.get("PET_NNODES", "")) or (copy.nodes if copy is not None else None)
    where = endpoint or environ.get("PET_RDZV_ENDPOINT", "") or _master(environ, copy)
    if size is None and not endpoint and not nodes:
        return None
    if size is None:
        raise BadValue("--rdzv-endpoint", why="it is not said how many hosts meet there", next_step="add --nnodes N")
    if size == 1:
        return None
    if not where:
        raise BadValue(
            "--nnodes", why=f"it is not said where {size} hosts meet",
            next_step="add --rdzv-endpoint HOST:PORT, the same on every host",
        )  # fmt: skip
    if node is None:
        node = _number(environ, "PET_NODE_RANK")
    if node is None and copy is not None:
        node = copy.node
    if node is not None and not 0 <= node < size:
        raise BadValue("--node-rank", why=f"{node} is not one of 0 to {size - 1}, as there are {size} nodes")
    host, port = parse(where)
    names = copy.names if copy is not None and len(copy.names) == size else ()
    return Told(nodes=size, node=node, host=host, port=port, speaks=copy is None or copy.speaks, names=names)


def parse(endpoint: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``[v6]:port``, or of a host alone.

    Raises:
        BadValue: it is none of them.
    """
    found = _ENDPOINT.fullmatch(endpoint)
    port = int(found[3] or DEFAULT_PORT) if found is not None else 0
    if found is not None and 0 < port < 1 << 16:
        return found[1] or found[2], port
    with suppress(ValueError):
        return str(ipaddress.IPv6Address(endpoint)), DEFAULT_PORT
    raise BadValue("--rdzv-endpoint", why=f"{endpoint!r} is not HOST:PORT", next_step="say it as node0:29500")


def _master(environ: Mapping[str, str], copy: Copy | None) -> str:
    """Where a launcher has the copies meet. The store of torchrun itself has MASTER_PORT, so it is another port."""
    if copy is not None and copy.launcher == "torchrun" and copy.address:
        digest = hashlib.sha256(copy.word.encode(errors="surrogateescape")).digest()
        return f"{copy.address}:{20_000 + int.from_bytes(digest[:2], 'big') % 12_000}"
    address = environ.get("PET_MASTER_ADDR") or environ.get("MASTER_ADDR") or (copy.address if copy is not None else "")
    port = environ.get("PET_MASTER_PORT") or environ.get("MASTER_PORT") or str(DEFAULT_PORT)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}" if address else ""


def _nodes(text: str) -> int | None:
    """``4``, or torchrun's ``2:4``, of which the larger is meant."""
    if not text:
        return None
    last = text.rsplit(":", maxsplit=1)[-1]
    if not (last.isascii() and last.isdigit() and 0 < int(last[:7]) <= 1 << 16):
        raise BadValue("--nnodes", why=f"{text!r} is no number of hosts", next_step="say it as 2")
    return int(last)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
