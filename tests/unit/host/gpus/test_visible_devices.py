"""Parsing of CUDA_VISIBLE_DEVICES."""

import pytest

from holdfast.host.gpus import HostGpu
from holdfast.host.gpus.visible_devices import parse_visible_devices

GPUS = [
    HostGpu(
        index=n,
        name="a",
        uuid=f"GPU-{n}{n}aa-bbbb",
        bus=f"0000:{n}b:00.0",
        memory_bytes=1,
        memory_used_bytes=0,
    )
    for n in range(4)
]


@pytest.mark.parametrize(
    ("value", "gpus", "invalid", "duplicate"),
    [
        (None, (0, 1, 2, 3), "", ""),
        ("0,1,2,3", (0, 1, 2, 3), "", ""),
        ("3, 1", (3, 1), "", ""),
        ("", (), "", ""),
        ("-1", (), "", ""),
        ("0,-1,1", (0,), "", ""),  # -1 hides all later entries on purpose
        ("0,7,1", (0,), "7", ""),
        ("1gpu2", (1,), "", ""),  # as strtoul reads it
        ("0,1,0", (), "", "0"),
        ("GPU-22,GPU-00aa", (2, 0), "", ""),
        ("GPU-", (), "GPU-", ""),  # a prefix of four UUIDs
        ("GPU-99", (), "GPU-99", ""),
        ("MIG-GPU-11aa-bbbb/7/0", (1,), "", ""),
        ("MIG-f3c1", (), "MIG-f3c1", ""),
        ("none", (), "none", ""),
    ],
)
def test_selection(value, gpus, invalid, duplicate):
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    visible = parse_visible_devices(environ, GPUS)
    assert (visible.gpus, visible.invalid, visible.duplicate) == (gpus, invalid, duplicate)


def test_order():
    assert parse_visible_devices({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, GPUS).by_bus
    assert not parse_visible_devices({}, GPUS).by_bus
