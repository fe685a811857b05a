"""NET009 host-never-arrived."""

from __future__ import annotations

from holdfast.causes.remedies import automatic, by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

HOST_NEVER_ARRIVED = Cause(
    code="NET009",
    name="host-never-arrived",
    summary="A host of the job never reached the rendezvous, or none of its packets did.",
    what_happens="The rendezvous waits until the configured number of nodes has joined. A node "
    "that was never started, ended at once, hangs before its launcher runs, or cannot reach the "
    "endpoint blocks all others, which do not report the missing node.",
    shows_before="`holdfast check --nnodes N --rdzv-endpoint HOST:PORT`, started on every host "
    "like the job, names the node ranks that do not join within --wait.",
    shows_during="The store's host waits in init_process_group or in the launcher's rendezvous; "
    "so do the others.",
    shows_after="`n/m clients joined` after up to 30 minutes, or a RendezvousTimeoutError without "
    "text. Neither names the missing node.",
    known_misses="For the waiting host, a node that was not started looks like one whose packets "
    "are all dropped; the output of the missing host decides.",
    evidence_sources=(EvidenceSource.LOG, EvidenceSource.HOST),
    signals=(
        LogSignal(
            name="host-login",
            tier=Tier.NAMED,
            confidence=0.75,
            sentence="the launcher could not start a process on a host",
            patterns=(
                (
                    r"ssh: connect to host \S{1,120} port \d+: |Host key verification "
                    r"failed|Permission denied \(publickey"
                ),
                (
                    "ORTE was unable to reliably start one or more daemons|PRTE was "
                    "unable to reliably start"
                ),
                "ImagePullBackOff|ErrImagePull|ssh exited with exit code 255",
                r"srun: error: Task launch for \S{1,80} failed on node",
            ),
            examples=(
                "node2: ssh: connect to host node2 port 22: Connection refused",
                "ORTE was unable to reliably start one or more daemons.",
                "Warning  Failed  kubelet  Error: ErrImagePull",
                (
                    "srun: error: Task launch for StepId=811.0 failed on node n7: Communication "
                    "connection failure"
                ),
            ),
        ),
        LogSignal(
            name="host-missing",
            tier=Tier.NETWORK,
            confidence=0.75,
            sentence="a host or pod of the job did not start, and the others waited for it",
            patterns=(
                r"[Tt]imeout (?:of )?\d+ ?s(?:econds)? to complete (?:the )?rendezvous",
                r"timed out waiting for (?:all )?(?:nodes|workers|hosts|pods|agents|members)\b",
                (
                    r"[Oo]nly \d+ of \d+ (?:nodes|hosts|workers|agents) (?:have )?(?:joined"
                    r"|arrived|connected)"
                ),
                # HCCL (Ascend): what the first rank and the others print
                "topo exchange server get socket timeout",
                r"Failed to connect agent\[(?P<rank>\d{1,6})",
                r"EI0015\b.{0,200}root node timed out",
            ),
            examples=(
                "[ERROR] [training.py:318:next_rendezvous] Timeout 600s to complete rendezvous.",
                "ERROR: only 3 of 4 nodes have joined",
                (
                    "[ERROR] HCCL(88,python3):2026-02-03-04:05:06.000.001 "
                    "[topoinfo_exchange_base.cc:145] [88][InitGroupStage][RanktableDetect] "
                    'TopoDetect ERROR occur !!! fault_type[1], fault_info["Failed to connect '
                    'agent[3,]"]'
                ),
                (
                    "[rank1]: EI0015: [PID: 88] 2026-02-03-04:05:06.1 Receiving message from the "
                    "root node timed out after 120 seconds."
                ),
            ),
            counter_examples=("INFO 3 of 4 nodes have joined",),
        ),
        LogSignal(
            name="pod-not-started",
            tier=Tier.OUTSIDE,
            confidence=0.7,
            sentence="a pod of the job was not started",
            patterns=(
                r"\bFailed(?:Scheduling|Mount|AttachVolume|CreatePodSandBox)\b",
                r"\b0/\d+ nodes are available|PodGroup\S{0,40} (?:is )?unschedulable",
                r"\b0/\d+ {1,20}Pending\b|[Ff]ailed to create placement group",
                "Back-off pulling image",
            ),
            examples=(
                (
                    "Warning  FailedScheduling  default-scheduler  0/9 nodes are available: "
                    "9 Insufficient nvidia.com/gpu."
                ),
                'Warning  FailedMount  kubelet  MountVolume.SetUp failed for volume "data"',
            ),
            counter_examples=(
                "step 40: loss 2.1\nWarning  FailedScheduling  default-scheduler  pod/other-0",
            ),
            weighed=True,
        ),
    ),
    remedies=(
        by_hand("Read the output of the missing host: run the same command there."),
        automatic(
            "Check that the scheduler started one task on every host.",
            "srun --nodes N --ntasks-per-node 1 hostname",
        ),
        automatic(
            "From the missing host, try the endpoint.", 'nc -vz "$MASTER_ADDR" "$MASTER_PORT"'
        ),
    ),
    sources=("pytorch/pytorch#107021", "torch: torch/csrc/distributed/c10d/TCPStore.cpp"),
)
