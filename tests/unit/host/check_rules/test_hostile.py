"""Corrupted kernel files: every check returns a result or the reason why not, and so does its rule."""

import random

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.check_rules import judge_check
from holdfast.host.checks import CHECKS, unknown_reasons
from holdfast.host.checks.runner import run_checks
from tests.unit.host.checks.test_host_limits import CGROUP, LIMITS, MEMINFO
from tests.unit.host.checks.trees import host, neighbours, network

NAMES = (
    "interfaces",
    "routes",
    "neighbours",
    "names",
    "hosts-file",
    "ports",
    "firewall",
    "limits",
    "memory",
    "swap",
    "processors",
    "tasks",
    "numa",
    "huge-pages",
    "container",
    "clock",
)
TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0\n"
)
FILES = (
    network(
        {
            "lo": ("127.0.0.1/8", {}),
            "eth0": ("10.1.0.5/16", {"speed": "25000", "carrier": "1", "duplex": "full"}),
        },
        [("eth0", "0.0.0.0/0", "10.1.0.1", 100)],
        "fd000000000000000000000000000007 02 40 00 80     eth0\n",
    )
    | neighbours(("10.1.0.1", "eth0", True))
    | CGROUP
    | {
        "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 node7\n10.1.0.6 node6\n",
        "/etc/hostname": "node7\n",
        "/proc/net/tcp": TCP,
        "/proc/self/limits": LIMITS,
        "/proc/meminfo": MEMINFO,
        "/proc/loadavg": "70.50 60.00 50.00 9/1200 4711\n",
        "/proc/sys/kernel/pid_max": "32768\n",
        "/proc/self/status": "CapEff:\t00000000a80425fb\nSeccomp:\t2\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n",
        "/proc/pressure/memory": "some avg10=0.00 avg60=12.50 avg300=0.50 total=4\n",
        "/proc/sys/net/ipv4/ip_local_port_range": "1024\t65535\n",
        "/proc/sys/net/ipv4/ip_local_reserved_ports": "8080,29500-29510\n",
        "/sys/devices/system/cpu/online": "0-63\n",
        "/sys/devices/system/node/node0/cpulist": "0-63\n",
        "/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
    }
)


def corrupted(content, dice):
    """Return the content truncated, or with a word or a line changed, doubled or removed."""
    kind = dice.randrange(5)
    if kind == 0:
        return content[: dice.randrange(len(content) + 1)]
    if kind == 1:
        words = content.split(" ")
        words[dice.randrange(len(words))] = dice.choice(
            ["", "-1", "zzzz", "999999999999999999999", "é\0", "0x", "/"]
        )
        return " ".join(words)
    lines = content.splitlines(keepends=True) or [""]
    index = dice.randrange(len(lines))
    if kind == 2:
        del lines[index]
    elif kind == 3:
        lines.insert(index, lines[index])
    else:
        lines[index] = dice.choice(["\n", "::::\n", "a b\n", "[" * 50 + "\n"])
    return "".join(lines)


@pytest.mark.parametrize("seed", range(120))
def test_corrupted_files(tmp_path, seed):
    dice = random.Random(seed)
    files = {
        path: corrupted(content, dice) if dice.random() < 0.3 else content
        for path, content in FILES.items()
    }
    context = host(tmp_path, files, endpoint=("node6", 29500), workers=8)
    for run in run_checks(context, [CHECKS[name] for name in NAMES]).values():
        if isinstance(run.result, Unknown):
            assert run.result.why
            continue
        assert run.result.facts()
        assert all(unknown_reasons(run.result))
        assert all(finding.message for finding in judge_check(run.check, run.result, context, "a"))


def test_the_same_files_intact(tmp_path):
    context = host(tmp_path, FILES, endpoint=("node6", 29500), workers=8)
    runs = run_checks(context, [CHECKS[name] for name in NAMES])
    assert [name for name, run in runs.items() if isinstance(run.result, Unknown)] == []
    reported = {
        name for name, run in runs.items() if judge_check(run.check, run.result, context, "a")
    }
    assert {"hosts-file", "ports", "limits", "memory", "processors", "tasks"} <= reported
