"""NET: addresses, ports, links, and the store through which the ranks find each other."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import DRAIN, RESTART

CAUSES = (
    Cause(
        code="NET001",
        name="network-interface-wrong",
        summary="NCCL or gloo chose, or was told to use, an interface through which the peers cannot be reached.",
        what_happens="Each rank publishes the address of one interface and the peers connect to it. A docker bridge, a "
        "VPN, a loopback address or a management port that does not route to the other hosts makes every connection "
        "fail, although the rendezvous worked. gloo takes the address that the host name resolves to, often 127.0.1.1 "
        "on Debian; NCCL prefers ib* and avoids docker* and lo.",
        shows_before="Several interfaces up and no NCCL_SOCKET_IFNAME / GLOO_SOCKET_IFNAME; a name in them that a host "
        "lacks; the host's own name resolving to 127.x; GLOO_SOCKET_IFNAME copied from NCCL's with its ^ or = (gloo "
        "knows exact names only).",
        shows_during="The group is not made: ranks wait in init_process_group (gloo) or in the first collective "
        "(NCCL). With gloo one rank often fails within a second while the other waits in silence for the whole "
        "time-out.",
        shows_after="`Gloo connectFullMesh failed` or `Connection refused` with an address of the wrong network in it, "
        "`Unable to find address for: ...`, or NCCL's `Connect to ... failed`. The rank that fails is often the "
        "innocent one: it could not reach the address that the other published.",
        known_misses="Where the bad interface routes but is slow (1 Gbit beside 200), nothing fails: only throughput "
        "tells. A firewall on the right interface gives the same refused or timed-out connections.",
        remedies=(
            Remedy(
                text="Name the interface that carries the training network, on every host.",
                command="export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="See which addresses each host would publish.",
                command='ip -br addr; getent ahosts "$(hostname)"',
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Let each host's name resolve to its address on that network, not to 127.0.1.1 (/etc/hosts)."),
        ),
        sources=("pytorch/pytorch#15592", "pytorch/pytorch#8672", "vllm-project/vllm#7074"),
    ),
    Cause(
        code="NET002",
        name="network-fabric-fault",
        summary="The network of a host, or the fabric between hosts, is broken or unstable; the configuration is "
        "right.",
        what_happens="A flapping port, a bad cable, a lost route, a switch that drops large packets or a partition "
        "stops the bytes of a collective. All ranks have entered it, and none completes it. TCP hides the fault for a "
        "long time: with the kernel's usual 15 retries a dead link is an error only after about 15 minutes.",
        shows_before="Errors and drops of the port (`ip -s link`, ethtool -S), a link rate below its neighbours', an "
        "MTU that differs along the path: then small messages pass and large ones vanish.",
        shows_during="Every member is inside the same collective with the same arguments, nobody is missing and "
        "nothing advances; stacks agree over time. That is the one picture in which no rank is the root.",
        shows_after="`Connection timed out`, `Connection reset by peer` or `unhandled system error` on several ranks, "
        "often about one host; or a time-out on all ranks with equal sequence numbers. torchrun blames the rank that "
        "it reaped first.",
        known_misses="A rank whose GPU kernel stands still looks the same from the host. So do concurrent NCCL "
        "communicators that starve each other although all ranks call them in the same order. The confidence is low "
        "for that reason, and which link it is cannot be seen from inside the job.",
        remedies=(
            Remedy(
                text="Look at the counters of each host's port, and compare hosts.",
                command="ip -s -d link; ethtool -S eth0 | grep -iE 'err|drop|discard'",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Test the path with large packets that may not be split.",
                command="ping -M do -s 8972 -c 5 OTHER_HOST",
                safety=Safety.AUTOMATIC,
            ),
            DRAIN,
            RESTART,
        ),
        sources=("NVIDIA/nccl#1524", "NVIDIA/nccl#2135", "pytorch/pytorch#175145", "ROCm/rccl#2191"),
    ),
    Cause(
        code="NET003",
        name="firewall-blocked-ports",
        summary="The peers are known, but a firewall, security group or network policy blocks the ports between them.",
        what_happens="The rendezvous needs one port on the first host; after it gloo and NCCL open connections on "
        "ephemeral ports in both directions, between all hosts. If only the first is open, the ranks find each other "
        "and then cannot talk. A dropped packet is silence, a rejected one an error at once.",
        shows_before="Rules that open the master port alone, or one direction. Ranges that were narrowed with "
        "NCCL_SOCKET_PORT or net.ipv4.ip_local_port_range and not opened to match.",
        shows_during="Master port closed: ranks wait in init_process_group. Only data ports closed: the store is "
        "joined, and all wait in gloo's full-mesh connect, or in NCCL's first collective. `ss -tnp state syn-sent` on "
        "a waiting host shows connections that nobody answers.",
        shows_after="`n/m clients joined` after the time-out, `Connection timed out` to a port above 32768, or an "
        "empty RendezvousTimeoutError. gloo's connect waits five times the group's time-out. Who is missing is not "
        "said.",
        known_misses="A port that rejects and a host on which nobody listens yet cannot be told apart from outside, "
        "nor can a dropping firewall and a host that is down.",
        remedies=(
            Remedy(
                text="Try the master port, and a high port while something listens there, from each other host.",
                command="nc -vz MASTER_HOST 29500",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Open all TCP ports between the hosts of the job, in both directions, for this network alone."),
        ),
        sources=("pytorch/pytorch#107021", "pytorch/pytorch#105782"),
    ),
    Cause(
        code="NET004",
        name="hostname-resolution",
        summary="The name of the master or of a peer does not resolve, or resolves to a useless address.",
        what_happens="MASTER_ADDR, the rendezvous endpoint and the names that c10d publishes (getfqdn of the host) "
        "have to resolve on every host to an address that routes. Missing DNS, a headless service that is not ready, "
        "or /etc/hosts lines that map the own name to 127.0.1.1 break this. torch retries a name that does not exist "
        "as if it were a passing fault.",
        shows_before="`getent hosts NAME` fails or differs between hosts; a host that calls itself localhost.",
        shows_during="Ranks wait in the store client inside init_process_group; the log repeats warnings about address "
        "families and errno -2 or -3. Nothing has been recorded in the boxes but the wait in the store.",
        shows_after="`Name or service not known`, `Temporary failure in name resolution`, or a client socket that "
        "timed out connecting to a name. With c10d, `the hostname of the client socket cannot be retrieved` is a "
        "harmless warning and not this.",
        known_misses="A name that resolves, but to another machine, is master-unreachable or network-interface-wrong. "
        "A slow DNS server gives the same waiting, and ends well.",
        remedies=(
            Remedy(
                text="Ask each host what it thinks the name means.",
                command='getent ahosts "$MASTER_ADDR"',
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Use the address instead of the name; with the c10d rendezvous name the local one too.",
                command="holdfast run --rdzv-endpoint 10.0.0.1:29500 --local-addr 10.0.0.2 train.py",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("pytorch/pytorch#150532", "pytorch/pytorch#85300", "pytorch/pytorch#73656"),
    ),
    Cause(
        code="NET005",
        name="port-in-use",
        summary="The rendezvous or master port is already taken on the first host.",
        what_happens="Only one process can listen on the port. A job left over from before, a second job of the same "
        "user with the default 29500, or a rank started twice makes the store's server fail. The other ranks may then "
        "connect to the wrong job's store, or wait for one that never comes.",
        shows_before="`ss -ltnp` shows a listener on the port. A fixed port in a job script that may run twice on a "
        "host.",
        shows_during="Rank 0 or the agent of the first host ends within a second; ranks elsewhere wait in the store.",
        shows_after="`EADDRINUSE` or `Address already in use` on the first host alone, with the port number. The "
        "others end with a time-out half an hour later, and these later messages are the longer ones.",
        known_misses="When the foreign store answers, there is no error at all: ranks of two jobs meet, and the world "
        "size or the keys do not fit.",
        remedies=(
            Remedy(text="Find who listens there.", command="ss -ltnp 'sport = :29500'", safety=Safety.AUTOMATIC),
            Remedy(
                text="On one host let the launcher choose a free port; on several give each job a port of its own.",
                command="holdfast run --standalone train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="End the left-over process by its pid, after making sure that it is yours and not wanted."),
        ),
        sources=("torch: torch/csrc/distributed/c10d/socket.cpp",),
    ),
    Cause(
        code="NET006",
        name="master-unreachable",
        summary="Ranks cannot reach the rendezvous store: a wrong address, a host that is not up, or nobody who serves "
        "it.",
        what_happens="All ranks first connect to one store at MASTER_ADDR:MASTER_PORT or at the rendezvous endpoint. "
        "If the address is wrong, the first host is late, or rank 0 never started, the clients retry until the "
        "time-out, permanent errors such as `no route to host` included.",
        shows_before="An endpoint that no host of the job owns, 127.0.0.1 in a job of several hosts, or world sizes "
        "and node ranks that do not agree over the hosts.",
        shows_during="Clients wait in init_process_group; the server's side waits too, for clients. Their boxes end "
        "with the entry into the store. No collective was ever made.",
        shows_after="`The client socket has timed out after ...ms while trying to connect to`, `n/m clients joined` on "
        "the server, a RendezvousTimeoutError without text. The address in torch's message can be garbage; trust the "
        "configured one.",
        known_misses="A dropped port (firewall-blocked-ports), a name that fails (hostname-resolution) and a first "
        "host that is merely late look alike until a connection is tried from outside the job.",
        remedies=(
            Remedy(
                text="From the host that cannot connect, try the endpoint itself.",
                command='nc -vz "$MASTER_ADDR" "$MASTER_PORT"',
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Give all hosts the same endpoint, owned by the first one, and the same number of nodes.",
                command="holdfast run --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST_A:29500 train.py",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("pytorch/pytorch#69197", "pytorch/pytorch#79388"),
    ),
    Cause(
        code="NET007",
        name="ib-error",
        summary="An InfiniBand or RoCE operation failed: retries exceeded, a wrong GID index, a queue pair that cannot "
        "connect.",
        what_happens="NCCL sets its connections up over TCP, then moves the data by RDMA. If the adapters cannot reach "
        "each other (wrong GID index or VLAN on RoCE, another partition, a rail that does not cross), connecting the "
        "queue pair fails; if the link is bad, work requests run out of retries (completion error 12) and the "
        "communicator is dead.",
        shows_before="Ports not ACTIVE or at a lower rate in `ibstat`; NCCL_IB_GID_INDEX set by hand (since NCCL 2.21 "
        "it is found by itself); growing symbol_error and link_downed counters; NCCL_IB_RETRY_CNT above 7, which does "
        "not exist.",
        shows_during="Ranks are inside the first large collective, all in the same one. The TCP part looks healthy, so "
        "that `NET/IB : Using ...` lines prove nothing.",
        shows_after="`NET/IB : Got completion from peer ... with error 12` (time-out) or `Call to ibv_modify_qp "
        "failed`, with the peer's address: that pair of ports is the place to look. Other ranks only report the remote "
        "error.",
        known_misses="`ibv_set_ece failed` and `Failed to open libibverbs` are harmless on many systems. Which of the "
        "two ends is bad does not follow from one message.",
        remedies=(
            Remedy(
                text="List the state of the ports and their error counters on both hosts.",
                command="ibstat; perfquery -x",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Test the pair without NCCL.", command="ib_write_bw -d mlx5_0 OTHER_HOST", safety=Safety.DISRUPTIVE
            ),
            Remedy(
                text="On RoCE choose the index of the RoCE v2 address (see show_gids); on rails forbid crossing.",
                command="export NCCL_IB_GID_INDEX=3 NCCL_CROSS_NIC=0",
                safety=Safety.DISRUPTIVE,
            ),
            DRAIN,
        ),
        sources=("NVIDIA/nccl#426", "NVIDIA/nccl#769", "NVIDIA/nccl#2013"),
    ),
    Cause(
        code="NET008",
        name="stale-rendezvous-store",
        summary="A restarted rank read addresses that the dead generation had left in the rendezvous store.",
        what_happens="torchrun of torch 2.13 keeps one TCPStore over all restarts and gives each round the same keys. "
        "A rank that comes up sooner than its peers finds the previous round's gloo addresses there and connects to "
        "sockets that no longer exist. It fails at once, or waits for five times the group's time-out.",
        shows_before="--max-restarts above 0 under torchrun 2.13. A job that never restarts never meets it.",
        shows_during="After a restart some ranks have made the group and others wait in init_process_group, although "
        "all processes are up and the first start went well.",
        shows_after="`Connection refused` within a second of the restart, or a connect time-out; the restarts are used "
        "up one after the other, though the first fault is long gone. Three of six restarts recovered when this was "
        "measured.",
        known_misses="`holdfast run` gives each generation a prefix of its own in the store, so that this does not "
        "arise under it. Elsewhere only the timing right after a restart tells it from a network fault.",
        remedies=(
            Remedy(
                text="Start with holdfast: every generation gets a store prefix of its own.",
                command="holdfast run --max-restarts 3 train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="Under torchrun let the workers make a store of their own (cures standalone and c10d rendezvous, "
                "not the static one).",
                command="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts=3 train.py",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("pytorch/pytorch#135712", "pytorch/pytorch#167288", "pytorch/pytorch#167302"),
    ),
    Cause(
        code="NET014",
        name="ib-port-degraded",
        summary="A port of an InfiniBand or RoCE adapter is down, flaps, or carries less than it should.",
        what_happens="The link is not up, trains with fewer lanes or at a lower rate, has errors that are repeated, or "
        "the adapter itself has lost PCIe lanes. NCCL leaves a port out that is not ACTIVE when the job starts, and "
        "says so only at NCCL_DEBUG=INFO; a port that goes down later ends the job.",
        shows_before="State and rate in `ibstat` or /sys/class/infiniband, counters (symbol_error, link_downed), `Link "
        "DOWN` in the kernel's log; INIT instead of ACTIVE where no subnet manager runs.",
        shows_during="All collectives over hosts are slow, by the part that the missing rail would have carried.",
        shows_after="`NET/IB : Got completion ... with error 12` or `port error` on this host where the port went "
        "down under way, else nothing.",
        known_misses="Counters count since the driver was loaded: an old fault that was mended still shows. Ports of a "
        "management network are slower on purpose: name the others in NCCL_IB_HCA.",
        remedies=(
            Remedy(
                text="See all ports and their counters.",
                command="ibstat; rdma link show; ethtool -S IFACE",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Reseat or exchange the cable; look at the switch's side of the link."),
            DRAIN,
        ),
        sources=("Linux: Documentation/ABI/stable/sysfs-class-infiniband", "NVIDIA/nccl: src/transport/net_ib"),
    ),
)
