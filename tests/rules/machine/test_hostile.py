"""Files that no kernel writes: every check ends with what was seen or with the reason why not, and its rule too."""

import random

import pytest

from holdfast.facts.checks import CHECKS, unknowns
from holdfast.facts.checks.running import look
from holdfast.findings import Unknown
from holdfast.rules.machine import judge
from tests.facts.checks.test_host_limits import CGROUP, LIMITS, MEMINFO
from tests.facts.checks.trees import host, neighbours, network

NAMES = ("interfaces", "routes", "neighbours", "names", "hosts-file", "ports", "firewall", "limits", "memory", "swap",
         "processors", "tasks", "numa", "huge-pages", "container", "clock")  # fmt: skip
TCP = (
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0\n"
)
FILES = network(
    {"lo": ("127.0.0.1/8", {}), "eth0": ("10.1.0.5/16", {"speed": "25000", "carrier": "1", "duplex": "full"})},
    [("eth0", "0.0.0.0/0", "10.1.0.1", 100)],
    "fd000000000000000000000000000007 02 40 00 80     eth0\n",
) | neighbours(("10.1.0.1", "eth0", True)) | CGROUP | {
    "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 node7\n10.1.0.6 node6\n", "/etc/hostname": "node7\n",
    "/proc/net/tcp": TCP, "/proc/self/limits": LIMITS, "/proc/meminfo": MEMINFO,
    "/proc/loadavg": "70.50 60.00 50.00 9/1200 4711\n", "/proc/sys/kernel/pid_max": "32768\n",
    "/proc/self/status": "CapEff:\t00000000a80425fb\nSeccomp:\t2\nCpus_allowed_list:\t0-15\nMems_allowed_list:\t0\n",
    "/proc/pressure/memory": "some avg10=0.00 avg60=12.50 avg300=0.50 total=4\n",
    "/proc/sys/net/ipv4/ip_local_port_range": "1024\t65535\n",
    "/proc/sys/net/ipv4/ip_local_reserved_ports": "8080,29500-29510\n",
    "/sys/devices/system/cpu/online": "0-63\n", "/sys/devices/system/node/node0/cpulist": "0-63\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "[always] madvise never\n",
}  # fmt: skip


def spoilt(content, dice):
    """The content cut short, with a word or a line changed, doubled or taken away."""
    way = dice.randrange(5)
    if way == 0:
        return content[: dice.randrange(len(content) + 1)]
    if way == 1:
        words = content.split(" ")
        words[dice.randrange(len(words))] = dice.choice(["", "-1", "zzzz", "999999999999999999999", "é\0", "0x", "/"])
        return " ".join(words)
    lines = content.splitlines(keepends=True) or [""]
    place = dice.randrange(len(lines))
    if way == 2:
        del lines[place]
    elif way == 3:
        lines.insert(place, lines[place])
    else:
        lines[place] = dice.choice(["\n", "::::\n", "a b\n", "[" * 50 + "\n"])
    return "".join(lines)


@pytest.mark.parametrize("seed", range(120))
def test_spoilt_files(tmp_path, seed):
    dice = random.Random(seed)
    files = {path: spoilt(content, dice) if dice.random() < 0.3 else content for path, content in FILES.items()}
    place = host(tmp_path, files, endpoint=("node6", 29500), workers=8)
    for found in look(place, [CHECKS[name] for name in NAMES]).values():
        if isinstance(found.seen, Unknown):
            assert found.seen.why
            continue
        assert found.seen.facts()
        assert all(unknowns(found.seen))
        assert all(claim.message for claim in judge(found.check, found.seen, place, "a"))


def test_the_same_files_whole(tmp_path):
    place = host(tmp_path, FILES, endpoint=("node6", 29500), workers=8)
    seen = look(place, [CHECKS[name] for name in NAMES])
    assert [name for name, found in seen.items() if isinstance(found.seen, Unknown)] == []
    said = {name for name, found in seen.items() if judge(found.check, found.seen, place, "a")}
    assert {"hosts-file", "ports", "limits", "memory", "processors", "tasks"} <= said
