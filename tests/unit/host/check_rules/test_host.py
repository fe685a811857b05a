"""Findings about limits, memory, CPUs, disks and clocks: thresholds on both sides."""

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.checks import CheckContext
from holdfast.host.checks.devices.numa import NumaNode, NumaResult
from holdfast.host.checks.system.clock import ClockResult
from holdfast.host.checks.system.container import ContainerResult
from holdfast.host.checks.system.disk import DiskResult
from holdfast.host.checks.system.huge_pages import HugePagesResult
from holdfast.host.checks.system.limits import LimitsResult, ResourceLimit
from holdfast.host.checks.system.memory import MemoryResult
from holdfast.host.checks.system.process_limits import ProcessLimitsResult
from holdfast.host.checks.system.processors import ProcessorsResult
from holdfast.host.checks.system.swap import SwapResult
from tests.unit.host.check_rules.findings_of import findings_of, levels_and_causes

GIB = 1 << 30
NO = Unknown("x")
EIGHT = CheckContext(workers=8)
ENOUGH = ResourceLimit(1 << 20, None)
LIMITS = {
    "files": ENOUGH,
    "locked": ResourceLimit(None, None),
    "stack": ResourceLimit(8 << 20, None),
    "processes": ENOUGH,
}
DISK = {
    "folder": "/data",
    "is_named": True,
    "at": "/data",
    "kind": "nfs4",
    "size": 1000 * GIB,
    "free": 500 * GIB,
}
CLOCK = {"synchronized": True, "source": "tsc"}
HUGE = {"reserved": 0, "idle": 0, "total": 100 * GIB, "enabled": "madvise", "defrag": "madvise"}
BOX = {"name": "Docker", "sign": "/.dockerenv", "capabilities": ()}
CORES = {"online": "0-15", "usable": "0-15"}
NODES = tuple(
    NumaNode(number=n, processors=f"{8 * n}-{8 * n + 7}", total=GIB, free=GIB) for n in (0, 1)
)
FULL = (NODES[0], NumaNode(number=1, processors="8-15", total=GIB, free=1))


