"""ENV018 software-differs-between-hosts."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

SOFTWARE_DIFFERS_BETWEEN_HOSTS = Cause(
    code="ENV018",
    name="software-differs-between-hosts",
    summary="Hosts of one job have different versions of Python, torch, NCCL, the driver or other "
    "packages.",
    what_happens="One host was built from another image, missed an upgrade, or has a package in a "
    "home folder that comes first on the path. Ranks whose torch or NCCL differ may order or "
    "split collectives differently and wait for each other, reject each other's handshake, or "
    "fail to unpickle an unknown type. With other packages the results drift apart, or one rank "
    "alone raises an error.",
    shows_before="`holdfast check` over the hosts compares a fingerprint of all packages and "
    "names those that differ. Neither torch nor torchrun compares them.",
    shows_during="A hang in the first collective, or an error on the ranks of one host only.",
    shows_after="NCCL's `Mismatched NCCL version detected`, an AttributeError or a failed "
    "unpickling on one host, or only results that differ.",
    known_misses="Packages with the same version number and different contents (local builds, "
    "patched files) look identical. Of the libraries outside Python (CUDA, OFED, libfabric) only "
    "the driver is compared.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.HOST,
    ),
    signals=(
        LogSignal(
            name="versions-differ",
            tier=Tier.NAMED,
            confidence=0.85,
            sentence="hosts have different versions",
            patterns=(
                (
                    "EI0008: |HCCL versions? .{0,60}inconsistent|[Pp]ython version "
                    "mismatch: .{0,60}worker"
                ),
                "Version mismatch: The cluster was started with",
            ),
            examples=(
                ("EI0008: [PID: 811] The HCCL versions are inconsistent: tag allreduce"),
                (
                    "RuntimeError: Version mismatch: The cluster was started with: "
                    "Ray: 2.40.0 Python: 3.10.12"
                ),
            ),
        ),
    ),
    remedies=(
        by_hand("Start all hosts from one image, or one lock file."),
        automatic(
            "Compare the packages host by host.",
            "srun --ntasks-per-node=1 sh -c 'hostname; python -m pip list --format=freeze "
            "| sha256sum'",
        ),
    ),
    sources=(
        "pytorch/pytorch#108212",
        "NVIDIA/nccl: src/bootstrap.cc, src/init.cc, ncclVersion of the peers",
    ),
)
