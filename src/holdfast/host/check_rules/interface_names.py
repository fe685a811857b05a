"""Matches network interfaces against the variables that select them.

NCCL's grammar has prefixes with ^ and =; gloo's and tensorpipe's variables have exact names.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Variables that name interfaces, and whether they use NCCL's grammar. Sources: NCCL's user guide,
#: torch/csrc/distributed/c10d/init.cpp, torch/csrc/distributed/rpc/tensorpipe_agent.cpp.
INTERFACE_VARIABLES = {
    "NCCL_SOCKET_IFNAME": True,
    "GLOO_SOCKET_IFNAME": False,
    "TP_SOCKET_IFNAME": False,
}


def matching_interfaces(variable: str, value: str, names: Sequence[str]) -> list[str]:
    """Return the interfaces of ``names`` that the variable selects, in their order."""
    if not INTERFACE_VARIABLES[variable]:
        exact_names = {word.strip() for word in value.split(",")}
        return [name for name in names if name in exact_names]
    excluded, exact = value.startswith("^"), value.lstrip("^").startswith("=")
    words = [word.strip() for word in value.lstrip("^=").split(",") if word.strip()]
    matches = {
        name: any(name == word if exact else name.startswith(word) for word in words)
        for name in names
    }
    return [name for name in names if matches[name] is not excluded]
