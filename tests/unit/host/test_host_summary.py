"""Facts of this host, and of recorded hosts stored in folders."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.core.findings import Fact, Unknown
from holdfast.host import host_summary
from holdfast.host.host_summary import host_facts, local_fact


def texts(facts):
    return {name: value for name, _, value in (fact.text.partition(": ") for fact in facts)}


def write(root, files):
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def test_this_host():
    facts = host_facts()
    known = texts(facts)
    assert known["host name"] == facts[0].host
    assert known["memory"].endswith("available")
    assert known["CPUs"].split()[0].isdigit()
    assert all(fact.origin and fact.time for fact in facts)
    assert msgspec.json.decode(msgspec.json.encode(facts), type=tuple[Fact, ...]) == facts


@pytest.fixture
def gpu_node(tmp_path):
    """Return a recorded container on a host with two GPUs, 3.5 cores and 64 GiB in cgroup version 2."""
    proc, groups, root = tmp_path / "proc", tmp_path / "cgroup", tmp_path / "root"
    gpu = "Model: \t\t NVIDIA A100-SXM4-40GB\nGPU UUID: \t GPU-{0}\nBus Type: \t PCIe\nDevice Minor: \t {0}\n"
    write(
        proc,
        {
            "meminfo": "MemTotal:       1056761420 kB\nMemFree: 1 kB\nMemAvailable:   528380710 kB\n",
            "loadavg": "1.50 2.25 3.00 2/345 6789\n",
            "sys/kernel/random/boot_id": "0f0f\n",
            "self/cgroup": "0::/job\n",
            "1/cgroup": "0::/kubepods/pod1\n",
            "driver/nvidia/gpus/0000:01:00.0/information": gpu.format(1),
            "driver/nvidia/gpus/0000:02:00.0/information": gpu.format(2),
        },
    )
    write(
        groups,
        {
            "cgroup.controllers": "cpu memory\n",
            "memory.max": "max\n",
            "job/memory.max": f"{64 << 30}\n",
            "job/memory.current": f"{3 << 29}\n",
            "job/cpu.max": "350000 100000\n",
        },
    )
    (root / "dev/shm").mkdir(parents=True)
    return proc, groups, root


def test_a_gpu_node(gpu_node):
    known = texts(host_facts(*gpu_node))
    assert known["boot id"] == "0f0f"
    assert known["memory"] == "1007.8 GiB, 503.9 GiB available"
    assert known["memory limit"] == "64.0 GiB, 1.5 GiB in use"
    assert known["CPU quota"] == "3.5 cores"
    assert known["container"] == "kubepods"
    assert known["GPU 1"] == "NVIDIA A100-SXM4-40GB, GPU-1, bus 0000:01:00.0"
    assert known["GPU 2"].startswith("NVIDIA A100")
    assert known["load average (1, 5, 15 minutes)"] == "1.50 2.25 3.00"
    (gpu_node[2] / ".dockerenv").touch()
    assert texts(host_facts(*gpu_node))["container"] == "Docker"


def test_unreadable_values_are_unknown(tmp_path):
    known = texts(host_facts(tmp_path, tmp_path, tmp_path))
    for name in ("boot id", "memory", "memory limit", "CPU quota", "shared memory"):
        assert known[name].startswith("unknown ("), name
    assert known["GPUs"] == "none by the NVIDIA driver"
    write(tmp_path, {"meminfo": "odd\n"})
    assert (
        texts(host_facts(tmp_path, tmp_path, tmp_path))["memory"] == "unknown (unexpected format)"
    )


def test_unknown_has_a_reason():
    assert local_fact("x", Unknown("closed"), "y").text == "x: unknown (closed)"


# Lowest CPU time of five collections, in seconds: the cost of a start, independent of the load.
COST = """
import json, os, sys, time
from holdfast.host.environment import environment_facts
from holdfast.host.host_summary import host_facts
from holdfast.host.versions import installed_versions
spent = []
for _ in range(5):
    start = time.process_time()
    host_facts(), installed_versions(), environment_facts(os.environ)
    spent.append(time.process_time() - start)
print(json.dumps([min(spent), "torch" in sys.modules]))
"""


@pytest.mark.slow
def test_collecting_is_cheap_and_imports_no_torch():
    source = str(Path(host_summary.__file__).parents[2])
    completed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{COST}"],
        capture_output=True,
        check=True,
    )
    seconds, torch = json.loads(completed.stdout)
    assert seconds < 0.010
    assert not torch
