"""The firewall of this host: rules of nftables and iptables, from any source.

Read with ``nft`` and ``iptables-save``, which need root; nothing is changed. ufw's settings are
world-readable.
"""

from __future__ import annotations

from holdfast.core.findings import Fact, Unknown
from holdfast.host import programs
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.checks.network.interfaces import InterfacesResult
from holdfast.host.checks.network.interfaces import inspect as inspect_interfaces
from holdfast.host.checks.network.ports import inspect as inspect_ports
from holdfast.host.checks.network.resolver import remote_endpoint_addresses
from holdfast.host.netfilter import FirewallChain, from_iptables, from_nft
from holdfast.host.processes import proc

_LIMIT_S = 3.0
_UFW, _UFW_DEFAULT = "/etc/ufw/ufw.conf", "/etc/default/ufw"
_LEGACY = "/proc/net/ip_tables_names"


class FirewallResult(CheckResult, frozen=True, kw_only=True):
    """All filter chains.

    ``manager`` is the program that generates them (``ufw``, ``firewalld``), if recognized.
    ``ufw_policy``: ufw's default input policy if ufw is active. ``legacy``: why rules of legacy
    iptables, which only iptables-save can read, are missing. ``networks``: interface and address
    of this host's networks, where peers are expected. ``ephemeral``: range of ports that the
    kernel assigns. ``endpoint``: addresses of the endpoint if it is another host.
    """

    chains: tuple[FirewallChain, ...] | Unknown
    manager: str = ""
    ufw_policy: str = ""
    legacy: Unknown | None = None
    networks: tuple[tuple[str, str], ...] = ()
    ephemeral: tuple[int, int] | None = None
    endpoint: tuple[str, ...] = ()

    def facts(self) -> tuple[Fact, ...]:
        """Return the chains in which packets of this host arrive or leave."""
        facts = (
            [check_fact("ufw", f"active, default: {self.ufw_policy}", f"{_UFW}, {_UFW_DEFAULT}")]
            if self.ufw_policy
            else []
        )
        if isinstance(self.chains, Unknown):
            return (check_fact("firewall", self.chains, "nft, iptables-save"), *facts)
        hooked = [chain for chain in self.chains if chain.hook in {"input", "output"}]
        count = sum(len(chain.rules) for chain in self.chains)
        by = f", managed by {self.manager}" if self.manager else ""
        text = f"{count} rules in {len(self.chains)} chains{by}" if count else "no rules"
        facts.insert(0, check_fact("firewall", text, "nft list ruleset, iptables-save"))
        facts += [
            check_fact(
                f"{chain.family} {chain.table} {chain.name}",
                f"{chain.hook}, policy {chain.policy}, {len(chain.rules)} rules",
                "nft, iptables-save",
            )
            for chain in hooked
        ]
        return (
            *facts,
            *((check_fact("legacy iptables", self.legacy, _LEGACY),) if self.legacy else ()),
        )


def inspect(context: CheckContext) -> FirewallResult:
    """Run nft and iptables-save; a recorded tree has only ufw's settings."""
    chains, legacy = (
        _read_chains()
        if context.root == "/"
        else (Unknown("a recorded tree has no firewall rules"), None)
    )
    interfaces, ephemeral = inspect_interfaces(context), inspect_ports(context).ephemeral
    return FirewallResult(
        chains=chains,
        manager="" if isinstance(chains, Unknown) else _detect_manager(chains),
        ufw_policy=_ufw_policy(context),
        legacy=legacy,
        networks=_outer_networks(interfaces),
        ephemeral=None if isinstance(ephemeral, Unknown) else ephemeral,
        endpoint=remote_endpoint_addresses(context),
    )


def _outer_networks(result: InterfacesResult) -> tuple[tuple[str, str], ...]:
    """Return interface and address with prefix for each interface that leads to other hosts."""
    return tuple(
        (interface.name, text)
        for interface in result.outer()
        for text in (*interface.routable_addresses(4), *interface.routable_addresses(6))
    )


def _read_chains() -> tuple[tuple[FirewallChain, ...] | Unknown, Unknown | None]:
    """Read all rules: nft lacks legacy iptables, and iptables-save shows its own tables better."""
    output = programs.run_program(("nft", "-j", "list", "ruleset"), _LIMIT_S)
    nft_chains = output if isinstance(output, Unknown) else from_nft(output)
    iptables_chains: list[FirewallChain] = []
    failures = []
    for program, family in (("iptables-save", "ip"), ("ip6tables-save", "ip6")):
        saved = programs.run_program((program,), _LIMIT_S)
        parsed = saved if isinstance(saved, Unknown) else from_iptables(saved, family)
        if isinstance(parsed, Unknown):
            failures.append(parsed)
        else:
            iptables_chains += parsed
    if isinstance(nft_chains, Unknown):
        if iptables_chains:
            return tuple(iptables_chains), None
        reasons = dict.fromkeys(why.why for why in (nft_chains, *failures[:1]))
        return Unknown("; ".join(reasons)), None
    own = [chain for chain in nft_chains if not _is_iptables_chain(chain) or failures]
    missing = failures[0] if failures and _has_legacy_tables() else None
    return (*own, *iptables_chains), missing


def _is_iptables_chain(chain: FirewallChain) -> bool:
    return chain.table == "filter" and chain.family in {"ip", "ip6"} and chain.name.isupper()


def _has_legacy_tables() -> bool:
    names = proc.read_text(_LEGACY)
    return isinstance(names, str) and "filter" in names.split()


def _detect_manager(chains: tuple[FirewallChain, ...]) -> str:
    if any(chain.table == "firewalld" for chain in chains):
        return "firewalld"
    if any(chain.name.startswith("ufw") for chain in chains):
        return "ufw"
    return ""


def _ufw_policy(context: CheckContext) -> str:
    """Return ufw's default input policy; empty if ufw is inactive or not installed."""
    switch, defaults = (
        proc.read_text(context.path(_UFW)),
        proc.read_text(context.path(_UFW_DEFAULT)),
    )
    if isinstance(switch, Unknown) or "ENABLED=yes" not in switch.splitlines():
        return ""
    lines = defaults.splitlines() if isinstance(defaults, str) else []
    policies = [
        line.partition("=")[2].strip('"').lower()
        for line in lines
        if line.startswith("DEFAULT_INPUT_POLICY=")
    ]
    return policies[0] if policies else "drop"
