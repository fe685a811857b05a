"""NET: several hosts of one job that do not find each other, contradict each other, or hear each other badly."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import DRAIN

CAUSES = (
    Cause(
        code="NET009",
        name="host-never-arrived",
        summary="A host of the job never came to the rendezvous, or nothing it sent arrived there.",
        what_happens="The rendezvous waits until as many nodes came as were announced. One that was never started, "
        "died at once, hangs before its launcher runs, or cannot reach the endpoint keeps all others waiting, and they "
        "do not say for whom.",
        shows_before="`holdfast check --nnodes N --rdzv-endpoint HOST:PORT`, started on every host as the job will be, "
        "names the node ranks that do not come within --wait.",
        shows_during="The store's host waits in init_process_group or in the launcher's rendezvous; the others too.",
        shows_after="`n/m clients joined` after up to 30 minutes, or a RendezvousTimeoutError without text. Which "
        "node is missing is not said.",
        known_misses="Seen from the host that waits, a node that was not started and one whose packets are all dropped "
        "are the same; what the missing host itself says decides.",
        remedies=(
            Remedy(text="Look at what the missing host says: run the same command there."),
            Remedy(
                text="See that the scheduler started one task on every host.",
                command="srun --nodes N --ntasks-per-node 1 hostname",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="From the missing host, try the endpoint itself.",
                command='nc -vz "$MASTER_ADDR" "$MASTER_PORT"',
                safety=Safety.AUTOMATIC,
            ),
        ),
        sources=("pytorch/pytorch#107021", "torch: torch/csrc/distributed/c10d/TCPStore.cpp"),
    ),
    Cause(
        code="NET010",
        name="mtu-black-hole",
        summary="Small packets pass between two hosts and large ones vanish without a word.",
        what_happens="An interface sends packets larger than a switch, a tunnel (VXLAN, WireGuard, IPsec) or a VPN on "
        "the way carries, and the ICMP message that would say so is filtered. TCP sends the same large segment again "
        "and again. Connections open and small messages pass, so that everything looks right until the first tensor.",
        shows_before="`holdfast check` with several hosts sends 256 KiB each way: it stalls at 0 bytes. An MTU of 9000 "
        "on one host beside 1500 on another.",
        shows_during="The group is made, and the first all-reduce of one element succeeds; the first large one never "
        "ends. `ss -ti` shows a growing `backoff` and `unacked`, and nothing acknowledged.",
        shows_after="After about 15 minutes `writev …: Connection timed out` (gloo), or NCCL's `socket progress` "
        "error; or the collective's own time-out, on all ranks.",
        known_misses="A link that is merely slow still advances and is told from this. With "
        "net.ipv4.tcp_mtu_probing=1 the kernel finds a smaller size by itself after some seconds.",
        remedies=(
            Remedy(
                text="Find the largest packet that passes.",
                command="ping -M do -s 1372 -c 3 OTHER_HOST",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Give the interface an MTU that the whole path carries, on all hosts.",
                command="ip link set dev eth0 mtu 1400",
                safety=Safety.BY_HAND,
            ),
            Remedy(
                text="Let the kernel probe for a size that passes, or let ICMP `fragmentation needed` through.",
                command="sysctl net.ipv4.tcp_mtu_probing=1",
                safety=Safety.BY_HAND,
            ),
        ),
        sources=("RFC 2923", "NVIDIA/nccl#1524", "NVIDIA/nccl#2135"),
    ),
    Cause(
        code="NET011",
        name="slow-link",
        summary="One host, or one pair of hosts, carries far less than the others.",
        what_happens="A collective is as slow as its slowest link, and a ring over n hosts has to pass each of them. A "
        "port that came up at a lower rate, a bad cable, a duplex fault, a busy neighbour or a longer path slows all.",
        shows_before="`holdfast check` with several hosts measures every pair, one pair a host at a time, and compares "
        "them with the median.",
        shows_during="All ranks wait a little in every collective, and nobody is named.",
        shows_after="Nothing but the time of a step.",
        known_misses="It is measured with one TCP connection from Python: above some 10 Gbit/s that is the limit, and "
        "links that differ above it look alike. Another job on the network shows as a slow link. InfiniBand is not "
        "measured so.",
        remedies=(
            Remedy(
                text="Compare the rate at which the port came up, and its errors, with another host's.",
                command="ethtool eth0 | grep -i speed; ip -s link show eth0",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Measure the pair with several connections.",
                command="iperf3 -c OTHER_HOST -P 8",
                safety=Safety.DISRUPTIVE,
            ),
            DRAIN,
        ),
        sources=("deepspeedai/DeepSpeed#1617", "NVIDIA/nccl#349"),
    ),
    Cause(
        code="NET012",
        name="launch-arguments-differ",
        summary="The hosts of one job were started with arguments that contradict each other.",
        what_happens="Each host is told the number of nodes, its own rank and the endpoint. Where two have the same "
        "rank, or the numbers of nodes differ, the rendezvous waits for somebody who will never come, or takes the "
        "first host's number and goes on with fewer nodes than were meant.",
        shows_before="`holdfast check` with several hosts compares them. A script that was edited on one host, a rank "
        "that is written in a file all hosts share.",
        shows_during="Everyone waits, or the job runs with fewer ranks (torchrun's static rendezvous says nothing).",
        shows_after="`wait timeout … keys: /default_pg/0//cpu//0/2`, or `keys: /none/torchelastic/role_info/1`; or "
        "results of a smaller job than was meant.",
        known_misses="Arguments of the training script itself are not compared.",
        remedies=(
            Remedy(
                text="Let one launcher start all hosts, so that one place knows the numbers.",
                command="srun --nodes N --ntasks-per-node 1 holdfast run --nnodes N --rdzv-endpoint HOST_A:29500 "
                "train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Start every host with the same command; only --node-rank may differ, from 0 to N - 1."),
        ),
        sources=("torch: torch/distributed/elastic/agent/server/api.py",),
    ),
    Cause(
        code="NET013",
        name="clocks-differ",
        summary="The clocks of two hosts of one job do not show the same time.",
        what_happens="Training itself does not read the wall clock across hosts. What people and tools put together "
        "afterwards does: the order of events in logs of several ranks, traces, files' times on a shared file system, "
        "tokens and certificates that are not valid yet.",
        shows_before="`holdfast check` with several hosts exchanges the time ten times and takes the quickest answer.",
        shows_during="Log lines of one event minutes apart; make and caches on shared file systems that rebuild or "
        "keep stale files.",
        shows_after="An effect that was logged before its cause. `holdfast diagnose` cannot tell which rank was first.",
        known_misses="Which of two clocks is right is not known; with three or more, most hosts' is taken. The error "
        "is half a round trip at most, and larger on a loaded host.",
        remedies=(
            Remedy(
                text="See if the clock is being kept.", command="timedatectl; chronyc tracking", safety=Safety.AUTOMATIC
            ),
            Remedy(
                text="Start the time service, on every host.",
                command="systemctl enable --now chronyd",
                safety=Safety.BY_HAND,
            ),
        ),
        sources=("RFC 5905",),
    ),
)
