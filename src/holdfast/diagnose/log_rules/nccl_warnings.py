"""Warnings of NCCL that no signal knows: the source file shows which part failed."""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.causes.configuration.comm_config_bad import COMM_CONFIG_BAD
from holdfast.causes.environment.nccl_plugin_missing import NCCL_PLUGIN_MISSING
from holdfast.causes.gpu.cuda_driver_mismatch import CUDA_DRIVER_MISMATCH
from holdfast.causes.gpu.iommu_acs_p2p_hang import IOMMU_ACS_P2P_HANG
from holdfast.causes.memory.shm_too_small import SHM_TOO_SMALL
from holdfast.causes.network.ib_error import IB_ERROR
from holdfast.causes.network.network_interface_wrong import NETWORK_INTERFACE_WRONG
from holdfast.core.findings import Cause
from holdfast.diagnose.log_rules.candidates import CauseCandidate
from holdfast.diagnose.log_rules.log_index import LogIndex, comes_after, position
from holdfast.diagnose.log_rules.rank_inference import find_rank
from holdfast.diagnose.log_rules.signal_causes import SIGNAL_CAUSES, Tier

#: NCCL's summaries of any failure.
_SUMMARIES = ("nccl-system-error", "nccl-internal-error", "nccl-cuda-error", "nccl-invalid-usage")
#: More than a summary, less than a line of a known kind.
_CONFIDENCE = 0.45
#: Source files, or the part that the text names -> the likeliest cause of its failures.
_PARTS: tuple[tuple[re.Pattern[str], Cause, str], ...] = (
    (re.compile(r"NET/(?:OFI|Plugin)|plugin/|coll_net"), NCCL_PLUGIN_MISSING, "the network plugin"),
    (
        re.compile(r"NET/IB|net_ib|ibvwrap|ibvcore|ibvsymbols|mlx5dvwrap|gdaki"),
        IB_ERROR,
        "InfiniBand",
    ),
    (re.compile(r"shmutils|transport/shm"), SHM_TOO_SMALL, "shared memory"),
    (re.compile(r"transport/p2p|ipcsocket"), IOMMU_ACS_P2P_HANG, "P2P between GPUs"),
    (
        re.compile(r"nvls|cudawrap|nvmlwrap|gdrwrap|mem_manager|dev_runtime|mnnvl|alloc\.h"),
        CUDA_DRIVER_MISMATCH,
        "the driver",
    ),
    (re.compile(r"socket|bootstrap|NET/Socket"), NETWORK_INTERFACE_WRONG, "sockets"),
    (re.compile(r"graph/|init\.cc|param\.cc|tuner|enqueue"), COMM_CONFIG_BAD, "the setup"),
)


def find_failed_part(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield the part of NCCL that warned last before a failure, if no line names the cause."""
    failure = index.first(*_SUMMARIES)
    if failure is None or "peer-closed" in index:
        return
    known = {
        position(one)
        for one in index.facts.signals
        if one.name in SIGNAL_CAUSES and one.name not in _SUMMARIES
    }
    warnings = [
        one
        for one in index.all("nccl-warning")
        if position(one) not in known and not comes_after(one, failure)
    ]
    for one in reversed(warnings):
        file = str(one.fields["file"])
        for pattern, cause, part in _PARTS:
            if pattern.search(one.line.text) or pattern.search(file):
                text = one.line.text.partition("NCCL WARN ")[2].strip()[:120]
                message = f"NCCL failed in {part}: {text}"
                rank, lines = find_rank(index, [one, failure]), (one.line, failure.line)
                name = cause.name
                yield CauseCandidate(name, Tier.NETWORK, _CONFIDENCE, message, lines, rank)
                return
