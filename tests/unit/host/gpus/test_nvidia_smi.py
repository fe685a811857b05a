"""Parsing of nvidia-smi's XML."""

import pytest

from holdfast.core.findings import Unknown
from holdfast.host.gpus import GpuProcess, nvidia_smi
from tests.unit.host.gpus.recorded import answer, gpu, process


def test_a_healthy_gpu_and_a_faulty_one():
    xml_output = answer(
        gpu(),
        gpu(
            bus="2B",
            hot="Active",
            errors=2,
            ever=5,
            pending="Yes",
            width=8,
            gen=5,
            performance="P0",
            watts=350,
            recovery="Drain and Reset",
            compute="Exclusive_Process",
            processes=process(17) + process(18, "G"),
            used=600,
            fabric="In Progress",
        ),
    )
    report = nvidia_smi.parse_report(xml_output)
    assert (report.driver, report.cuda, report.source) == ("580.95.05", "13.0", "nvidia-smi -q -x")
    well, faulty = report.gpus
    assert (well.index, well.bus, well.uuid) == (0, "0000:1b:00.0", "GPU-11111111-aaaa")
    assert (well.memory_bytes, well.temperature_c, well.slowdown_c, well.margin_c) == (
        81559 << 20,
        31,
        89,
        None,
    )
    assert (well.throttled, well.ecc, well.ecc_errors, well.rows_pending, well.pages_pending) == (
        (),
        True,
        0,
        False,
        None,
    )
    assert (well.recovery, well.compute_mode, well.mig, well.performance) == (
        "none",
        "default",
        False,
        8,
    )
    assert (
        faulty.throttled,
        faulty.ecc_errors,
        faulty.ecc_lifetime_errors,
        faulty.rows_pending,
    ) == (
        ("hw_thermal_slowdown",),
        2,
        5,
        True,
    )
    assert (faulty.pcie_width, faulty.pcie_width_max, faulty.pcie_gen, faulty.pcie_gen_max) == (
        8,
        16,
        5,
        5,
    )
    assert (faulty.power_limit_w, faulty.power_default_w) == (350, 700)
    assert (faulty.recovery, faulty.compute_mode, faulty.fabric) == (
        "Drain and Reset",
        "exclusive process",
        "in progress",
    )
    assert faulty.processes == (GpuProcess(17, 516 << 20),)  # the other one is a graphics process
    assert isinstance(report.pairs, Unknown)


def test_throttle_reasons_before_driver_535():
    report = nvidia_smi.parse_report(
        answer(gpu(hot="Active")).replace(b"clocks_event_reason", b"clocks_throttle_reason")
    )
    assert report.gpus[0].throttled == ("hw_thermal_slowdown",)


def test_unsupported_values_are_none():
    report = nvidia_smi.parse_report(
        answer(gpu(ecc="N/A", errors="N/A", ever="N/A", pending="N/A", heat="N/A", mig="N/A"))
    )
    (only,) = report.gpus
    assert (only.ecc, only.rows_pending, only.temperature_c, only.mig) == (None,) * 4


@pytest.mark.parametrize(
    ("xml", "why"),
    [
        (b"", "cannot be read"),
        (b"NVIDIA-SMI has failed because it couldn't communicate", "cannot be read"),
        (answer(gpu())[:900], "cannot be read"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "entities"),
    ],
)
def test_invalid_xml(xml, why):
    assert why in nvidia_smi.parse_report(xml).why


def test_another_document_has_no_gpus():
    assert nvidia_smi.parse_report(b"<a/>").gpus == ()
