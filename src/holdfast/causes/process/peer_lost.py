"""PROC005 peer-lost."""

from __future__ import annotations

from holdfast.causes.remedies import DRAIN, RESTART, automatic
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

PEER_LOST = Cause(
    code="PROC005",
    name="peer-lost",
    summary="A peer process, pod or host is gone; only the survivors' messages about it are known.",
    what_happens="A rank on another host stops responding: its process was killed, its pod "
    "evicted, its host rebooted or disconnected. The survivors report a closed or reset "
    "connection, a remote error, or a timeout, and each blames another rank.",
    shows_before="Nothing: the host is affected, not the job. Spot and preemptible machines "
    "notify that host only.",
    shows_during="The summaries and the trace file of the lost rank are missing, or no longer "
    "change; the others are in one collective in which only this rank is missing.",
    shows_after="`Connection reset by peer`, `Connection closed by peer`, NCCL's `remote process "
    "exited or there was a network error`, `socketProgress: Connection closed by remote peer "
    "HOST`: check the host in these lines. The lost rank's log simply ends.",
    known_misses="Once the exit status of the lost rank is known, its own cause is named instead "
    "(rank-killed, host-oom-killed, segfault-in-worker, ...), and the survivors' messages become "
    "consequences. From one side a broken network looks like a dead host.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.TRACE,
        EvidenceSource.DUMP,
        EvidenceSource.STACKS,
    ),
    signals=(
        LogSignal(
            name="store-lost",
            tier=Tier.LOST,
            confidence=0.35,
            sentence="the connection to the rendezvous store was lost",
            patterns=(
                (
                    "failed to recv, got 0 bytes|recvValue failed|sendBytes failed|store "
                    ".{0,40}Broken pipe"
                ),
                "TCPStore.{0,60}Connection (?:reset|closed)",
            ),
            examples=("[rank1]: torch.distributed.DistNetworkError: failed to recv, got 0 bytes",),
            weighed=True,
        ),
        LogSignal(
            name="peer-closed",
            tier=Tier.LOST,
            confidence=0.5,
            sentence="a peer closed its connection",
            patterns=(
                (
                    "Connection closed by remote peer|Connection reset by peer|Connection "
                    "closed by peer"
                ),
                "closed by remote peer",
                "connected socket closed by remote|HCCL.{0,80}reset by (?:remote|peer)",
                "Connection reset by remote peer|UCX +ERROR .{0,120}Endpoint timeout",
                "remote process exited or there was a network error|ncclRemoteError|Broken pipe",
            ),
            examples=(
                (
                    "[rank1]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:553] "
                    "Connection closed by peer [10.0.0.2]:4711"
                ),
            ),
            counter_examples=(
                "n1:5:9 [0] NCCL INFO [Service thread] Connection closed by localRank 0",
            ),
            weighed=True,
        ),
        LogSignal(
            name="node-failure",
            tier=Tier.OUTSIDE,
            confidence=0.85,
            sentence="a node or a process of the job was lost",
            patterns=(
                "NODE FAILURE|NODE_FAIL|[Nn]ode failure|NodeNotReady|NodeLost|Node is not ready",
                "node .{0,60}(?:marked dead|has died|unexpectedly|was terminated)",
                (
                    "missed too many heartbeats|kubelet stopped posting|ActorDiedError"
                    "|WorkerCrashedError|NodeDiedError|OwnerDiedError|ActorUnavailableError"
                ),
                (
                    "RayActorError: The actor died|worker process has died|worker died or was "
                    "killed while"
                ),
                "lost (?:contact|connection) (?:with|to) (?:node|worker|agent)",
            ),
            examples=(
                (
                    "slurmstepd: error: *** JOB 811 ON n1 CANCELLED AT 2026-02-03T04:05:06 DUE "
                    "TO NODE FAILURE ***"
                ),
                (
                    "The actor is dead because its worker process has died. There are some "
                    "potential root causes. (1) SIGKILL by OOM killer (3) SIGSEGV"
                ),
            ),
            weighed=True,
        ),
        LogSignal(
            name="agent-lost",
            tier=Tier.OUTSIDE,
            confidence=0.6,
            sentence="a launcher lost a host, or a rank ended before the others",
            patterns=(
                "(?:ORTE|PRTE|PRRTE) has lost communication with a remote daemon",
                "Heartbeat Lost Occurred",
                "PMIX ERROR: (?:UNREACHABLE|LOST|COMM)",
            ),
            examples=(
                "ORTE has lost communication with a remote daemon.",
                (
                    "Cluster Exception Location[IP/ID]:[10.0.0.1/1], "
                    "ExceptionType:[Heartbeat Lost Occurred], Possible Reason:1. "
                    "Process has exited, 2. Network Disconnected"
                ),
            ),
        ),
        LogSignal(
            name="horovod-shut-down",
            tier=Tier.LOST,
            confidence=0.4,
            sentence="another rank ended, and Horovod shut down",
            patterns=(
                "Horovod has been shut down",
                "HorovodInternalError",
            ),
            examples=(
                (
                    "horovod.common.exceptions.HorovodInternalError: Horovod has been "
                    "shut down. This was caused by an exception on one of the ranks"
                ),
            ),
        ),
    ),
    alternatives=("network-fabric-fault", "host-oom-killed"),
    may_be_consequence=True,
    echo_in_logs=True,
    may_recover=True,
    remedies=(
        automatic(
            "Check whether the host answers, and what happened to it (scheduler or cluster "
            "records).",
            "ping -c 3 HOST; sacct -j JOB --format=JobID,State,ExitCode,NodeList; kubectl describe "
            "pod POD",
        ),
        DRAIN,
        RESTART,
    ),
    sources=("pytorch/pytorch#111646", "torch: gloo and NCCL remote errors"),
)
