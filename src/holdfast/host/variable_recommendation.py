"""Observe this host to recommend variables for it: GPUs, RDMA ports, interfaces, and routes."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.core.errors import InvalidValue
from holdfast.core.findings import Unknown
from holdfast.host import line_rates
from holdfast.host.checks import DEFAULT_PORTS, CheckContext
from holdfast.host.checks.devices import infiniband
from holdfast.host.checks.network import interfaces, routes
from holdfast.host.variable_rules.recommended import (
    JobProfile,
    MachineFacts,
    RecommendedVariable,
    recommend,
    set_by_user,
)
from holdfast.host.versions import nccl_and_torch

#: Launcher variables of the rendezvous address, and of its port if that is separate.
_ENDPOINTS = (
    ("PET_RDZV_ENDPOINT", ""),
    ("PET_MASTER_ADDR", "PET_MASTER_PORT"),
    ("MASTER_ADDR", "MASTER_PORT"),
)


def recommend_here(
    context: CheckContext,
    profile: JobProfile | None = None,
    nodes: int | None = None,
    *,
    here_only: bool = False,
) -> RecommendedVariable:
    """Return recommendations for the host in ``context``.

    The rendezvous is ``context.endpoint``, or the one in the environment. ``here_only``: not for
    other hosts, which may have GPUs.
    """
    endpoint = context.endpoint or endpoint_of(context)
    local_interfaces = interfaces.inspect(context).interfaces
    nccl, torch = nccl_and_torch()
    machine = MachineFacts(
        environ=set_by_user(context.environ),
        gpus=len(line_rates.kernel_gpu_ids(context.path("/sys"))),
        cores=_cores(),
        workers=context.workers,
        nodes=nodes or _nodes(context),
        endpoint=endpoint[0] if endpoint else "",
        route=_route(context, endpoint),
        interfaces=() if isinstance(local_interfaces, Unknown) else local_interfaces,
        ports=infiniband.inspect(context).ports,
        nccl=nccl,
        torch=torch,
    )
    return recommend(machine, profile, here_only=here_only)


def parse_endpoint(text: str, port: str = "") -> tuple[str, int]:
    """Return host and port of ``HOST[:PORT]``, ``[IPV6]:PORT`` or IPv6; default: torchrun's port.

    Raises:
        InvalidValue: it is neither.
    """
    if text.startswith("["):
        host, _, own_port = text[1:].partition("]")
        own_port = own_port.removeprefix(":")
    elif text.count(":") > 1:
        host, own_port = text, ""
    else:
        host, _, own_port = text.partition(":")
    digits = own_port or port or str(DEFAULT_PORTS[0])
    if (
        not host
        or not digits.isascii()
        or not digits.isdigit()
        or not 0 <= int(digits[:6]) <= 65535
    ):
        raise InvalidValue("--rdzv-endpoint", why=f"{text!r} is not HOST[:PORT]")
    return host, int(digits)


def endpoint_of(context: CheckContext) -> tuple[str, int] | None:
    """Return the rendezvous in the launcher's variables; None if there is none or it is invalid."""
    for name, port in _ENDPOINTS:
        if context.environ.get(name):
            try:
                return parse_endpoint(context.environ[name], context.environ.get(port, ""))
            except InvalidValue:
                return None
    return None


def _route(context: CheckContext, endpoint: tuple[str, int] | None) -> routes.RouteLookup | None:
    """Return the first usable route; why there is none if the name has no address."""
    if endpoint is None:
        return None
    host = CheckContext(root=context.root, environ=context.environ, endpoint=endpoint)
    ways = routes.inspect(host).routes
    if isinstance(ways, Unknown):
        return routes.RouteLookup(address="", refused=ways.why)
    usable = [way for way in ways if not way.refused]
    return next(iter([*usable, *ways]), routes.RouteLookup(address="", refused="no such name"))


def _nodes(context: CheckContext) -> int | None:
    """Return the number of hosts from the launcher's variables, if set."""
    for name in ("SLURM_NNODES", "PET_NNODES", "GROUP_WORLD_SIZE"):
        digits = context.environ.get(name, "").rpartition(":")[2]
        if digits.isdigit():
            return int(digits[:6])
    return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if Path("/proc").exists() else os.cpu_count() or 1
