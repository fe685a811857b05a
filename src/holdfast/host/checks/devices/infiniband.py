"""InfiniBand and RoCE ports, read from /sys: state, rate, GIDs, partitions, errors."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from holdfast.core.findings import Fact
from holdfast.host.checks import CheckContext, CheckResult, check_fact
from holdfast.host.processes import proc

DEVICES = "/sys/class/infiniband"
_MAX_GIDS = 64
#: Error counters of a port, and those of the adapter (hw_counters); data counters are not read.
_COUNTERS = tuple(
    """
    symbol_error link_error_recovery link_downed port_rcv_errors port_xmit_discards
    local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped
    """.split()
)
_HARDWARE_COUNTERS = (
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "roce_adp_retrans",
    "rx_icrc_encapsulated",
    "np_cnp_sent",
    "rp_cnp_handled",
)
_RATE = re.compile(r"([\d.]+) Gb/sec(?: \((\d+)X)?")


class Gid(msgspec.Struct, frozen=True):
    """An address of a port. ``kind`` is ``IB/RoCE v1`` or ``RoCE v2``.

    ``interface`` is its network interface.
    """

    index: int
    address: str
    kind: str
    interface: str

    @property
    def is_roce_v2(self) -> bool:
        """Whether it is an address of RoCE v2, which is routable and which NCCL uses."""
        return "v2" in self.kind

    @property
    def is_ipv4(self) -> bool:
        """Whether it is an IPv4-mapped IPv6 address."""
        return self.address.startswith("0000:0000:0000:0000:0000:ffff:")


class Port(msgspec.Struct, frozen=True, kw_only=True):
    """One port.

    ``state`` and ``physical`` are the kernel's names without their numbers; ``lanes`` is the link
    width. ``gids`` are those in use; ``pkeys`` the partition keys by index (0: unused entry);
    ``errors`` the non-zero counters.
    """

    device: str
    number: int
    layer: str
    state: str
    physical: str
    rate_gbits: float | None
    lanes: int | None
    gids: tuple[Gid, ...]
    pkeys: tuple[int, ...]
    errors: dict[str, int]
    mtu: int | None = None

    @property
    def name(self) -> str:
        """Name in the format of NCCL_IB_HCA."""
        return f"{self.device}:{self.number}"

    @property
    def is_active(self) -> bool:
        """Whether NCCL would use the port."""
        return self.state == "ACTIVE"


class InfiniBandResult(CheckResult, frozen=True, kw_only=True):
    """All ports, and whether device files exist to open the adapters (``/dev/infiniband``)."""

    ports: tuple[Port, ...] = ()
    openable: bool = True

    def facts(self) -> tuple[Fact, ...]:
        """Return the facts; see :meth:`CheckResult.facts`."""
        if self.absent:
            return (check_fact("InfiniBand and RoCE", self.absent, DEVICES),)
        return tuple(describe_port(port) for port in self.ports)


def describe_port(port: Port) -> Fact:
    """Return one port in a line."""
    words = [
        port.layer,
        port.state,
        port.physical,
        f"{port.rate_gbits:g} Gbit/s" if port.rate_gbits else "no rate",
    ]
    words += [f"{name} {count}" for name, count in port.errors.items()]
    return check_fact(
        f"{port.device} port {port.number}",
        ", ".join(filter(None, words)),
        f"{DEVICES}/{port.device}/ports/{port.number}",
    )


def inspect(context: CheckContext) -> InfiniBandResult:
    """Read every port."""
    folder = context.path(DEVICES)
    ports = [
        _read_port(context, device, port)
        for device in _entries(folder)
        for port in _entries(device / "ports")
    ]
    readable = tuple(port for port in ports if port is not None)
    if not readable:
        return InfiniBandResult(absent="no adapter in /sys/class/infiniband")
    return InfiniBandResult(
        ports=readable, openable=any(context.path("/dev/infiniband").glob("uverbs*"))
    )


def _read_port(context: CheckContext, device: Path, port: Path) -> Port | None:
    if not port.name.isdigit() or port.name == "0":
        return None  # port 0 is the management port of a switch
    rate = _RATE.match(_first_line(port / "rate"))
    gids = _read_gids(port)
    interface = next((gid.interface for gid in gids if gid.interface), "")
    mtu = proc.read_number(context.path(f"/sys/class/net/{interface}/mtu")) if interface else None
    return Port(
        device=device.name,
        number=int(port.name),
        layer=_first_line(port / "link_layer"),
        state=_state_word(port / "state"),
        physical=_state_word(port / "phys_state"),
        rate_gbits=float(rate[1]) if rate else None,
        lanes=int(rate[2]) if rate and rate[2] else None,
        gids=gids,
        pkeys=tuple(_read_hex(entry) for entry in _numbered_entries(port / "pkeys")),
        errors=_read_errors(port),
        mtu=mtu if isinstance(mtu, int) else None,
    )


def _read_gids(port: Path) -> tuple[Gid, ...]:
    gids = []
    for entry in _numbered_entries(port / "gids")[:_MAX_GIDS]:
        address = _first_line(entry)
        # An unused entry is all zeros, or the link-local prefix followed by zeros.
        if not address or address.replace("0", "").replace(":", "") in ("", "fe8"):
            continue
        attributes = port / "gid_attrs"
        gids.append(
            Gid(
                int(entry.name),
                address,
                _first_line(attributes / "types" / entry.name),
                _first_line(attributes / "ndevs" / entry.name),
            )
        )
    return tuple(gids)


def _read_errors(port: Path) -> dict[str, int]:
    errors = {}
    for folder, names in (("counters", _COUNTERS), ("hw_counters", _HARDWARE_COUNTERS)):
        for name in names:
            count = proc.read_number(port / folder / name)
            if isinstance(count, int) and count > 0:
                errors[name] = count
    return errors


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())[:128]
    except OSError:
        return []


def _numbered_entries(folder: Path) -> list[Path]:
    return sorted(
        (entry for entry in _entries(folder) if entry.name.isdigit()),
        key=lambda entry: int(entry.name),
    )


def _first_line(path: Path) -> str:
    content = proc.read_text(path)
    return content.partition("\n")[0].strip() if isinstance(content, str) else ""


def _state_word(path: Path) -> str:
    """Return the name of a state: ``4: ACTIVE`` is ACTIVE."""
    return _first_line(path).partition(":")[2].strip()


def _read_hex(path: Path) -> int:
    try:
        return int(_first_line(path), 16)
    except ValueError:
        return 0
