"""GPUs of recorded hosts, and of this one."""

import os

import msgspec

from holdfast.host.checks import CheckContext
from holdfast.host.checks.devices import gpu_health, gpus
from tests.unit.host.gpus.recorded import gpu, process, tree


def test_a_host_of_two(tmp_path):
    root = tree(tmp_path, gpu(), gpu(bus="2B", processes=process(os.getpid()) + process(1 << 22)))
    (tmp_path / "proc").symlink_to("/proc")
    result = gpus.inspect(CheckContext(root=root, environ={"CUDA_VISIBLE_DEVICES": "1"}))
    assert [device.driver for device in result.on_bus] == ["nvidia", "nvidia"]
    assert (result.visible.gpus, result.stuck, result.absent) == ((1,), False, "")
    own, elsewhere = result.users
    assert (own.pid, own.owner, own.memory_bytes) == (os.getpid(), os.getuid(), 516 << 20)
    assert own.name
    assert (elsewhere.name, elsewhere.state) == (None, None)
    assert result.facts()[0].text == "GPUs: 2 x NVIDIA H100 80GB HBM3; driver 580.95.05"
    assert msgspec.json.decode(msgspec.json.encode(result), type=gpus.GpusResult) == result


def test_a_host_without_gpus(tmp_path):
    for inspect in (gpus.inspect, gpu_health.inspect):
        result = inspect(CheckContext(root=str(tmp_path)))
        assert result.absent == "no NVIDIA GPU on the PCI bus, and no driver"
        assert "none" in result.facts()[0].text


def test_gpus_without_a_driver(tmp_path):
    result = gpus.inspect(CheckContext(root=tree(tmp_path, on_bus=2, driver="vfio-pci")))
    assert len(result.on_bus) == 2
    assert not result.absent
    assert result.unanswered.why == "no recorded nvidia-smi.xml"
    assert [device.driver for device in result.on_bus] == ["vfio-pci"] * 2


def test_an_answer_that_cannot_be_read(tmp_path):
    root = tree(tmp_path, gpu())
    (tmp_path / "nvidia-smi.xml").write_bytes(b"No devices were found")
    assert "cannot be read" in gpus.inspect(CheckContext(root=root)).unanswered.why
    assert "cannot be read" in gpu_health.inspect(CheckContext(root=root)).unanswered.why
