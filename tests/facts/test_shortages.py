"""What the errors of allocators tell: in the words of torch's versions and of other devices (numbers are made up)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.facts.shortages import Killed, Process, Shortage, killed, parse

GIB, MIB = 1 << 30, 1 << 20
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 80.00 GiB "
    "of which 1.50 GiB is free. Process 81034 has 4.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 74.50 GiB memory in use. {allowed}Of the allocated memory 60.00 GiB is allocated by PyTorch, {graphs}and "
    "13.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
)
ALL = Shortage(
    device="CUDA", gpu=3, wanted=2 * GIB, capacity=80 * GIB, free=GIB + GIB // 2, mine=74 * GIB + GIB // 2,
    allocated=60 * GIB, idle=13 * GIB, others=(Process(81034, 4 * GIB),),
)  # fmt: skip


def test_the_words_of_today():
    found = parse(NEW.format(allowed="", graphs=""))
    assert found == ALL
    assert (found.held_by_others, found.besides) == (4 * GIB, GIB + GIB // 2)


def test_a_limit_and_pools_of_graphs():
    graphs = "with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), "
    found = parse(NEW.format(allowed="40.00 GiB allowed; ", graphs=graphs))
    assert (found.allowed, found.graphs, found.allocated) == (40 * GIB, 512 * MIB, 60 * GIB)


def test_the_words_of_2_1_with_their_misspelling():
    assert parse(NEW.format(allowed="", graphs="").replace("capacity", "capacty")) == ALL


@pytest.mark.parametrize("device", ["CUDA", "HIP", "NPU"])
def test_the_words_before_2_1(device):
    found = parse(
        f"RuntimeError: {device} out of memory. Tried to allocate 20.00 MiB ({'NPU' if device == 'NPU' else 'GPU'} 1; "
        "40.00 GiB total capacity; 30.00 GiB already allocated; 12.00 MiB free; 38.00 GiB reserved in total by PyTorch)"
    )
    assert found == Shortage(
        device=device, gpu=1, wanted=20 * MIB, capacity=40 * GIB, free=12 * MIB, allocated=30 * GIB, idle=8 * GIB
    )


def test_in_a_container_the_process_that_holds_what_torch_reserved_is_this_one():
    found = parse(
        "CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.00 GiB of which 160.00 MiB "
        "is free. Process 7 has 1.00 GiB memory in use. Process 47694 has 42.50 GiB memory in use. Of the allocated "
        "memory 41.00 GiB is allocated by PyTorch, and 400.00 MiB is reserved by PyTorch but unallocated."
    )
    assert (found.mine, found.others, found.gpu) == (42 * GIB + GIB // 2, (Process(7, GIB),), None)


def test_other_devices_and_the_host():
    xpu = (
        "XPU out of memory. Tried to allocate 192.00 MiB. GPU 3 has a total capacity of 32.00 GiB of which 13.00 GiB "
        "is free."
    )
    mps = (
        "MPS backend out of memory (MPS allocated: 17.00 GiB, other allocations: 384.00 KiB, max allowed: 20.00 GiB). "
        "Tried to allocate 4.00 GiB on private pool."
    )
    cpu = "data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes."
    numpy = (
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1073741824,)"
    )
    nccl = "node1:71:90 [3] misc/alloc.cc:12 NCCL WARN Failed to CUDA calloc async 6291456 bytes"
    assert parse(xpu) == Shortage(device="XPU", gpu=3, wanted=192 * MIB, capacity=32 * GIB, free=13 * GIB)
    assert parse(mps) == Shortage(device="MPS", wanted=4 * GIB, allowed=20 * GIB, allocated=17 * GIB)
    assert parse(cpu) == Shortage(device="host", wanted=16 * GIB)
    assert parse(numpy) == Shortage(device="host", wanted=8 * GIB)
    assert parse(nccl) == Shortage(device="NCCL", wanted=6 * MIB)
    assert parse("NCCL WARN Cuda failure 2 'out of memory'") == Shortage(device="NCCL")
    assert parse("step 3, loss 2.1") is None


def test_a_size_that_nobody_has_is_not_believed():
    text = NEW.format(allowed="", graphs="").replace("74.50 GiB", "17179869184.00 GiB")
    assert parse(text).mine is None
    assert parse(text).others == ALL.others


def test_the_victim_of_the_kernel():
    line = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:1024kB, file-rss:16kB"
    assert killed(line) == Killed(pid=4711, name="python", resident=1040 << 10, cgroup=True)
    assert killed("Out of memory: Killed process 12") == Killed(pid=12)
    assert killed("process 12 ended") is None


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(NEW.split(" ")) | st.text(max_size=6), max_size=80))
def test_no_text_makes_it_fail(words):
    found = parse("CUDA out of memory. " + " ".join(words))
    assert found is not None
    assert found.held_by_others >= 0