@pytest.mark.parametrize(
    ("name", "result", "context", "expected"),
    [
        ("limits", LimitsResult(**LIMITS), EIGHT, []),
        (
            "limits",
            LimitsResult(**LIMITS | {"files": ResourceLimit(1024, 1 << 20)}),
            EIGHT,
            [("warning", "fd-limit")],
        ),
        (
            "limits",
            LimitsResult(**LIMITS | {"files": ResourceLimit(256, 256)}),
            EIGHT,
            [("error", "fd-limit")],
        ),
        ("limits", LimitsResult(**LIMITS | {"locked": ResourceLimit(65536, 65536)}), EIGHT, []),
        (
            "limits",
            LimitsResult(**LIMITS | {"locked": ResourceLimit(65536, 65536)}, rdma=True),
            EIGHT,
            [("error", "memlock-limit")],
        ),
        ("limits", LimitsResult(**LIMITS, rdma=True), EIGHT, []),
        (
            "limits",
            LimitsResult(**LIMITS | {"processes": ResourceLimit(1024, 2048)}),
            EIGHT,
            [("warning", "process-limit")],
        ),
        (
            "limits",
            LimitsResult(**LIMITS | {"stack": ResourceLimit(1 << 16, None)}),
            EIGHT,
            [("warning", "process-limit")],
        ),
        ("limits", LimitsResult(files=NO, locked=NO, stack=NO, processes=NO, rdma=True), EIGHT, []),
        ("memory", MemoryResult(total=100 * GIB, available=90 * GIB), EIGHT, []),
        (
            "memory",
            MemoryResult(total=100 * GIB, available=3 * GIB),
            EIGHT,
            [("error", "host-oom-killed")],
        ),
        (
            "memory",
            MemoryResult(total=100 * GIB, available=15 * GIB),
            EIGHT,
            [("warning", "host-oom-killed")],
        ),
        (
            "memory",
            MemoryResult(total=100 * GIB, available=9 * GIB),
            CheckContext(),
            [("warning", "host-oom-killed")],
        ),
        (
            "memory",
            MemoryResult(total=100 * GIB, available=90 * GIB, limit=10 * GIB, used=8 * GIB),
            EIGHT,
            [("error", "host-oom-killed")],
        ),
        (
            "memory",
            MemoryResult(total=100 * GIB, available=90 * GIB, kills=2),
            EIGHT,
            [("note", "host-oom-killed")],
        ),
        (
            "memory",
            MemoryResult(total=100 * GIB, available=90 * GIB, committed=95, commit_limit=100),
            EIGHT,
            [("warning", "host-oom-killed")],
        ),
        ("memory", MemoryResult(total=NO, available=NO), EIGHT, []),
        ("swap", SwapResult(size=8 * GIB, used=0, stalled=0.01), EIGHT, []),
        ("swap", SwapResult(size=8 * GIB, used=2 * GIB), EIGHT, [("warning", "host-swapping")]),
        ("swap", SwapResult(size=0, used=0, stalled=0.2), EIGHT, [("warning", "host-swapping")]),
        ("swap", SwapResult(size=NO, used=NO), EIGHT, []),
        ("processors", ProcessorsResult(**CORES, load=1.0), EIGHT, []),
        (
            "processors",
            ProcessorsResult(**CORES, quota=4.0),
            EIGHT,
            [("warning", "processors-too-few")],
        ),
        (
            "processors",
            ProcessorsResult(**CORES | {"usable": "0-3"}),
            EIGHT,
            [("warning", "processors-too-few")],
        ),
        (
            "processors",
            ProcessorsResult(**CORES | {"usable": "0-3"}),
            CheckContext(),
            [("note", "processors-too-few")],
        ),
        (
            "processors",
            ProcessorsResult(**CORES, throttled=0.4),
            EIGHT,
            [("warning", "processors-too-few")],
        ),
        (
            "processors",
            ProcessorsResult(**CORES, load=30.0),
            EIGHT,
            [("warning", "processors-too-few")],
        ),
        (
            "processors",
            ProcessorsResult(**CORES, load=14.0),
            EIGHT,
            [("note", "processors-too-few")],
        ),
        (
            "processors",
            ProcessorsResult(**CORES, governor="powersave"),
            EIGHT,
            [("note", "processors-too-few")],
        ),
        ("processors", ProcessorsResult(online=NO, usable=NO), EIGHT, []),
        ("tasks", ProcessLimitsResult(running=500, maximum=32768), EIGHT, []),
        (
            "tasks",
            ProcessLimitsResult(running=500, maximum=32768, limit=2000, used=800),
            EIGHT,
            [("warning", "process-limit")],
        ),
        (
            "tasks",
            ProcessLimitsResult(running=500, maximum=32768, limit=1000, used=940),
            EIGHT,
            [("error", "process-limit")],
        ),
        ("tasks", ProcessLimitsResult(running=NO, maximum=NO), EIGHT, []),
        ("disk", DiskResult(**DISK, speed=2e9), EIGHT, []),
        (
            "disk",
            DiskResult(**DISK, obstacle="/data is read-only"),
            EIGHT,
            [("error", "checkpoint-folder-unusable")],
        ),
        (
            "disk",
            DiskResult(**DISK | {"free": GIB // 2}),
            EIGHT,
            [("error", "checkpoint-folder-unusable")],
        ),
        (
            "disk",
            DiskResult(**DISK | {"free": GIB // 2, "is_named": False}),
            EIGHT,
            [("warning", "checkpoint-folder-unusable")],
        ),
        (
            "disk",
            DiskResult(**DISK | {"free": 15 * GIB}),
            EIGHT,
            [("warning", "checkpoint-folder-unusable")],
        ),
        (
            "disk",
            DiskResult(**DISK, free_files=7),
            EIGHT,
            [("warning", "checkpoint-folder-unusable")],
        ),
        (
            "disk",
            DiskResult(**DISK, speed=20e6),
            EIGHT,
            [("warning", "checkpoint-io-slow-timeout")],
        ),
        (
            "disk",
            DiskResult(**DISK | {"kind": "tmpfs"}),
            EIGHT,
            [("warning", "checkpoint-folder-unusable")],
        ),
        (
            "disk",
            DiskResult(**DISK | {"kind": "overlay", "is_named": False, "obstacle": "x"}),
            EIGHT,
            [],
        ),
        ("disk", DiskResult(**DISK | {"size": NO, "free": NO}), EIGHT, []),
        ("clock", ClockResult(**CLOCK, offset_s=0.0001, server="ntp"), EIGHT, []),
        (
            "clock",
            ClockResult(**CLOCK, offset_s=-3.0, server="ntp"),
            EIGHT,
            [("warning", "clock-unsynchronized")],
        ),
        (
            "clock",
            ClockResult(**CLOCK | {"synchronized": False}),
            EIGHT,
            [("note", "clock-unsynchronized")],
        ),
        (
            "clock",
            ClockResult(**CLOCK | {"source": "hpet"}),
            EIGHT,
            [("warning", "clock-source-slow")],
        ),
        ("clock", ClockResult(synchronized=NO, source=NO), EIGHT, []),
        ("numa", NumaResult(nodes=NODES, usable="0-15"), EIGHT, []),
        (
            "numa",
            NumaResult(nodes=NODES, usable="8-11"),
            EIGHT,
            [("warning", "memory-on-another-node")],
        ),
        (
            "numa",
            NumaResult(nodes=NODES, usable="8-11"),
            CheckContext(),
            [("note", "memory-on-another-node")],
        ),
        ("numa", NumaResult(nodes=NODES[:1], usable="0"), EIGHT, []),
        (
            "numa",
            NumaResult(nodes=FULL, usable="0-15"),
            EIGHT,
            [("note", "memory-on-another-node")],
        ),
        (
            "numa",
            NumaResult(nodes=NODES, usable="0-15", reclaim=1),
            EIGHT,
            [("warning", "memory-on-another-node")],
        ),
        ("numa", NumaResult(nodes=NO), EIGHT, []),
        ("huge-pages", HugePagesResult(**HUGE), EIGHT, []),
        (
            "huge-pages",
            HugePagesResult(**HUGE | {"idle": 20 * GIB}),
            EIGHT,
            [("warning", "huge-pages-unsuited")],
        ),
        (
            "huge-pages",
            HugePagesResult(**HUGE | {"enabled": "always", "defrag": "always"}),
            EIGHT,
            [("note", "huge-pages-unsuited")],
        ),
        (
            "huge-pages",
            HugePagesResult(reserved=NO, idle=NO, total=NO, enabled=NO, defrag=NO),
            EIGHT,
            [],
        ),
        ("container", ContainerResult(**BOX), EIGHT, []),
        ("container", ContainerResult(**BOX, ptrace_scope=1), EIGHT, [("note", "tracing-refused")]),
        (
            "container",
            ContainerResult(**BOX | {"capabilities": ("sys_ptrace",)}, ptrace_scope=1),
            EIGHT,
            [],
        ),
        (
            "container",
            ContainerResult(**BOX | {"capabilities": ("sys_ptrace",)}, ptrace_scope=3),
            EIGHT,
            [("note", "tracing-refused")],
        ),
        ("container", ContainerResult(**BOX | {"capabilities": NO}, ptrace_scope=3), EIGHT, []),
    ],
)
def test_thresholds(name, result, context, expected):
    assert levels_and_causes(name, context, result) == expected


def test_limit_that_the_user_can_raise_differs_from_one_that_root_must():
    for hard, words in (
        (1 << 20, "ulimit -n 1048576"),
        (4000, "ulimit -n 4000"),
        (1024, "ulimit -n 1048576"),
    ):
        ((_, _, message),) = findings_of(
            "limits", EIGHT, LimitsResult(**LIMITS | {"files": ResourceLimit(1024, hard)})
        )
        assert "open-file limit (ulimit -n) is 1024" in message
        assert words in _remedy(hard)


def _remedy(hard):
    from holdfast.host.check_rules.system.limits import judge

    (finding,) = judge(LimitsResult(**LIMITS | {"files": ResourceLimit(1024, hard)}), EIGHT)
    return finding.remedies[0].command


def test_messages_have_amounts():
    ((_, _, message),) = findings_of("disk", EIGHT, DiskResult(**DISK, speed=20e6))
    assert (
        message
        == "slow writes to /data: 20 MB/s. A 10 GiB checkpoint takes 9 minutes, during which the "
        "other ranks wait"
    )
    ((_, _, message),) = findings_of(
        "tasks", EIGHT, ProcessLimitsResult(running=500, maximum=32768, limit=1000, used=940)
    )
    assert message.startswith(
        "the cgroup allows 60 more processes and threads; 8 workers may need 1600"
    )
