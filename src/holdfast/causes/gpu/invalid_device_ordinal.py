"""GPU007 invalid-device-ordinal."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

INVALID_DEVICE_ORDINAL = Cause(
    code="GPU007",
    name="invalid-device-ordinal",
    summary="A rank requested a GPU index that its host or allocation does not have.",
    what_happens="More processes were started on the host than devices are visible, the global "
    "rank is used as an index on the second host, or the scheduler's CUDA_VISIBLE_DEVICES hides "
    "devices that the program expects.",
    shows_before="nproc-per-node is greater than the number of visible devices; RANK is used "
    "instead of LOCAL_RANK.",
    shows_during="The ranks with the high indices die in the first second; the others wait in the "
    "store or in the first collective.",
    shows_after="`CUDA error: invalid device ordinal` on those ranks only, with an ordinary "
    "traceback; the survivors report a closed connection or a timeout.",
    known_misses="A device lost since boot (gpu-fell-off-bus-xid-ecc) causes the same error on "
    "the rank with the last index.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="invalid-ordinal",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="a rank requests a GPU that does not exist",
            patterns=(
                r"(?:machine|setup|host) (?:only has|has only):? (?:\d+ GPU|\[[\d, ]*\])",
                "invalid device ordinal|No CUDA GPUs are available|with GPUs, no GPUs found",
                (
                    r"no CUDA-capable device is detected|Invalid device id\b|GPU device may be "
                    r"out of range"
                ),
                # Triton without a visible GPU; Gaudi's module of a rank
                r"RuntimeError: 0 active drivers \(\[\]\)|Invalid HABANA_VISIBLE_MODULES=",
            ),
            examples=(
                "[rank3]: RuntimeError: CUDA error: invalid device ordinal",
                "[rank5]: RuntimeError: 0 active drivers ([]). There should only be one.",
                (
                    "[rank5]: RuntimeError: Invalid HABANA_VISIBLE_MODULES=5. Module IDs should be "
                    "between 0 and 3."
                ),
            ),
        ),
    ),
    alternatives=("duplicate-gpu",),
    treatment=Treatment.CODE,
    remedies=(
        automatic(
            "Show the devices that the job's processes can see.",
            'echo "$CUDA_VISIBLE_DEVICES"; nvidia-smi -L',
        ),
        by_hand(
            "Request as many devices as processes, and use LOCAL_RANK as the index: "
            "`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`."
        ),
    ),
    sources=(
        "speechbrain/speechbrain#2506",
        "openai/gpt-oss#267",
        "triton: python/triton/runtime/driver.py",
        "vllm-project/vllm-gaudi#946",
    ),
)
