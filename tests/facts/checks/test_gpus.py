"""GPUs of recorded hosts, and of this one."""

import os

import msgspec

from holdfast.facts.checks import Place, gpu_health, gpus
from tests.facts.gpus.recorded import gpu, process, tree


def test_a_host_of_two(tmp_path):
    root = tree(tmp_path, gpu(), gpu(bus="2B", processes=process(os.getpid()) + process(1 << 22)))
    (tmp_path / "proc").symlink_to("/proc")
    seen = gpus.look(Place(root=root, environ={"CUDA_VISIBLE_DEVICES": "1"}))
    assert [device.driver for device in seen.on_bus] == ["nvidia", "nvidia"]
    assert (seen.visible.gpus, seen.stuck, seen.absent) == ((1,), False, "")
    ours, elsewhere = seen.users
    assert (ours.pid, ours.owner, ours.memory_bytes) == (os.getpid(), os.getuid(), 516 << 20)
    assert ours.name
    assert (elsewhere.name, elsewhere.state) == (None, None)
    assert seen.facts()[0].text == "GPUs: 2 x NVIDIA H100 80GB HBM3; driver 580.95.05"
    assert msgspec.json.decode(msgspec.json.encode(seen), type=gpus.Gpus) == seen


def test_a_host_without_gpus(tmp_path):
    for look in (gpus.look, gpu_health.look):
        seen = look(Place(root=str(tmp_path)))
        assert seen.absent == "no NVIDIA GPU on the PCI bus, and no driver"
        assert "none" in seen.facts()[0].text


def test_gpus_without_a_driver(tmp_path):
    seen = gpus.look(Place(root=tree(tmp_path, on_bus=2, driver="vfio-pci")))
    assert len(seen.on_bus) == 2
    assert not seen.absent
    assert seen.unanswered.why == "no answer of it was recorded"
    assert [device.driver for device in seen.on_bus] == ["vfio-pci"] * 2


def test_an_answer_that_cannot_be_read(tmp_path):
    root = tree(tmp_path, gpu())
    (tmp_path / "nvidia-smi.xml").write_bytes(b"No devices were found")
    assert "cannot be read" in gpus.look(Place(root=root)).unanswered.why
    assert "cannot be read" in gpu_health.look(Place(root=root)).unanswered.why
