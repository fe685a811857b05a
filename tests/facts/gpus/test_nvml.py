"""NVML is asked by its real wrapper: of this machine where it has GPUs, of a library that stands for it elsewhere."""

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from holdfast.facts import gpus
from holdfast.facts.gpus import Answer, Held, NoDriver, NvLink, Pair, Stuck
from holdfast.findings import Unknown
from tests.facts.gpus import recorded

pytest.importorskip("pynvml")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return recorded.library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def driver(library, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library))
    return monkeypatch


@pytest.mark.usefixtures("driver")
def test_all_that_the_driver_tells():
    answer = gpus.ask()
    assert isinstance(answer, Answer), answer
    assert (answer.source, answer.driver, answer.cuda) == ("NVML", "580.95.05", "13.0")
    well, ill = answer.gpus
    assert (well.name, well.uuid[:12], well.bus) == ("NVIDIA H100", "GPU-00000000", "0000:1a:00.0")
    assert (well.memory_bytes, well.memory_used_bytes) == (80 << 30, 3 << 30)
    assert (well.temperature_c, well.slowdown_c, well.margin_c) == (31, 90, None)  # this driver knows no margin
    assert (well.throttled, ill.throttled) == ((), ("hw_slowdown", "hw_thermal_slowdown"))
    assert (well.power_limit_w, ill.power_limit_w, ill.power_default_w) == (700, 350, 700)
    assert (well.ecc, well.ecc_errors, ill.ecc_errors, ill.ecc_ever_errors) == (True, 0, 2, 2)
    assert (ill.rows_pending, ill.rows_failed, ill.pages_pending) == (True, False, None)
    assert (well.recovery, ill.recovery) == ("none", "GPU reset")
    assert [link.up for link in well.nvlinks] == [True] * 18
    assert [number for number, link in enumerate(ill.nvlinks) if not link.up] == [3]
    assert {link.rate for link in well.nvlinks} == {25e9}  # of the generation, where the driver tells 26.6 on the wire
    assert ill.nvlinks[5] == NvLink(up=True, rate=13.281e9, to="switch")
    assert [link.to for link in well.nvlinks] == ["switch"] * 16 + ["0000:2a:00.0"] * 2
    assert (well.nvlink_errors, ill.nvlink_errors) == (0, 21)
    assert (well.fabric, ill.fabric) == ("completed", "in progress")
    assert (well.compute_mode, ill.compute_mode) == ("default", "prohibited")
    assert well.held == (Held(1, 1 << 30),)
    assert answer.pairs == (Pair(0, 1, "NVLink", "DR"),)


@pytest.mark.usefixtures("driver")
def test_what_fails_is_unknown_and_takes_nothing_with_it():
    ill = gpus.ask().gpus[1]
    assert ill.pcie_gen == Unknown("NVML CurrPcieLinkGeneration: GPU is lost")
    assert (ill.pcie_gen_most, ill.pcie_width) == (5, 8)


@pytest.mark.usefixtures("driver")
def test_the_answer_travels():
    answer = gpus.ask()
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer) == answer


def test_a_driver_that_does_not_answer_is_left_behind(driver):
    driver.setenv("NVML_HANGS", "1")
    begun = time.monotonic()
    driver.setattr(gpus, "LIMIT_S", 1.5)
    answer = gpus.ask(limit_s=1.5)
    assert isinstance(answer, Stuck)
    assert answer.why == "the NVIDIA driver did not answer within 1.5 s"
    assert time.monotonic() - begun < 4


def test_a_driver_that_was_given_little_time_is_not_called_stuck(driver):
    driver.setenv("NVML_HANGS", "1")
    answer = gpus.ask(limit_s=0.5)
    assert type(answer) is Unknown
    assert answer.why == "the NVIDIA driver did not answer within 0.5 s; without persistence mode it may need 15 s"


def test_a_driver_without_devices(driver):
    driver.setenv("NVML_NO_DEVICES", "1")
    answer = gpus.ask()
    assert (answer.driver, answer.gpus, answer.pairs) == ("580.95.05", (), ())


def test_a_driver_that_refuses(driver):
    driver.setenv("NVML_NOT_LOADED", "1")
    driver.setenv("PATH", "")
    assert gpus.ask() == NoDriver("NVML: Driver Not Loaded")


@pytest.fixture
def program(driver, tmp_path):
    """NVML refuses, and nvidia-smi is what the test writes."""
    driver.setenv("NVML_NOT_LOADED", "1")
    driver.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def write(script):
        (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "nvidia-smi").chmod(0o755)

    return write


def test_nvidia_smi_is_asked_where_nvml_refuses(program, tmp_path):
    (tmp_path / "said.xml").write_bytes(recorded.answer(recorded.gpu()))
    program(f'[ "$*" = "-q -x" ] && cat {tmp_path}/said.xml')
    answer = gpus.ask()
    assert (answer.source, [gpu.name for gpu in answer.gpus]) == ("nvidia-smi -q -x", ["NVIDIA H100 80GB HBM3"])


def test_an_nvidia_smi_that_hangs_is_left_behind(program, driver):
    program("exec sleep 600")
    driver.setattr(gpus, "LIMIT_S", 2)
    begun = time.monotonic()
    assert isinstance(gpus.ask(limit_s=2), Stuck)
    assert time.monotonic() - begun < 8


def test_why_neither_answers_is_told(program):
    program("echo 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.'; exit 9")
    answer = gpus.ask()
    assert answer.why.startswith("NVML: Driver Not Loaded; nvidia-smi ended with status 9: NVIDIA-SMI has failed")


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a driver")
def test_no_driver():
    assert isinstance(gpus.ask(), NoDriver)


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs an NVIDIA GPU")
def test_the_gpus_of_this_machine():
    answer = gpus.ask()
    said = subprocess.run(["nvidia-smi", "--query-gpu=uuid,pci.bus_id", "--format=csv,noheader"], capture_output=True,
                          text=True, check=True).stdout.splitlines()  # fmt: skip
    assert [gpu.uuid for gpu in answer.gpus] == [line.split(",")[0] for line in said]
    assert [gpu.bus for gpu in answer.gpus] == [line.split(", ")[1].lower()[-12:] for line in said]
    assert all(isinstance(gpu.temperature_c, int) and 5 < gpu.temperature_c < 100 for gpu in answer.gpus)
    told = gpus.smi.ask(30)
    assert [(gpu.uuid, gpu.name, gpu.memory_bytes >> 30) for gpu in told.gpus] == [
        (gpu.uuid, gpu.name, gpu.memory_bytes >> 30) for gpu in answer.gpus
    ]


def test_nothing_but_the_asking_process_imports_the_wrapper():
    code = "import sys, holdfast.facts.checks.gpus, holdfast.facts.gpus.nvml; assert 'pynvml' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
