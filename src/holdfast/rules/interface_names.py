"""Which interfaces the variables mean: NCCL's prefixes with ^ and =, gloo's and tensorpipe's exact names."""

from __future__ import annotations

from collections.abc import Sequence

#: Variables that name interfaces, and whether they are in NCCL's grammar. Sources: NCCL's user guide,
#: torch/csrc/distributed/c10d/init.cpp, torch/csrc/distributed/rpc/tensorpipe_agent.cpp.
VARIABLES = {"NCCL_SOCKET_IFNAME": True, "GLOO_SOCKET_IFNAME": False, "TP_SOCKET_IFNAME": False}


def meant(variable: str, value: str, names: Sequence[str]) -> list[str]:
    """Those of ``names`` that the variable lets through, in their order."""
    if not VARIABLES[variable]:
        wanted = {word.strip() for word in value.split(",")}
        return [name for name in names if name in wanted]
    excluded, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    words = [word.strip() for word in value.lstrip("^=").split(",") if word.strip()]
    fits = {name: any(name == word if exact else name.startswith(word) for word in words) for name in names}
    return [name for name in names if fits[name] is not excluded]
