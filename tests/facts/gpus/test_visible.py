"""CUDA_VISIBLE_DEVICES as CUDA reads it."""

import pytest

from holdfast.facts.gpus import Gpu
from holdfast.facts.gpus.visible import visible

GPUS = [
    Gpu(index=n, name="a", uuid=f"GPU-{n}{n}aa-bbbb", bus=f"0000:{n}b:00.0", memory_bytes=1, memory_used_bytes=0)
    for n in range(4)
]


@pytest.mark.parametrize(
    ("said", "gpus", "wrong", "twice"),
    [
        (None, (0, 1, 2, 3), "", ""),
        ("0,1,2,3", (0, 1, 2, 3), "", ""),
        ("3, 1", (3, 1), "", ""),
        ("", (), "", ""),
        ("-1", (), "", ""),
        ("0,-1,1", (0,), "", ""),  # everything behind -1 is hidden, on purpose
        ("0,7,1", (0,), "7", ""),
        ("1gpu2", (1,), "", ""),  # as strtoul reads it
        ("0,1,0", (), "", "0"),
        ("GPU-22,GPU-00aa", (2, 0), "", ""),
        ("GPU-", (), "GPU-", ""),  # the beginning of four
        ("GPU-99", (), "GPU-99", ""),
        ("MIG-GPU-11aa-bbbb/7/0", (1,), "", ""),
        ("MIG-f3c1", (), "MIG-f3c1", ""),
        ("none", (), "none", ""),
    ],
)
def test_selection(said, gpus, wrong, twice):
    seen = visible({} if said is None else {"CUDA_VISIBLE_DEVICES": said}, GPUS)
    assert (seen.gpus, seen.wrong, seen.twice) == (gpus, wrong, twice)


def test_order():
    assert visible({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, GPUS).by_bus
    assert not visible({}, GPUS).by_bus
