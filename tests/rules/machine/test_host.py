"""Limits, memory, processors, disks, clocks: what is too little, and what is enough."""

import pytest

from holdfast.facts.checks import Place
from holdfast.facts.checks.clock import Clock
from holdfast.facts.checks.container import Container
from holdfast.facts.checks.disk import Disk
from holdfast.facts.checks.huge_pages import HugePages
from holdfast.facts.checks.limits import Limit, Limits
from holdfast.facts.checks.memory import Memory
from holdfast.facts.checks.numa import Node, Numa
from holdfast.facts.checks.processors import Processors
from holdfast.facts.checks.swap import Swap
from holdfast.facts.checks.tasks import Tasks
from holdfast.findings import Unknown
from tests.rules.machine.asked import found, short

GIB = 1 << 30
NO = Unknown("x")
EIGHT = Place(workers=8)
ENOUGH = Limit(1 << 20, None)
LIMITS = {"files": ENOUGH, "locked": Limit(None, None), "stack": Limit(8 << 20, None), "processes": ENOUGH}
DISK = {"folder": "/data", "asked": True, "at": "/data", "kind": "nfs4", "size": 1000 * GIB, "free": 500 * GIB}
CLOCK = {"synchronized": True, "hardware": "tsc"}
HUGE = {"reserved": 0, "idle": 0, "total": 100 * GIB, "enabled": "madvise", "defrag": "madvise"}
BOX = {"name": "Docker", "sign": "/.dockerenv", "capabilities": ()}
CORES = {"online": "0-15", "usable": "0-15"}
NODES = tuple(Node(number=n, processors=f"{8 * n}-{8 * n + 7}", total=GIB, free=GIB) for n in (0, 1))
FULL = (NODES[0], Node(number=1, processors="8-15", total=GIB, free=1))


