"""What nvidia-smi says, read."""

import pytest

from holdfast.facts.gpus import Held, smi
from holdfast.findings import Unknown
from tests.facts.gpus.recorded import answer, gpu, process


def test_a_healthy_gpu_and_an_ill_one():
    said = answer(
        gpu(),
        gpu(bus="2B", hot="Active", errors=2, ever=5, pending="Yes", width=8, gen=5, performance="P0", watts=350,
            recovery="Drain and Reset", compute="Exclusive_Process", processes=process(17) + process(18, "G"), used=600,
            fabric="In Progress"),
    )  # fmt: skip
    told = smi.parsed(said)
    assert (told.driver, told.cuda, told.source) == ("580.95.05", "13.0", "nvidia-smi -q -x")
    well, ill = told.gpus
    assert (well.index, well.bus, well.uuid) == (0, "0000:1b:00.0", "GPU-11111111-aaaa")
    assert (well.memory_bytes, well.temperature_c, well.slowdown_c, well.margin_c) == (81559 << 20, 31, 89, None)
    assert (well.throttled, well.ecc, well.ecc_errors, well.rows_pending, well.pages_pending) == (
        (),
        True,
        0,
        False,
        None,
    )
    assert (well.recovery, well.compute_mode, well.mig, well.performance) == ("none", "default", False, 8)
    assert (ill.throttled, ill.ecc_errors, ill.ecc_ever_errors, ill.rows_pending) == (
        ("hw_thermal_slowdown",),
        2,
        5,
        True,
    )
    assert (ill.pcie_width, ill.pcie_width_most, ill.pcie_gen, ill.pcie_gen_most) == (8, 16, 5, 5)
    assert (ill.power_limit_w, ill.power_default_w) == (350, 700)
    assert (ill.recovery, ill.compute_mode, ill.fabric) == ("Drain and Reset", "exclusive process", "in progress")
    assert ill.held == (Held(17, 516 << 20),)  # the other only draws
    assert isinstance(told.pairs, Unknown)


def test_reasons_under_their_name_before_driver_535():
    told = smi.parsed(answer(gpu(hot="Active")).replace(b"clocks_event_reason", b"clocks_throttle_reason"))
    assert told.gpus[0].throttled == ("hw_thermal_slowdown",)


def test_what_a_gpu_does_not_have_is_none():
    told = smi.parsed(answer(gpu(ecc="N/A", errors="N/A", ever="N/A", pending="N/A", heat="N/A", mig="N/A")))
    (seen,) = told.gpus
    assert (seen.ecc, seen.rows_pending, seen.temperature_c, seen.mig) == (None,) * 4


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"", "cannot be read"),
        (b"NVIDIA-SMI has failed because it couldn't communicate", "cannot be read"),
        (answer(gpu())[:900], "cannot be read"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "entities"),
    ],
)
def test_what_is_no_answer(said, why):
    assert why in smi.parsed(said).why


def test_a_document_of_something_else_has_no_gpus():
    assert smi.parsed(b"<a/>").gpus == ()
