"""Recorded trees of hosts with devices, in the format of Linux.

Source: Documentation/ABI of the kernel (sysfs-bus-pci, sysfs-class-infiniband, sysfs-kernel-iommu_groups).
"""

import struct

ROOT_PORT, SWITCH_PORT = "0000:00:01.0", "0000:01:00.0"


def write(folder, files):
    """Write each file with its content below ``folder``."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text) if isinstance(text, bytes) else path.write_text(f"{text}\n")
    return folder


def device(root, bus, vendor, kind, *, above=(), driver="", group=None, **files):
    """Add a PCI device below the bridges ``above``; ``files`` are its link's and other files."""
    real = root / "sys/devices/pci0000:00" / "/".join(above) / bus
    write(
        real,
        {
            "vendor": f"{vendor:#06x}",
            "device": "0x2330",
            "class": f"{kind:#08x}",
            "numa_node": "-1",
            "config": bytes(256),
            **files,
        },
    )
    names = root / "sys/bus/pci/devices"
    names.mkdir(parents=True, exist_ok=True)
    (names / bus).symlink_to(real)
    if driver:
        module = root / "sys/bus/pci/drivers" / driver
        module.mkdir(parents=True, exist_ok=True)
        (real / "driver").symlink_to(module)
    if group is not None:
        groups = write(root / f"sys/kernel/iommu_groups/{bus}", {"type": group})
        (real / "iommu_group").symlink_to(groups)
    return real


def bridge(root, bus, *, control=None, above=(), size=4096):
    """Add a PCIe bridge; with ``control`` its configuration has an ACS capability, after another one."""
    config = bytearray(size)
    if size > 256:
        struct.pack_into(
            "<I", config, 0x100, (0x148 << 20) | (1 << 16) | 0x0001
        )  # AER, then at 0x148
        number = 0x0003 if control is None else 0x000D
        struct.pack_into("<I", config, 0x148, (1 << 16) | number)
        struct.pack_into("<HH", config, 0x148 + 4, 0x7F, control or 0)
    return device(root, bus, 0x8086, 0x060400, above=above, config=bytes(config))


def port(root, name="mlx5_0", **other):
    """Add one adapter port: active InfiniBand at 400 Gbit/s; ``other`` replaces or adds files."""
    files = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "rate": "400 Gb/sec (4X NDR)",
        "link_layer": "InfiniBand",
        "sm_lid": "0x1",
        "pkeys/0": "0xffff",
        "pkeys/1": "0x0000",
        "gids/0": "fe80:0000:0000:0000:a088:c203:0001:2345",
        "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000",
        "gid_attrs/types/0": "IB/RoCE v1",
        "counters/symbol_error": "0",
        "counters/link_downed": "0",
    } | {key.replace("__", "/"): value for key, value in other.items()}
    write(root / f"sys/class/infiniband/{name}", {"hca_type": "MT4129", "fw_ver": "28.39.1002"})
    write(root / f"sys/class/infiniband/{name}/ports/1", files)
    write(root / "dev/infiniband", {"uverbs0": ""})


def roce(root, name="mlx5_0", mtu=9000, **other):
    """Add a RoCE port with the GIDs that Linux creates: v1 and v2 of the link-local and of the IPv4 address."""
    link, four = (
        "fe80:0000:0000:0000:0e42:a1ff:fe00:0001",
        "0000:0000:0000:0000:0000:ffff:0a00:0001",
    )
    kinds = ("IB/RoCE v1", "RoCE v2") * 2
    files = {f"gids/{at}": text for at, text in enumerate((link, link, four, four))}
    files |= {f"gid_attrs/types/{at}": kind for at, kind in enumerate(kinds)}
    files |= {f"gid_attrs/ndevs/{at}": "eth2" for at in range(4)}
    port(
        root, name, link_layer="Ethernet", rate="200 Gb/sec (4X HDR)", sm_lid="0x0", **files | other
    )
    write(root / "sys/class/net/eth2", {"mtu": mtu})