@pytest.mark.parametrize(
    ("name", "seen", "place", "expected"),
    [
        ("limits", Limits(**LIMITS), EIGHT, []),
        ("limits", Limits(**LIMITS | {"files": Limit(1024, 1 << 20)}), EIGHT, [("warning", "fd-limit")]),
        ("limits", Limits(**LIMITS | {"files": Limit(256, 256)}), EIGHT, [("error", "fd-limit")]),
        ("limits", Limits(**LIMITS | {"locked": Limit(65536, 65536)}), EIGHT, []),
        ("limits", Limits(**LIMITS | {"locked": Limit(65536, 65536)}, rdma=True), EIGHT, [("error", "memlock-limit")]),
        ("limits", Limits(**LIMITS, rdma=True), EIGHT, []),
        ("limits", Limits(**LIMITS | {"processes": Limit(1024, 2048)}), EIGHT, [("warning", "process-limit")]),
        ("limits", Limits(**LIMITS | {"stack": Limit(1 << 16, None)}), EIGHT, [("warning", "process-limit")]),
        ("limits", Limits(files=NO, locked=NO, stack=NO, processes=NO, rdma=True), EIGHT, []),
        ("memory", Memory(total=100 * GIB, available=90 * GIB), EIGHT, []),
        ("memory", Memory(total=100 * GIB, available=3 * GIB), EIGHT, [("error", "host-oom-killed")]),
        ("memory", Memory(total=100 * GIB, available=15 * GIB), EIGHT, [("warning", "host-oom-killed")]),
        ("memory", Memory(total=100 * GIB, available=9 * GIB), Place(), [("warning", "host-oom-killed")]),
        ("memory", Memory(total=100 * GIB, available=90 * GIB, limit=10 * GIB, used=8 * GIB), EIGHT,
         [("error", "host-oom-killed")]),
        ("memory", Memory(total=100 * GIB, available=90 * GIB, kills=2), EIGHT, [("note", "host-oom-killed")]),
        ("memory", Memory(total=100 * GIB, available=90 * GIB, promised=95, promisable=100), EIGHT,
         [("warning", "host-oom-killed")]),
        ("memory", Memory(total=NO, available=NO), EIGHT, []),
        ("swap", Swap(size=8 * GIB, used=0, waiting=0.01), EIGHT, []),
        ("swap", Swap(size=8 * GIB, used=2 * GIB), EIGHT, [("warning", "host-swapping")]),
        ("swap", Swap(size=0, used=0, waiting=0.2), EIGHT, [("warning", "host-swapping")]),
        ("swap", Swap(size=NO, used=NO), EIGHT, []),
        ("processors", Processors(**CORES, load=1.0), EIGHT, []),
        ("processors", Processors(**CORES, quota=4.0), EIGHT, [("warning", "processors-too-few")]),
        ("processors", Processors(**CORES | {"usable": "0-3"}), EIGHT, [("warning", "processors-too-few")]),
        ("processors", Processors(**CORES | {"usable": "0-3"}), Place(), [("note", "processors-too-few")]),
        ("processors", Processors(**CORES, throttled=0.4), EIGHT, [("warning", "processors-too-few")]),
        ("processors", Processors(**CORES, load=30.0), EIGHT, [("warning", "processors-too-few")]),
        ("processors", Processors(**CORES, load=14.0), EIGHT, [("note", "processors-too-few")]),
        ("processors", Processors(**CORES, governor="powersave"), EIGHT, [("note", "processors-too-few")]),
        ("processors", Processors(online=NO, usable=NO), EIGHT, []),
        ("tasks", Tasks(running=500, most=32768), EIGHT, []),
        ("tasks", Tasks(running=500, most=32768, limit=2000, used=800), EIGHT, [("warning", "process-limit")]),
        ("tasks", Tasks(running=500, most=32768, limit=1000, used=940), EIGHT, [("error", "process-limit")]),
        ("tasks", Tasks(running=NO, most=NO), EIGHT, []),
        ("disk", Disk(**DISK, speed=2e9), EIGHT, []),
        ("disk", Disk(**DISK, obstacle="/data is read-only"), EIGHT, [("error", "checkpoint-folder-unusable")]),
        ("disk", Disk(**DISK | {"free": GIB // 2}), EIGHT, [("error", "checkpoint-folder-unusable")]),
        ("disk", Disk(**DISK | {"free": GIB // 2, "asked": False}), EIGHT, [("warning", "checkpoint-folder-unusable")]),
        ("disk", Disk(**DISK | {"free": 15 * GIB}), EIGHT, [("warning", "checkpoint-folder-unusable")]),
        ("disk", Disk(**DISK, free_files=7), EIGHT, [("warning", "checkpoint-folder-unusable")]),
        ("disk", Disk(**DISK, speed=20e6), EIGHT, [("warning", "checkpoint-io-slow-timeout")]),
        ("disk", Disk(**DISK | {"kind": "tmpfs"}), EIGHT, [("warning", "checkpoint-folder-unusable")]),
        ("disk", Disk(**DISK | {"kind": "overlay", "asked": False, "obstacle": "x"}), EIGHT, []),
        ("disk", Disk(**DISK | {"size": NO, "free": NO}), EIGHT, []),
        ("clock", Clock(**CLOCK, offset_s=0.0001, server="ntp"), EIGHT, []),
        ("clock", Clock(**CLOCK, offset_s=-3.0, server="ntp"), EIGHT, [("warning", "clock-unsynchronized")]),
        ("clock", Clock(**CLOCK | {"synchronized": False}), EIGHT, [("note", "clock-unsynchronized")]),
        ("clock", Clock(**CLOCK | {"hardware": "hpet"}), EIGHT, [("warning", "clock-source-slow")]),
        ("clock", Clock(synchronized=NO, hardware=NO), EIGHT, []),
        ("numa", Numa(nodes=NODES, usable="0-15"), EIGHT, []),
        ("numa", Numa(nodes=NODES, usable="8-11"), EIGHT, [("warning", "memory-on-another-node")]),
        ("numa", Numa(nodes=NODES, usable="8-11"), Place(), [("note", "memory-on-another-node")]),
        ("numa", Numa(nodes=NODES[:1], usable="0"), EIGHT, []),
        ("numa", Numa(nodes=FULL, usable="0-15"), EIGHT, [("note", "memory-on-another-node")]),
        ("numa", Numa(nodes=NODES, usable="0-15", reclaim=1), EIGHT, [("warning", "memory-on-another-node")]),
        ("numa", Numa(nodes=NO), EIGHT, []),
        ("huge-pages", HugePages(**HUGE), EIGHT, []),
        ("huge-pages", HugePages(**HUGE | {"idle": 20 * GIB}), EIGHT, [("warning", "huge-pages-unsuited")]),
        ("huge-pages", HugePages(**HUGE | {"enabled": "always", "defrag": "always"}), EIGHT,
         [("note", "huge-pages-unsuited")]),
        ("huge-pages", HugePages(reserved=NO, idle=NO, total=NO, enabled=NO, defrag=NO), EIGHT, []),
        ("container", Container(**BOX), EIGHT, []),
        ("container", Container(**BOX, ptrace_scope=1), EIGHT, [("note", "tracing-refused")]),
        ("container", Container(**BOX | {"capabilities": ("sys_ptrace",)}, ptrace_scope=1), EIGHT, []),
        ("container", Container(**BOX | {"capabilities": ("sys_ptrace",)}, ptrace_scope=3), EIGHT,
         [("note", "tracing-refused")]),
        ("container", Container(**BOX | {"capabilities": NO}, ptrace_scope=3), EIGHT, []),
    ],
)  # fmt: skip
def test_what_is_too_little(name, seen, place, expected):
    assert short(name, place, seen) == expected


def test_a_limit_that_the_user_can_raise_is_told_from_one_that_root_must():
    for hard, words in ((1 << 20, "ulimit -n 1048576"), (4000, "ulimit -n 4000"), (1024, "ulimit -n 1048576")):
        ((_, _, message),) = found("limits", EIGHT, Limits(**LIMITS | {"files": Limit(1024, hard)}))
        assert "1024 files and sockets" in message
        assert words in _remedy(hard)


def _remedy(hard):
    from holdfast.rules.machine.limits import judge

    (claim,) = judge(Limits(**LIMITS | {"files": Limit(1024, hard)}), EIGHT)
    return claim.remedies[0].command


def test_a_message_says_how_much():
    ((_, _, message),) = found("disk", EIGHT, Disk(**DISK, speed=20e6))
    assert message == "/data takes 20 MB/s: 10 GiB of checkpoint need 9 minutes, in which the other ranks wait"
    ((_, _, message),) = found("tasks", EIGHT, Tasks(running=500, most=32768, limit=1000, used=940))
    assert message.startswith(
        "the control group has room for 60 more processes and threads, and 8 workers may need 1600"
    )
