"""Look at this host for ``holdfast env --recommend``: GPUs, RDMA ports, interfaces, and the way to the rendezvous."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import BadValue
from holdfast.facts import line_rates
from holdfast.facts.checks import PORTS, Place, infiniband, interfaces, routes
from holdfast.facts.versions import nccl_and_torch
from holdfast.findings import Unknown
from holdfast.rules.environment.recommended import Machine, Profile, Recommended, recommend, user_set

#: Where a launcher's variables say the rendezvous is, and its port where that stands beside.
_ENDPOINTS = (("PET_RDZV_ENDPOINT", ""), ("PET_MASTER_ADDR", "PET_MASTER_PORT"), ("MASTER_ADDR", "MASTER_PORT"))


def recommend_here(place: Place, wanted: Profile | None = None, nodes: int | None = None) -> Recommended:
    """What fits the host at ``place``; the rendezvous is ``place.endpoint``, or what the environment says."""
    endpoint = place.endpoint or endpoint_of(place)
    found = interfaces.look(place).interfaces
    nccl, torch = nccl_and_torch()
    machine = Machine(
        environ=user_set(place.environ),
        gpus=len(line_rates.gpus(place.path("/sys"))),
        cores=_cores(),
        workers=place.workers,
        nodes=nodes or _nodes(place),
        endpoint=endpoint[0] if endpoint else "",
        way=_way(place, endpoint),
        interfaces=() if isinstance(found, Unknown) else found,
        ports=infiniband.look(place).ports,
        nccl=nccl,
        torch=torch,
    )
    return recommend(machine, wanted)


def parse_endpoint(text: str, port: str = "") -> tuple[str, int]:
    """Host and port of ``HOST[:PORT]``, ``[IPV6]:PORT`` or an address of IPv6; torchrun's port where there is none.

    Raises:
        BadValue: it is neither.
    """
    if text.startswith("["):
        host, _, given = text[1:].partition("]")
        given = given.removeprefix(":")
    elif text.count(":") > 1:
        host, given = text, ""
    else:
        host, _, given = text.partition(":")
    digits = given or port or str(PORTS[0])
    if not host or not digits.isascii() or not digits.isdigit() or not 0 <= int(digits[:6]) <= 65535:
        raise BadValue(
            "the rendezvous", why=f"{text!r} is no HOST[:PORT]", next_step="say it as --rdzv-endpoint says it"
        )
    return host, int(digits)


def endpoint_of(place: Place) -> tuple[str, int] | None:
    """The rendezvous that the launcher's variables name; None where they do not, or cannot be read."""
    for name, port in _ENDPOINTS:
        if place.environ.get(name):
            try:
                return parse_endpoint(place.environ[name], place.environ.get(port, ""))
            except BadValue:
                return None
    return None


def _way(place: Place, endpoint: tuple[str, int] | None) -> routes.Way | None:
    """The first way that leads there; why there is none, where the name has no address."""
    if endpoint is None:
        return None
    host = Place(root=place.root, environ=place.environ, endpoint=endpoint)
    ways = routes.look(host).ways
    if isinstance(ways, Unknown):
        return routes.Way(address="", refused=ways.why)
    open_ways = [way for way in ways if not way.refused]
    return next(iter([*open_ways, *ways]), routes.Way(address="", refused="there is no such name"))


def _nodes(place: Place) -> int | None:
    """Hosts of the job, where a launcher's variables say it."""
    for name in ("SLURM_NNODES", "PET_NNODES", "GROUP_WORLD_SIZE"):
        digits = place.environ.get(name, "").rpartition(":")[2]
        if digits.isdigit():
            return int(digits[:6])
    return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if Path("/proc").exists() else os.cpu_count() or 1
