"""Which findings follow from what is seen of GPUs, on recorded hosts."""

import pytest

from holdfast.facts import pci
from holdfast.facts.checks import CHECKS, Place
from holdfast.facts.checks.gpus import Gpus
from holdfast.findings import Level, Unknown
from holdfast.rules.machine import judge
from tests.facts.checks.devices import device, write
from tests.facts.gpus.recorded import answer, gpu, process, tree


def judged(folder, *gpus, check="gpus", workers=None, environ=None, **host):
    place = Place(root=tree(folder, *gpus, **host), workers=workers, environ=environ or {})
    check = CHECKS[check]
    return judge(check, check.look(place), place, "a")


def told(found):
    return [(claim.cause, claim.level, claim.subject.gpu) for claim in found]


EIGHT = [gpu(bus=f"{n}B", uuid=f"{n}111-aaaa") for n in range(1, 9)]


def test_a_healthy_host_gives_no_finding(tmp_path):
    assert judged(tmp_path, *EIGHT, workers=8) == ()


@pytest.mark.parametrize(
    ("said", "workers", "level", "words"),
    [
        ("0,1,2", 8, Level.ERROR, "8 workers are to run here, and they will see 3 GPUs"),
        ("0,9,1", None, Level.ERROR, "9 is no GPU of this host, and CUDA stops there: only 1 of 8 are visible"),
        ("0,0", None, Level.ERROR, "names 0 twice"),
        ("", 1, Level.ERROR, "see 0 GPUs: CUDA finds none"),
        ("1,0", 2, Level.NOTE, "cuda:0 is GPU 1, cuda:1 is GPU 0"),
        ("MIG-12", None, Level.WARNING, "MIG-12 is no GPU"),
    ],
)
def test_the_variable(tmp_path, said, workers, level, words):
    found = judged(tmp_path, *EIGHT, workers=workers, environ={"CUDA_VISIBLE_DEVICES": said})
    assert (found[0].level, words in found[0].message) == (level, True), found[0].message


def test_a_driver_without_devices(tmp_path):
    """It answers, and lists none of the GPUs that are on the bus."""
    root = tree(tmp_path, on_bus=2)
    (tmp_path / "nvidia-smi.xml").write_bytes(answer())
    place = Place(root=root)
    (found,) = judge(CHECKS["gpus"], CHECKS["gpus"].look(place), place, "a")
    assert (found.cause, found.level) == ("cuda-driver-mismatch", Level.WARNING)
    assert found.message.startswith("there are 2 NVIDIA GPUs on the PCI bus, and the driver lists none")
    place = Place(root=root, workers=2)
    assert "2 workers are to run here, and they will see 0 GPUs: CUDA finds none" in str(
        judge(CHECKS["gpus"], CHECKS["gpus"].look(place), place, "a")
    )


def test_too_few_for_the_launcher(tmp_path):
    (found,) = judged(tmp_path, *EIGHT[:4], workers=8)
    assert (found.cause, found.level) == ("invalid-device-ordinal", Level.ERROR)


def test_several_kinds(tmp_path):
    mixed = (*EIGHT[:1], gpu(bus="2B", name="NVIDIA L4"))
    (found,) = judged(tmp_path, *mixed)
    assert (found.cause, found.level) == ("gpu-renumbered", Level.WARNING)
    assert found.remedies[0].command == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"


