"""GPU006 duplicate-gpu."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier
from holdfast.core.treatments import Treatment

DUPLICATE_GPU = Cause(
    code="GPU006",
    name="duplicate-gpu",
    summary="Two ranks use the same GPU.",
    what_happens="NCCL rejects a communicator in which two ranks of one host use the same device. "
    "Reasons: the device is never set (all on cuda:0), the global rank is used modulo a number, "
    "or CUDA_VISIBLE_DEVICES gives several ranks the same single device.",
    shows_before="No torch.cuda.set_device(LOCAL_RANK) before init_process_group and no device_id "
    "in it; more local ranks than visible devices.",
    shows_during="The first collective, often a barrier, fails at once. Until then memory fills "
    "on one device and the others stay empty.",
    shows_after="`Duplicate GPU detected : rank r and rank s both on CUDA device ...` with "
    "ncclInvalidUsage, naming both ranks and the bus address. All ranks of the communicator fail "
    "in the same way.",
    known_misses="gloo shares the device without an error: only memory and speed show it. Two "
    "jobs on one device are not detected.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="duplicate-gpu",
            tier=Tier.NAMED,
            confidence=0.9,
            sentence="two ranks use the same GPU",
            patterns=(
                r"Duplicate GPU detected : rank (?P<rank>\d+) and rank (?P<other>\d+)",
                "Multiple (?:processes|[Rr]anks).{0,40}same (?:GPU|CUDA device)",
            ),
            examples=(
                (
                    "n1:5:9 [0] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on "
                    "CUDA device 3b000"
                ),
            ),
        ),
        LogSignal(
            name="nccl-invalid-usage",
            tier=Tier.DEVICE,
            confidence=0.4,
            sentence="NCCL reports invalid usage, mostly two ranks on one GPU",
            patterns=(
                "ncclInvalidUsage|ncclInvalidArgument|NCCL.{0,60}invalid (?:usage|argument)",
            ),
            examples=(
                (
                    "torch.distributed.DistBackendError: NCCL error in: "
                    "ProcessGroupNCCL.cpp:1970, invalid usage, NCCL version 2.18.1"
                ),
            ),
        ),
    ),
    alternatives=("invalid-device-ordinal",),
    treatment=Treatment.CODE,
    remedies=(
        by_hand(
            "Bind each rank to its device before the group is created: "
            "`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`."
        ),
        disruptive(
            "Start as many processes as there are GPUs.", "holdfast run --nproc-per-node gpu SCRIPT"
        ),
    ),
    sources=("NVIDIA/nccl: src/init.cc", "pytorch/pytorch#129385"),
)
