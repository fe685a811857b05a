"""Findings about GPUs of recorded hosts."""

import pytest

from holdfast.core.findings import Level, Unknown
from holdfast.host import pci
from holdfast.host.check_rules import judge_check
from holdfast.host.checks import CHECKS, CheckContext
from holdfast.host.checks.devices.gpus import GpusResult
from tests.unit.host.checks.devices import device, write
from tests.unit.host.gpus.recorded import answer, gpu, process, tree


def judged(folder, *gpus, check="gpus", workers=None, environ=None, **host):
    context = CheckContext(root=tree(folder, *gpus, **host), workers=workers, environ=environ or {})
    check = CHECKS[check]
    return judge_check(check, check.run(context), context, "a")


def causes_and_levels(findings):
    return [(finding.cause, finding.level, finding.subject.gpu) for finding in findings]


EIGHT = [gpu(bus=f"{n}B", uuid=f"{n}111-aaaa") for n in range(1, 9)]


def test_a_healthy_host_gives_no_finding(tmp_path):
    assert judged(tmp_path, *EIGHT, workers=8) == ()


@pytest.mark.parametrize(
    ("value", "workers", "level", "words"),
    [
        ("0,1,2", 8, Level.ERROR, "8 workers on this host, but only 3 visible GPUs"),
        (
            "0,9,1",
            None,
            Level.ERROR,
            "9 is not a GPU of this host, and CUDA ignores it and all later entries: only 1 of 8",
        ),
        ("0,0", None, Level.ERROR, "lists 0 twice"),
        ("", 1, Level.ERROR, "only 0 visible GPUs: CUDA finds none"),
        ("1,0", 2, Level.NOTE, "cuda:0 is GPU 1, cuda:1 is GPU 0"),
        ("MIG-12", None, Level.WARNING, "MIG-12 is not a GPU"),
    ],
)
def test_the_variable(tmp_path, value, workers, level, words):
    findings = judged(tmp_path, *EIGHT, workers=workers, environ={"CUDA_VISIBLE_DEVICES": value})
    assert (findings[0].level, words in findings[0].message) == (level, True), findings[0].message


def test_a_driver_without_devices(tmp_path):
    """The driver answers but lists none of the GPUs on the bus."""
    root = tree(tmp_path, on_bus=2)
    (tmp_path / "nvidia-smi.xml").write_bytes(answer())
    context = CheckContext(root=root)
    (finding,) = judge_check(CHECKS["gpus"], CHECKS["gpus"].run(context), context, "a")
    assert (finding.cause, finding.level) == ("cuda-driver-mismatch", Level.WARNING)
    assert finding.message.startswith("2 NVIDIA GPUs on the PCI bus, but the driver lists none")
    context = CheckContext(root=root, workers=2)
    assert "2 workers on this host, but only 0 visible GPUs: CUDA finds none" in str(
        judge_check(CHECKS["gpus"], CHECKS["gpus"].run(context), context, "a")
    )


def test_too_few_for_the_launcher(tmp_path):
    (finding,) = judged(tmp_path, *EIGHT[:4], workers=8)
    assert (finding.cause, finding.level) == ("invalid-device-ordinal", Level.ERROR)


def test_mixed_models(tmp_path):
    mixed = (*EIGHT[:1], gpu(bus="2B", name="NVIDIA L4"))
    (finding,) = judged(tmp_path, *mixed)
    assert (finding.cause, finding.level) == ("gpu-renumbered", Level.WARNING)
    assert finding.remedies[0].command == "export CUDA_DEVICE_ORDER=PCI_BUS_ID"


def test_mixed_models_in_bus_order(tmp_path):
    mixed = (*EIGHT[:1], gpu(bus="2B", name="NVIDIA L4"))
    assert judged(tmp_path, *mixed, environ={"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}) == ()


def test_gpu_that_the_driver_lost(tmp_path):
    (finding,) = judged(tmp_path, *EIGHT[:7], on_bus=8)
    assert (finding.cause, finding.level) == ("gpu-fell-off-bus-xid-ecc", Level.ERROR)
    assert "0000:8b:00.0" in finding.message


@pytest.mark.parametrize(
    ("driver", "words"), [("vfio-pci", "they are bound to vfio-pci"), ("", "no driver responds")]
)
def test_gpus_without_a_driver(tmp_path, driver, words):
    (finding,) = judged(tmp_path, on_bus=2, driver=driver)
    assert (finding.cause, finding.level) == ("cuda-driver-mismatch", Level.ERROR)
    assert words in finding.message


def test_a_driver_that_is_stuck():
    result = GpusResult(
        stuck=True, unanswered=Unknown("the NVIDIA driver did not answer within 15 s")
    )
    (finding,) = judge_check(CHECKS["gpus"], result, CheckContext(), "a")
    assert (finding.cause, finding.level) == ("gpu-fell-off-bus-xid-ecc", Level.ERROR)


def test_a_variable_of_another_host(tmp_path):
    (finding,) = judged(tmp_path, environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (finding.cause, finding.level) == ("invalid-device-ordinal", Level.WARNING)
    assert "is set, but this host or container has no GPU" in finding.message


def test_nvswitches_without_fabric_manager(tmp_path):
    device(tmp_path, "0000:c0:00.0", pci.NVIDIA, 0x068000)
    ampere = [gpu(fabric="N/A"), gpu(bus="2B", fabric="N/A")]
    (finding,) = judged(tmp_path, *ampere)
    assert "1 NVSwitches, but no visible Fabric Manager" in finding.message
    write(tmp_path, {"proc/900/comm": "nv-fabricmanage"})
    assert (
        judge_check(
            CHECKS["gpus"],
            CHECKS["gpus"].run(CheckContext(root=str(tmp_path))),
            CheckContext(),
            "a",
        )
        == ()
    )


def test_other_users_of_gpus(tmp_path):
    (tmp_path / "proc/77").mkdir(parents=True)
    (tmp_path / "proc/77/stat").write_text("77 (python3) S 1" + " 0" * 48)
    (tmp_path / "proc/78").mkdir()
    (tmp_path / "proc/78/stat").write_text("78 (old) Z 1" + " 0" * 48)
    findings = judged(
        tmp_path,
        gpu(processes=process(77)),
        gpu(bus="2B", processes=process(78)),
        gpu(bus="3B", used=9000),
        gpu(bus="4B", processes=process(79, memory="N/A")),
    )
    assert causes_and_levels(findings) == [
        ("gpu-in-use", Level.WARNING, index) for index in range(4)
    ]
    assert findings[0].remedies[0].command == "kill 77"
    assert "python3 (process 77" in findings[0].message
    assert "zombie" in findings[1].message
    assert "no process that uses it" in findings[2].message
    assert "in another container" in findings[3].message


def test_unusable_modes(tmp_path):
    findings = judged(tmp_path, gpu(compute="Prohibited"), gpu(bus="2B", mig="Enabled"))
    assert causes_and_levels(findings) == [
        ("gpu-settings", Level.ERROR, 0),
        ("gpu-settings", Level.WARNING, 1),
    ]


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
        ({"gen": 1, "heat": 60, "watts": 680}, None, None),  # idle and warm is normal
    ],
)
def test_health(tmp_path, state, cause, level):
    findings = judged(tmp_path, gpu(**state), check="gpu-health")
    assert [(finding.cause, finding.level) for finding in findings] == (
        [(cause, level)] if cause else []
    )
    assert all(finding.evidence for finding in findings)
