"""GPU008 gpu-throttled."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

GPU_THROTTLED = Cause(
    code="GPU008",
    name="gpu-throttled",
    summary="A GPU lowers its clocks because it is too hot or its power supply is insufficient.",
    what_happens="The device protects itself: above its slowdown temperature, or when the board's "
    "power brake is active, the clocks drop, sometimes to a fraction. Every rank waits for this "
    "one in the next collective, so one hot GPU determines the speed of the whole job.",
    shows_before="Active clock event reasons (hw_thermal_slowdown, sw_thermal_slowdown, "
    "hw_power_brake_slowdown) or a temperature near the slowdown threshold on an idle host; a "
    "failed fan or pump.",
    shows_during="One rank is last in every step (straggler), always on the same host; its GPU "
    "draws less power than the others at full utilization. The watcher reports it while the job "
    "runs.",
    shows_after="`HW Thermal Slowdown: Active` in a log of nvidia-smi; otherwise nothing: the "
    "job was slow, or the slow rank's peers timed out.",
    known_misses="sw_power_cap alone is normal under load and is not reported. A GPU that "
    "throttles only under load looks healthy before the job.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="gpu-slowdown",
            tier=Tier.WAITING,
            confidence=0.5,
            sentence="the GPU lowers its clocks because of heat or power",
            patterns=(
                "HW (?:Thermal |Power Brake )?Slowdown +: Active",
                # DCGM's health watch
                r"clocks? (?:event|throttling) due to (?:thermal|power) violation in GPU \d",
            ),
            examples=(
                "        HW Thermal Slowdown                          : Active",
                (
                    "dcgm ERROR [[Health]] Detected a WARNING in health system Thermal: 'Detected "
                    "clocks event due to thermal violation in GPU 2. Verify that the cooling works"
                ),
            ),
            counter_examples=("        HW Thermal Slowdown                          : Not Active",),
        ),
    ),
    treatment=Treatment.SLOW_HOST,
    remedies=(
        automatic(
            "Show the reason, and since when the clocks are lowered.",
            "nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
        ),
        by_hand("Check the fans, air or water cooling and the power supplies of this host."),
        DRAIN,
    ),
    sources=(
        "NVIDIA NVML: nvmlClocksEventReasons",
        "leptonai/gpud: components/accelerator/nvidia/hw-slowdown",
    ),
)
