"""NVML queries by the real wrapper: with this machine's GPUs if present, else with a fake library."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.core.findings import Unknown
from holdfast.host.gpus import (
    DriverReport,
    DriverTimeout,
    GpuPair,
    GpuProcess,
    NoDriver,
    NvLink,
    nvidia_smi,
)
from holdfast.host.gpus import driver as gpu_driver
from tests.unit.host.gpus import recorded

pytest.importorskip("pynvml")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return recorded.library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return monkeypatch


@pytest.mark.usefixtures("driver")
def test_all_values():
    answer = gpu_driver.query_driver()
    assert isinstance(answer, DriverReport), answer
    assert (answer.source, answer.driver, answer.cuda) == ("NVML", "580.95.05", "13.0")
    well, faulty = answer.gpus
    assert (well.name, well.uuid[:12], well.bus) == ("NVIDIA H100", "GPU-00000000", "0000:1a:00.0")
    assert (well.memory_bytes, well.memory_used_bytes) == (80 << 30, 3 << 30)
    assert (well.temperature_c, well.slowdown_c, well.margin_c) == (
        31,
        90,
        None,
    )  # this driver reports no margin
    assert (well.throttled, faulty.throttled) == ((), ("hw_slowdown", "hw_thermal_slowdown"))
    assert (well.power_limit_w, faulty.power_limit_w, faulty.power_default_w) == (700, 350, 700)
    assert (well.ecc, well.ecc_errors, faulty.ecc_errors, faulty.ecc_lifetime_errors) == (
        True,
        0,
        2,
        2,
    )
    assert (faulty.rows_pending, faulty.rows_failed, faulty.pages_pending) == (True, False, None)
    assert (well.recovery, faulty.recovery) == ("none", "GPU reset")
    assert [link.up for link in well.nvlinks] == [True] * 18
    assert [number for number, link in enumerate(faulty.nvlinks) if not link.up] == [3]
    assert {link.rate for link in well.nvlinks} == {
        25e9
    }  # as specified; the driver reports the wire speed, 26.6
    assert faulty.nvlinks[5] == NvLink(up=True, rate=13.281e9, remote="switch")
    assert [link.remote for link in well.nvlinks] == ["switch"] * 16 + ["0000:2a:00.0"] * 2
    assert (well.nvlink_errors, faulty.nvlink_errors) == (0, 21)
    assert (well.fabric, faulty.fabric) == ("completed", "in progress")
    assert (well.compute_mode, faulty.compute_mode) == ("default", "prohibited")
    assert well.processes == (GpuProcess(1, 1 << 30),)
    assert answer.pairs == (GpuPair(0, 1, "NVLink", "DR"),)


@pytest.mark.usefixtures("driver")
def test_a_failed_value_is_unknown_and_affects_no_other():
    faulty = gpu_driver.query_driver().gpus[1]
    assert faulty.pcie_gen == Unknown("NVML CurrPcieLinkGeneration: GPU is lost")
    assert (faulty.pcie_gen_max, faulty.pcie_width) == (5, 8)


@pytest.mark.usefixtures("driver")
def test_the_report_survives_json():
    answer = gpu_driver.query_driver()
    assert msgspec.json.decode(msgspec.json.encode(answer), type=DriverReport) == answer


def test_a_driver_that_does_not_answer_is_abandoned(driver):
    driver.setenv("NVML_HANGS", "1")
    start = time.monotonic()
    driver.setattr(gpu_driver, "LIMIT_S", 1.5)
    answer = gpu_driver.query_driver(limit_s=1.5)
    assert isinstance(answer, DriverTimeout)
    assert answer.why == "the NVIDIA driver did not answer within 1.5 s"
    assert time.monotonic() - start < 4


def test_with_a_short_limit_a_driver_is_not_reported_as_stuck(driver):
    driver.setenv("NVML_HANGS", "1")
    answer = gpu_driver.query_driver(limit_s=0.5)
    assert type(answer) is Unknown
    assert (
        answer.why
        == "the NVIDIA driver did not answer within 0.5 s; without persistence mode it may need 15 s"
    )


def test_a_driver_without_devices(driver):
    driver.setenv("NVML_NO_DEVICES", "1")
    answer = gpu_driver.query_driver()
    assert (answer.driver, answer.gpus, answer.pairs) == ("580.95.05", (), ())


def test_a_driver_that_refuses(driver):
    driver.setenv("NVML_NOT_LOADED", "1")
    driver.setenv("PATH", "")
    assert gpu_driver.query_driver() == NoDriver("NVML: Driver Not Loaded")


@pytest.fixture
def program(driver, tmp_path):
    """Make NVML fail; nvidia-smi is a script of the test."""
    driver.setenv("NVML_NOT_LOADED", "1")
    driver.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(script):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return write


def test_nvidia_smi_is_used_if_nvml_fails(program, tmp_path):
    (tmp_path / "said.xml").write_bytes(recorded.answer(recorded.gpu()))
    program(f'[ "$*" = "-q -x" ] && cat {tmp_path}/said.xml')
    answer = gpu_driver.query_driver()
    assert (answer.source, [gpu.name for gpu in answer.gpus]) == (
        "nvidia-smi -q -x",
        ["NVIDIA H100 80GB HBM3"],
    )


def test_a_hanging_nvidia_smi_is_abandoned(program, driver):
    program("exec sleep 600")
    driver.setattr(gpu_driver, "LIMIT_S", 2)
    start = time.monotonic()
    assert isinstance(gpu_driver.query_driver(limit_s=2), DriverTimeout)
    assert time.monotonic() - start < 8


def test_both_failure_reasons_are_reported(program):
    program(
        "echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9"
    )
    answer = gpu_driver.query_driver()
    assert answer.why.startswith(
        "NVML: Driver Not Loaded; nvidia-smi exited with status 9: NVIDIA-SMI has failed"
    )


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_no_driver():
    assert isinstance(gpu_driver.query_driver(), NoDriver)


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs an NVIDIA GPU")
def test_the_gpus_of_this_machine():
    answer = gpu_driver.query_driver()
    csv_lines = subprocess.run(
        ["nvidia-smi", "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert [gpu.uuid for gpu in answer.gpus] == [line.split(",")[0] for line in csv_lines]
    assert [gpu.bus for gpu in answer.gpus] == [
        line.split(", ")[1].lower()[-12:] for line in csv_lines
    ]
    assert all(
        isinstance(gpu.temperature_c, int) and 5 < gpu.temperature_c < 100 for gpu in answer.gpus
    )
    report = nvidia_smi.query_nvidia_smi(30)
    assert [(gpu.uuid, gpu.name, gpu.memory_bytes >> 30) for gpu in report.gpus] == [
        (gpu.uuid, gpu.name, gpu.memory_bytes >> 30) for gpu in answer.gpus
    ]


def test_only_the_query_process_imports_the_wrapper():
    code = "import sys, holdfast.host.checks.devices.gpus, holdfast.host.gpus.nvml; assert 'pynvml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
