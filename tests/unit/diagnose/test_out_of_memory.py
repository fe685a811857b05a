"""Causes of GPU out-of-memory errors, as far as the message tells, and the first remedy."""

from __future__ import annotations

import pytest

from holdfast.core.findings import Finding, Level, Remedy, Subject
from holdfast.host.allocation_purpose import AllocationPurpose
from holdfast.watcher.oom_messages import GpuMemoryUser, OomMessage
from holdfast.watcher.rules.gpu_memory import add_oom_details, explain_oom

from .test_log_rules import verdict

GIB, MIB = 1 << 30, 1 << 20


def oom_message(**fields):
    usual = {
        "requested": 2 * GIB,
        "capacity": 80 * GIB,
        "free": GIB,
        "own": 79 * GIB,
        "allocated": 77 * GIB,
    }
    return OomMessage(**{"device": "CUDA", "gpu": 0, "idle": 512 * MIB} | usual | fields)


@pytest.mark.parametrize(
    ("told", "cause", "clause"),
    [
        ({}, "gpu-oom-all-ranks", "2.0 GiB requested, 1.0 GiB free, 77.0 GiB in tensors"),
        (
            {"allocated": 68 * GIB, "idle": 9 * GIB},
            "gpu-memory-fragmented",
            "9.0 GiB reserved by torch, but not contiguous",
        ),
        # All idle gaps together are too small for the request, or are normal for any allocator.
        (
            {"requested": 19 * GIB, "idle": 9 * GIB, "allocated": 68 * GIB},
            "gpu-oom-all-ranks",
            "68.0 GiB in tensors",
        ),
        (
            {"requested": 20 * MIB, "free": 2 * MIB, "idle": 34 * MIB},
            "gpu-oom-all-ranks",
            "77.0 GiB in tensors",
        ),
        (
            {
                "own": 4 * GIB,
                "allocated": 3 * GIB,
                "idle": 0,
                "others": (GpuMemoryUser(7, 75 * GIB),),
            },
            "gpu-memory-taken-by-others",
            "75.0 GiB held by other processes",
        ),
        ({"others": (GpuMemoryUser(7, 500 * MIB),)}, "gpu-oom-all-ranks", "in tensors"),
        (
            {"allowed": 40 * GIB, "allocated": 39 * GIB},
            "gpu-oom-all-ranks",
            "this process is limited to 40.0 GiB",
        ),
        (
            {"device": "XPU", "free": 13 * GIB},
            "gpu-oom-all-ranks",
            "free memory alone does not explain",
        ),
        ({"allocated": None, "idle": None, "own": None}, "gpu-oom-all-ranks", "1.0 GiB free"),
    ],
)
def test_the_cause_and_its_numbers(told, cause, clause):
    found = explain_oom(oom_message(**told))
    assert found.cause == cause
    assert clause in found.clause


def test_only_reported_parts_are_listed():
    assert explain_oom(oom_message()).parts == (
        ("tensors", 77 * GIB),
        ("reserved but idle", 512 * MIB),
        ("this process outside torch", 1536 * MIB),
        ("free", GIB),
    )
    assert explain_oom(OomMessage(device="CUDA", requested=GIB)).parts == ()


def test_remedies_without_cost_come_first():
    first = [
        remedy.text
        for remedy in explain_oom(
            oom_message(allocated=68 * GIB, idle=9 * GIB), AllocationPurpose.ACTIVATIONS
        ).remedies
    ]
    assert first[0].startswith("Let the allocator's segments grow")
    assert "up to 9.0 GiB" in first[0]
    assert "third more computation" in first[3]
    assert "_dump_snapshot" in first[-1]
    ranks = tuple(GpuMemoryUser(pid, 600 * MIB) for pid in range(7))
    others = explain_oom(oom_message(others=ranks)).remedies
    assert "Set each rank's device" in others[0].text
    assert "4.1 GiB" in others[0].text


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (AllocationPurpose.LOSS, "in eight chunks"),
        (AllocationPurpose.OPTIMIZER, "fused optimizer"),
        (AllocationPurpose.LOADED, "map_location"),
        (AllocationPurpose.PARAMETERS, "meta device"),
        (AllocationPurpose.BACKWARD, "flash attention"),
    ],
)
def test_the_remedy_depends_on_the_failed_allocation(use, text):
    assert text in explain_oom(oom_message(), use).remedies[0].text


TRACE = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 41, in main
[rank1]:     loss = F.cross_entropy(logits, labels)
[rank1]:   File "/env/lib/python3.11/site-packages/torch/nn/functional.py", line 3494, in cross_entropy
[rank1]:     return torch._C._nn.cross_entropy_loss(
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 15.66 GiB. GPU 1 has a total capacity of \
79.15 GiB of which 9.20 GiB is free. Including non-PyTorch memory, this process has 69.90 GiB memory in use. Of the \
allocated memory 66.20 GiB is allocated by PyTorch, and 2.00 GiB is reserved by PyTorch but unallocated.
"""


def test_a_log_gives_the_line_the_purpose_and_the_parts():
    root = verdict(TRACE).root
    assert root is not None
    assert (root.cause, root.subject.rank) == ("gpu-oom-all-ranks", 1)
    assert (root.subject.file, root.subject.line) == ("/home/me/train.py", 41)
    assert "15.7 GiB requested by the loss, 9.2 GiB free" in root.message
    assert root.evidence[0].text.startswith(
        "of 79.2 GiB: 66.2 GiB tensors, 2.0 GiB reserved but idle"
    )
    assert "in eight chunks" in root.remedies[0].text


def test_another_process_on_the_gpu_is_the_root():
    root = verdict(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 31.36 "
        "GiB of which 2.62 MiB is free. Process 81034 has 30.57 GiB memory in use. Including non-PyTorch memory, this "
        "process has 784.00 MiB memory in use. Of the allocated memory 179.69 MiB is allocated by PyTorch, and 12.31 "
        "MiB is reserved by PyTorch but unallocated.\n"
    ).root
    assert root is not None
    assert root.cause == "gpu-memory-taken-by-others"
    assert "81034" in root.remedies[0].text


def test_an_exception_in_a_trace_file_gets_remedies():
    own = (Remedy(text="Decide together."), Remedy(text="Bound the input."))
    claim = Finding(
        code="MEM002",
        cause="oom-on-one-rank-then-timeout",
        level=Level.ERROR,
        message="rank 1 ran out",
        subject=Subject(rank=1),
        remedies=own,
    )
    found = add_oom_details(claim, TRACE.splitlines()[-1], kept_remedies=1)
    assert found.evidence[0].text.startswith("66.2 GiB tensors")
    assert [remedy.text[:8] for remedy in found.remedies[:2]] == ["Decide t", "Use flas"]
    assert add_oom_details(claim, "MemoryError") == claim


def test_the_process_killed_by_the_kernel_is_named_with_its_memory():
    line = (
        "kernel: Memory cgroup out of memory: Killed process 19003 (python) total-vm:90kB, anon-rss:94371840kB, "
        "file-rss:0kB, shmem-rss:0kB, UID:0\n"
    )
    root = verdict(line).root
    assert root is not None
    assert root.cause == "host-oom-killed"
    assert root.message.endswith(
        "python (19003) had 90.0 GiB resident; its cgroup memory limit was reached"
    )
