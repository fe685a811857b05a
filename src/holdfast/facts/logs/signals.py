"""The table of what logs can say: one row a signal, with the expression that finds it.

An expression has no look-around and no back-reference, so that any engine can search for all of them at once; its named
groups become the signal's fields (digits become numbers). A row says what was printed. What that means stands in
``rules/logs``; rows whose name begins with ``noise-`` look grave and mean nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Row:
    """One signal: its name, its expression, and whether case counts.

    ``find`` is what to look for in the raw line where the expression needs the line without its prefix.
    """

    name: str
    expression: str
    ignore_case: bool = False
    find: str = ""

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """For taking the fields from a line that was found."""
        return re.compile(self.expression, re.IGNORECASE if self.ignore_case else 0)


def _rows(*pairs: tuple[str, str]) -> tuple[Row, ...]:
    return tuple(Row(name, expression) for name, expression in pairs)


def _any_case(*pairs: tuple[str, str]) -> tuple[Row, ...]:
    return tuple(Row(name, expression, ignore_case=True) for name, expression in pairs)


_DEVICES = _rows(
    ("xid", r"Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d+)"),
    ("gpu-lost", r"fallen off the bus|GPU is lost|Unable to determine the device handle for GPU"),
    ("gpu-lost", r"GPU requires reset"),
    ("ecc-uncorrectable", r"uncorrectable ECC error|cudaErrorECCUncorrectable|[Dd]ouble.?[Bb]it ECC"),
    ("nvlink-error", r"uncorrectable NVLink error|NVLink: fatal error|NVLink error detected"),
    ("gsp-timeout", r"waiting for RPC response from GPU ?\d+ GSP|GSP RPC timeout"),
    ("gsp-timeout", r"The GPU likely needs to be reset"),
    ("rocm-hardware", r"HW Exception by GPU node|amdgpu: GPU reset|GPU reset begin"),
    ("cuda-unknown-error", r"CUDA error: unknown error|CUDA error: hardware stack error"),
    ("cuda-unknown-error", r"an illegal instruction was encountered"),
    ("cuda-launch-failure", r"unspecified launch failure|CUDNN_STATUS_EXECUTION_FAILED"),
    ("cuda-launch-failure", r"CUBLAS_STATUS_EXECUTION_FAILED"),
    ("cuda-assert", r"device-side assert triggered"),
    ("cuda-assert", r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion"),
    ("cuda-illegal-address", r"an illegal memory access was encountered|misaligned address"),
    ("cuda-illegal-address", r"Memory access fault by GPU node"),
    ("cuda-out-of-memory", r"(?:CUDA|HIP) out of memory\.?(?: Tried to allocate (?P<wanted>[\d.]+ [KMG]iB))?"),
    ("cuda-out-of-memory", r"OutOfMemoryError"),
    ("cuda-error-memory", r"(?:CUDA|HIP) error: out of memory|CUDNN_STATUS_ALLOC_FAILED"),
    ("cuda-error-memory", r"CUBLAS_STATUS_ALLOC_FAILED"),
    ("cuda-error-memory", r"Cuda failure '?(?:\d+ '?)?out of memory|cudaErrorMemoryAllocation"),
    ("invalid-ordinal", r"invalid device ordinal|No CUDA GPUs are available"),
    ("invalid-ordinal", r"no CUDA-capable device is detected"),
    ("duplicate-gpu", r"Duplicate GPU detected : rank (?P<rank>\d+) and rank (?P<other>\d+)"),
    ("duplicate-gpu", r"Multiple processes.{0,40}same (?:GPU|CUDA device)"),
    ("duplicate-gpu", r"devices? (?:is|are) busy or unavailable"),
    ("driver-mismatch", r"driver version is insufficient|NVIDIA driver on your system is too old"),
    ("driver-mismatch", r"unsupported display driver"),
    ("driver-mismatch", r"system not yet initialized|Driver/library version mismatch"),
    ("driver-mismatch", r"forward compatibility was attempted"),
    ("driver-mismatch", r"no kernel image is available|unsupported toolchain|driver/runtime version"),
    ("driver-mismatch", r"nv-fabricmanager"),
    ("iommu-fault", r"DMAR:.{0,40}fault|IO_PAGE_FAULT|AMD-Vi: Event|ACS is enabled|PCIe ACS"),
    ("iommu-fault", r"virtual(?:iz|is)ation.{0,40}P2P"),
    ("p2p-access", r"peer access is not supported|CUDA-P2P.{0,40}fail"),
    ("p2p-access", r"P2P.{0,40}(?:mapping|access).{0,40}(?:fail|timed)"),
)  # fmt: skip

_MEMORY = _rows(
    ("oom-killer", r"Out of memory: Killed? process|Memory cgroup out of memory|invoked oom-killer"),
    ("oom-killer", r"oom-kill:|oom_reaper"),
    ("oom-killer", r"OOMKilled|[Oo]om[-_][Kk]ill event|cgroup out-of-memory handler|OUT_OF_MEMORY"),
    ("oom-killer", r"ray\.exceptions\.OutOfMemory"),
    ("host-memory", r"DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory|std::bad_alloc"),
    ("host-memory", r"^MemoryError|: MemoryError"),
    ("bus-error", r"Bus error|bus error|SIGBUS"),
    ("shm-full", r"insufficient shared memory|out of shared memory|raise your shared memory limit"),
    ("shm-full", r"unable to write to file </torch_"),
    ("shm-full", r"creating shared memory segment|failed to extend \S*shm|posix_fallocate failed"),
    ("shm-full", r"unable to open shared memory object"),
    ("shm-full", r"No space left on device.{0,80}/dev/shm|/dev/shm.{0,80}No space left"),
    ("memlock", r"RLIMIT_MEMLOCK|max locked memory|memlock|ibv_reg_mr\w* failed"),
    ("memlock", r"ibv_create_cq\w* failed.{0,40}Cannot allocate"),
    ("fd-limit", r"Too many open files|received 0 items of ancdata|Too many open file descriptors"),
)  # fmt: skip

_NETWORK = _rows(
    ("port-in-use", r"EADDRINUSE|[Aa]ddress already in use"),
    ("name-resolution", r"Name or service not known|[Tt]emporary failure in name resolution"),
    ("name-resolution", r"[Cc]ould not resolve host"),
    ("name-resolution", r"Name does not resolve|nodename nor servname|No address associated with hostname"),
    ("name-resolution", r"gai error|getaddrinfo"),
    ("clients-joined", r"(?P<joined>\d+)/(?P<wanted>\d+) clients joined"),
    ("store-unreachable", r"socket has timed out after (?P<ms>\d+) ?ms while .{0,20}to \(?[^,)\s]+, (?P<port>\d+)"),
    ("store-unreachable", r"client socket has failed to connect to|TCP client failed to connect"),
    ("store-unreachable", r"[Cc]onnection to the C10d store has failed"),
    ("store-lost", r"failed to recv, got 0 bytes|recvValue failed|sendBytes failed|store .{0,40}Broken pipe"),
    ("store-lost", r"TCPStore.{0,60}Connection (?:reset|closed)"),
    ("rendezvous-timeout", r"RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError"),
    ("rendezvous-timeout", r"[Rr]endezvous.{0,30}timed out"),
    ("store-key-timeout", r"wait timeout after (?P<ms>\d+)ms, keys: (?P<keys>\S+)|Socket Timeout"),
    ("no-route", r"No route to host|Network is unreachable|Host is unreachable|EHOSTUNREACH|ENETUNREACH"),
    ("connect-timed-out", r"[Cc]onnect to \S+ (?:failed|returned).{0,20}(?:Connection )?timed out"),
    ("connect-timed-out", r"connect.{0,40}ETIMEDOUT|Connection timed out"),
    ("connect-refused", r"[Cc]onnect to (?P<peer>\S+) failed ?: ?Connection refused|Connection refused"),
    ("no-interface", r"[Nn]o (?:socket )?interface found|Unable to find address for"),
    ("no-interface", r"[Cc]ould not find (?:any )?interface|invalid interface"),
    ("no-interface", r"No such (?:network )?(?:interface|device).{0,30}(?:eth|ib|en)"),
    ("no-interface", r"[Nn]o usable .{0,20}interface"),
    ("loopback-used", r"NET/Socket : Using \[0\]lo:127|Bootstrap : Using lo:127"),
    ("loopback-used", r"connect to (?:address )?\[?127\.\d+\.\d+\.\d+"),
    ("docker-interface", r"(?:NET/Socket|Bootstrap) ?: Using (?:\[0\])?(?:docker|virbr|br-[0-9a-f]|cni|tun|tailscale)"),
    ("peer-closed", r"Connection closed by remote peer|Connection reset by peer|Connection closed by peer"),
    ("peer-closed", r"closed by remote peer"),
    ("peer-closed", r"remote process exited or there was a network error|ncclRemoteError|Broken pipe"),
    ("ib-completion", r"Got completion .{0,80}(?:with (?:error|status)[ =]|status=)(?P<status>\w+)"),
    ("ib-verb", r"ibv_(?:modify_qp|create_qp|post_send|post_recv|poll_cq)\w* .{0,20}fail"),
    ("ib-verb", r"ibv_(?:query_gid|open_device|query_port|alloc_pd|create_cq)\w* .{0,20}fail"),
    ("ib-verb", r"IBV_WC_\w*ERR|transport retry (?:counter|count) exceeded|local work queue|vendor err \d+"),
    ("ib-verb", r"wrong GID|GID (?:index|table)"),
    ("ib-event", r"NET/IB.{0,40}(?:[Aa]sync (?:fatal )?event|port error)|link (?:is )?down|Link Down"),
    ("ib-event", r"carrier lost|NIC.{0,20}(?:down|flap)"),
    ("gloo-connect", r"Gloo connectFullMesh failed|gloo/transport/tcp.{0,60}(?:connect|timeout)|SO_ERROR"),
)  # fmt: skip

_NCCL = _rows(
    ("nccl-system-error", r"unhandled system error|ncclSystemError|NCCL error.{0,80}system error"),
    ("nccl-cuda-error", r"unhandled cuda error|ncclUnhandledCudaError|NCCL WARN Cuda failure"),
    ("nccl-internal-error", r"ncclInternalError|NCCL.{0,60}internal error"),
    ("nccl-invalid-usage", r"ncclInvalidUsage|ncclInvalidArgument|NCCL.{0,60}invalid (?:usage|argument)"),
    ("nccl-version", r"undefined symbol: nccl\w+|Mismatched NCCL version|NCCL version mismatch"),
    ("nccl-version", r"symbol lookup error.{0,80}nccl"),
    ("nccl-version", r"NCCL library version .{0,40}(?:differ|mismatch)|compiled with NCCL .{0,60}but"),
    ("nccl-plugin", r"[Nn]etwork (?P<net>\S+) not found"),
    ("nccl-plugin", r"Failed to (?:load|initialize|open) .{0,20}(?:plugin|libnccl-(?:net|tuner))"),
    ("nccl-plugin", r"NET/Plugin.{0,60}(?:[Ff]ailed|Could not)|NET/OFI.{0,80}(?:[Ff]ail|error|Unable)"),
    ("nccl-plugin", r"libfabric.{0,40}(?:not found|error)"),
    ("nccl-config", r"NCCL WARN .{0,60}(?:[Ii]nvalid|[Uu]nknown|[Uu]nsupported) .{0,40}NCCL_\w+"),
    ("nccl-config", r"NCCL_(?:ALGO|PROTO)\b.{0,60}(?:not|no )"),
    ("nccl-config", r"[Tt]p[_-]comm[_-]overlap|ub_cfg|userbuffers|Too many SMs"),
    ("nccl-config", r"no algorithm/protocol available"),
    ("nccl-truncated", r"Message truncated|message truncated|[Mm]ismatched? (?:collective|size)"),
    ("nccl-truncated", r"size mismatch between ranks"),
    ("nccl-rank", r"comm 0x[0-9a-f]+ rank (?P<rank>\d+) nranks (?P<world>\d+)"),
)  # fmt: skip

_WATCHDOG = _rows(
    ("watchdog-timeout", r"collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"),
    ("watchdog-size", r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+), NumelIn=(?P<numel>\d+)"),
    ("watchdog-timeout", r"failure detected by watchdog at work sequence id: (?P<seq>\d+)"),
    (
        "work-status",
        r"last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+), last completed(?: NCCL)? work: (?P<completed>-?\d+)",
    ),
    ("dump-signal", r"Received a dump signal due to a collective timeout from .{0,20}rank (?P<origin>\d+)"),
    ("watchdog-stuck", r"watchdog got stuck for|Could not acquire GIL|heartbeat monitor.{0,40}(?:timed out|timeout)"),
    ("gloo-timeout", r"Timed out waiting (?P<ms>\d+)ms for (?P<what>recv|send) operation"),
    ("barrier-missing", r"Ranks? (?P<missing>[\d, ]+?) failed to (?:pass|reach) monitoredBarrier"),
    ("mismatch-said", r"Detected mismatch between collectives on ranks|[Cc]ollectives differ in the following aspects"),
    ("mismatch-said", r"op\.preamble\.length|[Dd]esync(?:hronization)? (?:report|detected)|do not match across ranks"),
    ("desync-report", r"(?:Ranks? )?\[(?P<ranks>[\d, ]+)\] (?:haven't|finished|joined) .{0,60}(?:collective|but)"),
)

_MODEL = _rows(
    ("ddp-unused", r"Expected to have finished reduction in the prior iteration"),
    ("ddp-unused", r"not used in producing (?:the )?loss"),
    ("ddp-unused-rank", r"did not receive grad for rank (?P<rank>\d+)"),
    ("ddp-twice", r"Expected to mark a variable ready only once|marked as ready twice|marked ready twice"),
    ("nan", r"(?:[Ll]oss|grad(?:ient)?(?:[ _]norm)?)\s*(?:is|=|:|became)?\s*(?:tensor\()?[-+]?(?:nan|NaN|NAN|inf\b)"),
    ("nan", r"Current loss scale already at minimum|[Mm]inimum loss scale|FloatingPointError"),
    ("nan", r"NaN (?:or Inf )?(?:found|detected|encountered)|found NaN"),
    ("progress", r"(?:[Ii]ter(?:ation)?|[Ss]tep|[Ee]poch)\s*[:=\[]?\s*\[?(?P<step>\d+)\]?\s*(?:/|of|,|\||:|loss|\s)"),
    ("pace", r"elapsed time per iteration \((?P<unit>m?s)\): (?P<seconds>[\d.]+)"),
    ("rank-elements", r"[Rr]ank[ =:]*(?P<rank>\d+)\b.{0,60}?\b(?:of|numel|size|elements)[ =:]*(?P<elements>\d{2,})"),
    ("scheduler-status", r"is running for \d|is waiting to be scheduled|\bJOBID\b"),
    ("evaluation", r"valid(?:ation)? loss|[Ee]valuat(?:ing|ion)|eval_loss"),
    ("finished", r"[Tt]raining (?:is )?(?:complete|finished|done|over)|[Tt]rain(?:ing)? completed"),
    ("finished", r"train_runtime|Total time|训练完成"),
    ("finished", r"Abort COMPLETE|Destroy COMPLETE|[Ff]inished (?:training|successfully)|\bDONE\b"),
    ("finished", r"[Aa]ll done|job completed"),
)  # fmt: skip

_DATA = _rows(
    ("loader-killed", r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)"),
    ("loader-timeout", r"DataLoader timed out after"),
    ("download", r"LocalEntryNotFoundError|couldn't connect to .{0,60}(?:huggingface|hub)|HfHubHTTPError"),
    ("download", r"Consistency check failed"),
    ("download", r"NonMatching(?:Splits|Checksum)|IncompleteRead|BadZipFile"),
    ("download", r"FileExistsError.{0,120}(?:cache|lock|\.incomplete)"),
    ("download", r"(?:cache|hub|download|snapshots?|\.lock).{0,120}(?:No such file|FileNotFoundError|Stale file)"),
    ("download", r"tarfile\.ReadError"),
    ("download", r"tarfile\.ReadError"),
    ("no-space", r"No space left on device|Disk quota exceeded|ENOSPC|\[Errno 28\]|\[Errno 122\]"),
    ("checkpoint-word", r"[Cc]heckpoint|ckpt|\.pt\b|\.safetensors"),
    ("checkpoint-broken", r"PytorchStreamReader failed|failed finding central directory|UnpicklingError"),
    ("checkpoint-broken", r"MetadataIncompleteBuffer"),
    ("checkpoint-slow", r"(?:[Cc]heckpoint|sav(?:e|ing)).{0,80}(?:stuck|slow|hang|took (?P<seconds>\d{3,}))"),
    ("checkpoint-slow", r"Stale file handle|I/O error|Input/output error"),
)  # fmt: skip

_PROCESSES = _rows(
    ("exit-code", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)"),
    ("root-marker", r"Root Cause \(first observed failure\)"),
    ("no-other-failures", r"<NO_OTHER_FAILURES>"),
    ("mpi-process", r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]"),
    ("mpi-signal", r"(?:process rank (?P<rank>\d+).{0,60})?exited on signal (?P<signal>\d+)"),
    ("slurm-task", r"srun: error: (?P<host>\S+?): tasks? (?P<tasks>[\d,\-\[\]]+): (?P<what>.+)"),
    ("slurm-cancelled", r"(?:STEP|JOB) [\d.+_]+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>[A-Z ]+))?"),
    ("time-limit", r"DUE TO TIME LIMIT|time limit (?:reached|exceeded)|DeadlineExceeded"),
    ("node-failure", r"NODE FAILURE|NODE_FAIL|[Nn]ode failure|NodeNotReady|NodeLost"),
    ("node-failure", r"node .{0,60}(?:marked dead|has died|unexpectedly|was terminated)"),
    ("node-failure", r"missed too many heartbeats|kubelet stopped posting|ActorDiedError|WorkerCrashedError"),
    ("node-failure", r"lost (?:contact|connection) (?:with|to) (?:node|worker|agent)"),
    ("preempted", r"[Pp]reempt|[Ss]pot (?:instance )?(?:interruption|termination)|\bEvicted\b|scancel"),
    ("preempted", r"TERMINATING|maintenance event"),
    ("terminated", r"[Rr]eceived (?:signal )?(?:Signals\.)?(?:SIGTERM|SIGHUP|SIGINT|15|1|2)\b"),
    ("terminated", r"got signal: (?:15|1|2)|death signal, shutting down"),
    ("terminated", r"Received \d+ death signal|received SIGTERM|SIGHUP|SignalException|KeyboardInterrupt"),
    ("terminated", r"Job step aborted"),
    ("segfault", r"[Ss]egmentation fault|SIGSEGV|[Ss]ignal(?: code)?:? 11\b|exitcode: -11|exit code 139"),
    ("killed", r"SIGKILL|exitcode\s*: -9|exit code:? 137|exitcode=-9|[Ss]ignal 9\b|: Killed\b"),
    ("aborted", r"SIGABRT|exitcode\s*: -6|Signal 6|Aborted \(core dumped\)"),
    ("traceback", r"Traceback \(most recent call last\)"),
    ("frame", r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?'),
)  # fmt: skip

_ANCHORED = (
    Row(
        "exception",
        r"^[\s^~|]*(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure))(?:\s*:\s*(?P<text>.*))?$",
        find=r"(?:Error|Exception|Interrupt|Failure)\b",
    ),
    Row(
        "failed-rank",
        r"^\s*rank\s*: (?P<rank>\d+) \(local_rank: (?P<local_rank>\d+)\)",
        find=r"rank\s*: \d+ \(local_rank",
    ),
    Row("failed-code", r"^\s*exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)", find=r"exitcode\s*: -?\d+ \(pid"),
    Row("failed-host", r"^\s*host\s*: (?P<host>\S+)", find=r"host\s+: "),
    Row("failed-rank-json", r'^\s*"(?P<rank>\d+)": \{', find=r'"\d+": \{'),
)

_NOISE = _any_case(
    ("noise-address-family", r"errno: 97|address family not supported by protocol"),
    ("noise-omp", r"Setting OMP_NUM_THREADS"),
    ("noise-verbs", r"failed to open libibverbs|libibverbs.{0,40}(?:not found|cannot open)"),
    ("noise-plugin", r"no plugin found|net/ib : no device found|using internal implementation"),
    ("noise-ece", r"ibv_set_ece failed|ibv_query_ece"),
    ("noise-destroy", r"destroy_process_group\(\) was not called|process group has not been destroyed"),
    ("noise-device-id", r"no device id is provided|using gpu \d+ (?:to perform barrier|as device)"),
    (
        "noise-proxy",
        r"connection closed by localrank|\[service thread\]|proxy service|could not receive type from localrank",
    ),
    ("noise-not-saved", r"did not save the model"),
    ("noise-flight-recorder", r"stack trace of the failed collective not found"),
    ("noise-deprecated", r"futurewarning|deprecationwarning|userwarning"),
)

ROWS: tuple[Row, ...] = (
    *_DEVICES, *_MEMORY, *_NETWORK, *_NCCL, *_WATCHDOG, *_MODEL, *_DATA, *_PROCESSES, *_ANCHORED, *_NOISE,
)  # fmt: skip


def fields(row: Row, text: str) -> dict[str, str | int | float] | None:
    """The fields of ``row`` in ``text``; None where the row does not stand in it."""
    found = row.compiled.search(text)
    if found is None:
        return None
    return {name: _number(value) for name, value in found.groupdict().items() if value is not None}


def _number(value: str) -> str | int | float:
    if value.lstrip("-").isdigit() and len(value) < 18:
        return int(value)
    try:
        return float(value) if value.replace(".", "", 1).isdigit() and len(value) < 18 else value
    except ValueError:
        return value
