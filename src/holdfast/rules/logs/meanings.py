"""What a signal means where nothing says otherwise: a cause, and how far it is to be believed.

Believed in this order (``Tier``): what the kernel and the driver say of the machine; errors that name their own cause;
exceptions; what the network says; who ended the job; crashes; what survivors say of a peer that is gone; who waited. A
later tier is mostly the echo of an earlier one.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Tier(IntEnum):
    """How near to the root a witness stands; the smaller, the nearer."""

    MACHINE = 0
    NAMED = 1
    DEVICE = 2
    EXCEPTION = 3
    NETWORK = 4
    OUTSIDE = 5
    CRASH = 6
    LOST = 7
    WAITING = 8
    SILENCE = 9


@dataclass(frozen=True)
class Meaning:
    """A cause by name, its tier, the confidence of a single line, and the sentence."""

    cause: str
    tier: Tier
    confidence: float
    sentence: str


MEANINGS = {
    "gpu-lost": Meaning("gpu-fell-off-bus-xid-ecc", Tier.MACHINE, 0.95, "the driver lost a GPU"),
    "ecc-uncorrectable": Meaning("gpu-fell-off-bus-xid-ecc", Tier.MACHINE, 0.95,
        "a GPU has uncorrectable memory errors"),
    "gsp-timeout": Meaning("gpu-fell-off-bus-xid-ecc", Tier.MACHINE, 0.95, "a GPU no longer answers the driver"),
    "nvlink-error": Meaning("gpu-hw-fault", Tier.MACHINE, 0.9, "an NVLink failed"),
    "rocm-hardware": Meaning("gpu-hw-fault", Tier.MACHINE, 0.8, "the driver reset a GPU"),
    "iommu-fault": Meaning("iommu-acs-p2p-hang", Tier.NAMED, 0.85,
        "the path between GPUs is broken by IOMMU or PCIe ACS"),
    "p2p-access": Meaning("iommu-acs-p2p-hang", Tier.DEVICE, 0.6, "GPUs cannot reach each other's memory directly"),
    "oom-killer": Meaning("host-oom-killed", Tier.MACHINE, 0.95, "a process was killed for lack of host memory"),
    "host-memory": Meaning("host-oom-killed", Tier.DEVICE, 0.6, "host memory could not be allocated"),
    "shm-full": Meaning("shm-too-small", Tier.NAMED, 0.95, "shared memory (/dev/shm) is too small"),
    "memlock": Meaning("memlock-limit", Tier.NAMED, 0.9, "memory could not be locked for RDMA"),
    "fd-limit": Meaning("fd-limit", Tier.NAMED, 0.9, "a process has too many open files"),
    "port-in-use": Meaning("port-in-use", Tier.NAMED, 0.95, "the rendezvous port is already taken"),
    "name-resolution": Meaning("hostname-resolution", Tier.NAMED, 0.85, "a host name does not resolve"),
    "nccl-version": Meaning("nccl-version-mismatch", Tier.NAMED, 0.9,
        "the NCCL that is loaded is not the one expected"),
    "nccl-plugin": Meaning("nccl-plugin-missing", Tier.NAMED, 0.75, "a plugin of NCCL does not load"),
    "nccl-config": Meaning("comm-config-bad", Tier.NAMED, 0.6, "a communication setting is not accepted"),
    "duplicate-gpu": Meaning("duplicate-gpu", Tier.NAMED, 0.9, "two ranks use the same GPU"),
    "invalid-ordinal": Meaning("invalid-device-ordinal", Tier.NAMED, 0.9, "a rank asks for a GPU that is not there"),
    "driver-mismatch": Meaning("cuda-driver-mismatch", Tier.NAMED, 0.85, "the driver does not fit the CUDA build"),
    "ddp-unused": Meaning("unused-parameters-ddp", Tier.NAMED, 0.95, "parameters got no gradient under DDP"),
    "ddp-twice": Meaning("ddp-param-ready-twice", Tier.NAMED, 0.95, "DDP saw the gradient of a parameter twice"),
    "barrier-missing": Meaning("rank-missing-collective", Tier.NAMED, 0.9, "ranks did not come to a monitored barrier"),
    "uneven-said": Meaning("uneven-inputs", Tier.NAMED, 0.9, "a rank was through with its inputs before the others"),
    "mismatch-said": Meaning("collective-mismatch", Tier.NAMED, 0.9, "ranks made different collectives"),
    "nccl-truncated": Meaning("collective-mismatch", Tier.NAMED, 0.7, "ranks sent different sizes"),
    "loader-killed": Meaning("dataloader-worker-died", Tier.NAMED, 0.85, "a data-loader worker died"),
    "loader-timeout": Meaning("dataloader-worker-died", Tier.NAMED, 0.7,
        "a data-loader worker delivered nothing in time"),
    "cuda-assert": Meaning("cuda-kernel-fault", Tier.NAMED, 0.9, "an assertion failed on the device"),
    "cuda-illegal-address": Meaning("cuda-kernel-fault", Tier.NAMED, 0.85, "a kernel used an illegal address"),
    "cuda-launch-failure": Meaning("cuda-kernel-fault", Tier.DEVICE, 0.6, "a kernel failed on the device"),
    "cuda-unknown-error": Meaning("gpu-hw-fault", Tier.DEVICE, 0.7, "a GPU failed in a way that CUDA has no word for"),
    "cuda-error-memory": Meaning("gpu-hw-fault", Tier.DEVICE, 0.4,
        "a GPU could not give memory outside of the allocator"),
    "nccl-invalid-usage": Meaning("duplicate-gpu", Tier.DEVICE, 0.4,
        "NCCL was used wrongly, mostly two ranks on a GPU"),
    "nccl-cuda-error": Meaning("cuda-driver-mismatch", Tier.NETWORK, 0.3, "a CUDA call of NCCL failed"),
    "nccl-internal-error": Meaning("comm-config-bad", Tier.NETWORK, 0.3, "NCCL failed a check of its own"),
    "nan": Meaning("mixed-precision-nan", Tier.DEVICE, 0.6, "the loss or the gradients are no numbers any more"),
    "download": Meaning("model-download-race", Tier.DEVICE, 0.6, "a download or a shared cache failed"),
    "checkpoint-broken": Meaning("checkpoint-corrupt", Tier.DEVICE, 0.7, "a checkpoint cannot be read"),
    "checkpoint-slow": Meaning("checkpoint-io-slow-timeout", Tier.DEVICE, 0.6, "storage was too slow, or stuck"),
    "ib-completion": Meaning("ib-error", Tier.NETWORK, 0.9, "an InfiniBand operation failed"),
    "ib-verb": Meaning("ib-error", Tier.NETWORK, 0.85, "an InfiniBand call failed"),
    "ib-event": Meaning("network-fabric-fault", Tier.NETWORK, 0.75, "a network link went down"),
    "no-interface": Meaning("network-interface-wrong", Tier.NETWORK, 0.85, "no usable network interface was found"),
    "docker-interface": Meaning("network-interface-wrong", Tier.NETWORK, 0.5,
        "a bridge or tunnel was taken for the network"),
    "no-route": Meaning("network-fabric-fault", Tier.NETWORK, 0.6, "a host has no route to another"),
    "connect-timed-out": Meaning("firewall-blocked-ports", Tier.NETWORK, 0.5, "a connection between ranks timed out"),
    "connect-refused": Meaning("network-fabric-fault", Tier.NETWORK, 0.45, "a peer refused the connection"),
    "gloo-connect": Meaning("network-interface-wrong", Tier.NETWORK, 0.5, "gloo could not connect the ranks"),
    "nccl-system-error": Meaning("network-interface-wrong", Tier.NETWORK, 0.3, "a system call of NCCL failed"),
    "rendezvous-timeout": Meaning("master-unreachable", Tier.NETWORK, 0.6, "the nodes did not come together"),
    "store-unreachable": Meaning("master-unreachable", Tier.NETWORK, 0.75, "the rendezvous store cannot be reached"),
    "clients-joined": Meaning("master-unreachable", Tier.NETWORK, 0.6, "ranks are missing at the rendezvous"),
    "store-key-timeout": Meaning("store-wait", Tier.NETWORK, 0.4, "a rank waited in the store in vain"),
    "store-lost": Meaning("peer-lost", Tier.LOST, 0.35, "the rendezvous store went away"),
    "peer-closed": Meaning("peer-lost", Tier.LOST, 0.5, "a peer closed its connection"),
    "node-failure": Meaning("peer-lost", Tier.OUTSIDE, 0.85, "a node or a process of the job was lost"),
    "slurm-cancelled": Meaning("signal-sigterm-preempted", Tier.OUTSIDE, 0.9, "the scheduler ended the job"),
    "time-limit": Meaning("signal-sigterm-preempted", Tier.OUTSIDE, 0.9, "the job's time was over"),
    "preempted": Meaning("signal-sigterm-preempted", Tier.OUTSIDE, 0.7, "the job was preempted"),
    "terminated": Meaning("signal-sigterm-preempted", Tier.OUTSIDE, 0.6, "the job was told to end"),
    "segfault": Meaning("segfault-in-worker", Tier.CRASH, 0.7, "a process crashed in native code"),
    "bus-error": Meaning("shm-too-small", Tier.CRASH, 0.5, "a process got a bus error"),
    "aborted": Meaning("segfault-in-worker", Tier.SILENCE, 0.4, "a process aborted in native code and gave no reason"),
    "left-at-exit": Meaning("group-left-at-exit", Tier.SILENCE, 0.5,
        "a process was aborted by a thread that its end had left behind"),
    "killed": Meaning("host-oom-killed", Tier.CRASH, 0.5, "a process was killed by SIGKILL"),
}  # fmt: skip

#: Xids that a program provokes by itself, and those that only follow (docs.nvidia.com/deploy/xid-errors).
XIDS_OF_PROGRAMS = frozenset({13, 31, 43, 44, 57, 68, 69})
XIDS_THAT_FOLLOW = frozenset({45})

#: Other causes that one line may also stand for, the likelier first.
ALSO = {
    "gpu-hw-fault": ("gpu-fell-off-bus-xid-ecc", "gpu-oom-all-ranks"),
    "gpu-fell-off-bus-xid-ecc": ("gpu-hw-fault",),
    "network-interface-wrong": ("network-fabric-fault", "ib-error"),
    "network-fabric-fault": ("firewall-blocked-ports", "peer-lost"),
    "firewall-blocked-ports": ("master-unreachable", "network-fabric-fault"),
    "master-unreachable": ("firewall-blocked-ports", "hostname-resolution"),
    "ib-error": ("network-fabric-fault", "comm-config-bad"),
    "peer-lost": ("network-fabric-fault", "host-oom-killed"),
    "host-oom-killed": ("rank-killed", "peer-lost"),
    "gpu-oom-all-ranks": ("oom-on-one-rank-then-timeout", "duplicate-gpu"),
    "oom-on-one-rank-then-timeout": ("gpu-oom-all-ranks",),
    "gpu-memory-fragmented": ("gpu-oom-all-ranks",),
    "gpu-memory-taken-by-others": ("gpu-oom-all-ranks", "duplicate-gpu"),
    "python-exception-all-ranks": ("python-exception-on-one-rank", "comm-config-bad"),
    "python-exception-on-one-rank": ("python-exception-all-ranks", "model-download-race"),
    "rank-missing-collective": ("uneven-inputs", "watchdog-timeout-straggler"),
    "watchdog-timeout-straggler": ("rank-missing-collective", "network-fabric-fault"),
    "stale-rendezvous-store": ("network-interface-wrong", "master-unreachable"),
    "collective-mismatch": ("rank-missing-collective", "segfault-in-worker"),
    "dataloader-worker-died": ("shm-too-small", "host-oom-killed"),
    "invalid-device-ordinal": ("duplicate-gpu",),
    "duplicate-gpu": ("invalid-device-ordinal",),
    "shm-too-small": ("dataloader-worker-died",),
    "segfault-in-worker": ("gpu-hw-fault", "comm-config-bad"),
    "cuda-kernel-fault": ("gpu-hw-fault",),
    "checkpoint-io-slow-timeout": ("checkpoint-half-written",),
    "checkpoint-corrupt": ("checkpoint-io-slow-timeout", "python-exception-on-one-rank"),
    "exit-nonzero": ("python-exception-on-one-rank", "peer-lost"),
    "uneven-inputs": ("rank-missing-collective", "watchdog-timeout-straggler"),
    "store-wait": ("master-unreachable", "rank-missing-collective"),
    "comm-config-bad": ("watchdog-timeout-straggler",),
}
