"""Parsing of out-of-memory errors by torch version and device (numbers are invented)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.watcher.oom_messages import (
    GpuMemoryUser,
    OomKill,
    OomMessage,
    parse_oom_kill,
    parse_oom_message,
)
from tests.hypothesis_profiles import examples

GIB, MIB = 1 << 30, 1 << 20
NEW = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 80.00 GiB "
    "of which 1.50 GiB is free. Process 81034 has 4.00 GiB memory in use. Including non-PyTorch memory, this process "
    "has 74.50 GiB memory in use. {allowed}Of the allocated memory 60.00 GiB is allocated by PyTorch, {graphs}and "
    "13.00 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management"
)
ALL = OomMessage(
    device="CUDA",
    gpu=3,
    requested=2 * GIB,
    capacity=80 * GIB,
    free=GIB + GIB // 2,
    own=74 * GIB + GIB // 2,
    allocated=60 * GIB,
    idle=13 * GIB,
    others=(GpuMemoryUser(81034, 4 * GIB),),
)


def test_the_current_message_is_parsed():
    found = parse_oom_message(NEW.format(allowed="", graphs=""))
    assert found == ALL
    assert (found.held_by_others, found.outside_torch) == (4 * GIB, GIB + GIB // 2)


def test_a_limit_and_graph_pools_are_parsed():
    graphs = "with 512.00 MiB allocated in private pools (e.g., CUDA Graphs), "
    found = parse_oom_message(NEW.format(allowed="40.00 GiB allowed; ", graphs=graphs))
    assert (found.allowed, found.graphs, found.allocated) == (40 * GIB, 512 * MIB, 60 * GIB)


def test_the_misspelled_message_of_2_1_is_parsed():
    assert (
        parse_oom_message(NEW.format(allowed="", graphs="").replace("capacity", "capacty")) == ALL
    )


@pytest.mark.parametrize("device", ["CUDA", "HIP", "NPU"])
def test_messages_before_2_1_are_parsed(device):
    found = parse_oom_message(
        f"RuntimeError: {device} out of memory. Tried to allocate 20.00 MiB ({'NPU' if device == 'NPU' else 'GPU'} 1; "
        "40.00 GiB total capacity; 30.00 GiB already allocated; 12.00 MiB free; 38.00 GiB reserved in total by PyTorch)"
    )
    assert found == OomMessage(
        device=device,
        gpu=1,
        requested=20 * MIB,
        capacity=40 * GIB,
        free=12 * MIB,
        allocated=30 * GIB,
        idle=8 * GIB,
    )


def test_in_a_container_own_memory_is_found_by_size():
    found = parse_oom_message(
        "CUDA out of memory. Tried to allocate 224.00 MiB. GPU  has a total capacity of 44.00 GiB of which 160.00 MiB "
        "is free. Process 7 has 1.00 GiB memory in use. Process 47694 has 42.50 GiB memory in use. Of the allocated "
        "memory 41.00 GiB is allocated by PyTorch, and 400.00 MiB is reserved by PyTorch but unallocated."
    )
    assert (found.own, found.others, found.gpu) == (
        42 * GIB + GIB // 2,
        (GpuMemoryUser(7, GIB),),
        None,
    )


def test_messages_of_other_devices_and_the_host_are_parsed():
    xpu = (
        "XPU out of memory. Tried to allocate 192.00 MiB. GPU 3 has a total capacity of 32.00 GiB of which 13.00 GiB "
        "is free."
    )
    mps = (
        "MPS backend out of memory (MPS allocated: 17.00 GiB, other allocations: 384.00 KiB, max allowed: 20.00 GiB). "
        "Tried to allocate 4.00 GiB on private pool."
    )
    cpu = (
        "data. DefaultCPUAllocator: can't allocate memory: you tried to allocate 17179869184 bytes."
    )
    numpy = "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array with shape (1073741824,)"
    nccl = "node1:71:90 [3] misc/alloc.cc:12 NCCL WARN Failed to CUDA calloc async 6291456 bytes"
    assert parse_oom_message(xpu) == OomMessage(
        device="XPU", gpu=3, requested=192 * MIB, capacity=32 * GIB, free=13 * GIB
    )
    assert parse_oom_message(mps) == OomMessage(
        device="MPS", requested=4 * GIB, allowed=20 * GIB, allocated=17 * GIB
    )
    assert parse_oom_message(cpu) == OomMessage(device="host", requested=16 * GIB)
    assert parse_oom_message(numpy) == OomMessage(device="host", requested=8 * GIB)
    assert parse_oom_message(nccl) == OomMessage(device="NCCL", requested=6 * MIB)
    assert parse_oom_message("NCCL WARN Cuda failure 2 'out of memory'") == OomMessage(
        device="NCCL"
    )
    assert parse_oom_message("step 3, loss 2.1") is None


def test_an_impossible_size_is_dropped():
    text = NEW.format(allowed="", graphs="").replace("74.50 GiB", "17179869184.00 GiB")
    assert parse_oom_message(text).own is None
    assert parse_oom_message(text).others == ALL.others


def test_the_victim_of_the_oom_killer_is_parsed():
    line = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:9kB, anon-rss:1024kB, file-rss:16kB"
    assert parse_oom_kill(line) == OomKill(
        pid=4711, name="python", resident=1040 << 10, cgroup=True
    )
    assert parse_oom_kill("Out of memory: Killed process 12") == OomKill(pid=12)
    assert parse_oom_kill("process 12 ended") is None


@settings(max_examples=examples(150))
@given(st.lists(st.sampled_from(NEW.split(" ")) | st.text(max_size=6), max_size=80))
def test_arbitrary_text_does_not_fail(words):
    found = parse_oom_message("CUDA out of memory. " + " ".join(words))
    assert found is not None
    assert found.held_by_others >= 0