def test_several_kinds_that_are_counted_by_the_bus(tmp_path):
    mixed = (*EIGHT[:1], gpu(bus="2B", name="NVIDIA L4"))
    assert judged(tmp_path, *mixed, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ()


def test_one_that_the_driver_lost(tmp_path):
    (found,) = judged(tmp_path, *EIGHT[:7], on_bus=8)
    assert (found.cause, found.level) == ("gpu-fell-off-bus-xid-ecc", Level.ERROR)
    assert "0000:8b:00.0" in found.message


@pytest.mark.parametrize(("driver", "words"), [("vfio-pci", "they belong to vfio-pci"), ("", "no driver answers")])
def test_gpus_without_a_driver(tmp_path, driver, words):
    (found,) = judged(tmp_path, on_bus=2, driver=driver)
    assert (found.cause, found.level) == ("cuda-driver-mismatch", Level.ERROR)
    assert words in found.message


def test_a_driver_that_is_stuck():
    seen = Gpus(stuck=True, unanswered=Unknown("the NVIDIA driver did not answer within 15 s"))
    (found,) = judge(CHECKS["gpus"], seen, Place(), "a")
    assert (found.cause, found.level) == ("gpu-fell-off-bus-xid-ecc", Level.ERROR)


def test_a_variable_of_another_host(tmp_path):
    (found,) = judged(tmp_path, environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (found.cause, found.level) == ("invalid-device-ordinal", Level.WARNING)
    assert "names GPUs, and this host, or container, has none" in found.message


def test_switches_that_nobody_sets_up(tmp_path):
    device(tmp_path, "0000:c0:00.0", pci.NVIDIA, 0x068000)
    ampere = [gpu(fabric="N/A"), gpu(bus="2B", fabric="N/A")]
    (found,) = judged(tmp_path, *ampere)
    assert "NVSwitches are here (1), and no Fabric Manager" in found.message
    write(tmp_path, {"proc/900/comm": "nv-fabricmanage"})
    assert judge(CHECKS["gpus"], CHECKS["gpus"].look(Place(root=str(tmp_path))), Place(), "a") == ()


def test_somebody_else_computes_there(tmp_path):
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/stat").write_text("77 (python3) S 1" + " 0" * 48)
    (tmp_path / "proc/78").mkdir()
    (tmp_path / "proc/78/stat").write_text("78 (old) Z 1" + " 0" * 48)
    found = judged(
        tmp_path, gpu(processes=process(77)), gpu(bus="2B", processes=process(78)), gpu(bus="3B", used=9000),
        gpu(bus="4B", processes=process(79, memory="N/A")),
    )  # fmt: skip
    assert told(found) == [("gpu-in-use", Level.WARNING, index) for index in range(4)]
    assert found[0].remedies[0].command == "kill 77"
    assert "python3 (process 77" in found[0].message
    assert "zombie" in found[1].message
    assert "no process that holds it" in found[2].message
    assert "of another container" in found[3].message


def test_modes_in_which_it_cannot_be_used(tmp_path):
    found = judged(tmp_path, gpu(compute="Prohibited"), gpu(bus="2B", mig="Enabled"))
    assert told(found) == [("gpu-settings", Level.ERROR, 0), ("gpu-settings", Level.WARNING, 1)]


@pytest.mark.parametrize(
    ("state", "cause", "level"),
    [
        ({"hot": "Active"}, "gpu-throttled", Level.WARNING),
        ({"brake": "Active"}, "gpu-throttled", Level.WARNING),
        ({"heat": 85}, "gpu-throttled", Level.WARNING),
        ({"watts": 350}, "gpu-settings", Level.WARNING),
        ({"errors": 1}, "gpu-fell-off-bus-xid-ecc", Level.ERROR),
        ({"ever": 3}, "gpu-memory-worn", Level.NOTE),
        ({"pending": "Yes"}, "gpu-memory-worn", Level.WARNING),
        ({"failed": "Yes"}, "gpu-memory-worn", Level.ERROR),
        ({"recovery": "Reset"}, "gpu-fell-off-bus-xid-ecc", Level.ERROR),
        ({"width": 8}, "gpu-link-degraded", Level.WARNING),
        ({"performance": "P0", "gen": 3}, "gpu-link-degraded", Level.NOTE),
        ({"persistence": "Disabled"}, "gpu-settings", Level.NOTE),
        ({"ecc": "Disabled"}, "gpu-settings", Level.NOTE),
        ({"fabric": "In Progress"}, "cuda-driver-mismatch", Level.ERROR),
        ({"gen": 1, "heat": 60, "watts": 680}, None, None),  # at rest, warm, as everywhere
    ],
)
def test_health(tmp_path, state, cause, level):
    found = judged(tmp_path, gpu(**state), check="gpu-health")
    assert [(claim.cause, claim.level) for claim in found] == ([(cause, level)] if cause else [])
    assert all(claim.evidence for claim in found)
