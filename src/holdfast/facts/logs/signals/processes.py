"""Signals of processes and launchers, and what only looks like a signal."""

from __future__ import annotations

from holdfast.facts.logs.signals.row import Row, any_case, rows

PROCESSES = rows(
    ("exit-code", r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: (?P<pid>\d+)\)"),
    ("root-marker", r"Root Cause \(first observed failure\)"),
    ("no-other-failures", r"<NO_OTHER_FAILURES>"),
    ("process-ended", r"(?:return|[Ee]xit) ?[Cc]ode(?: =|:)? {0,8}(?P<code>-?\d{1,3})\b"),
    ("process-ended", r"exit status (?P<code>-?\d{1,3})\b|(?:terminated|exited) with code (?P<ended>-?\d{1,3})\b"),
    ("process-ended", r"[Pp]rocess (?P<rank>\d+) (?:terminated with exit|failed with return) code (?P<code>-?\d+)"),
    ("worker-failed", r"Worker (?P<rank>\d+) has failed|Rank (?P<snippet>\d+) Error Snippet"),
    ("worker-failed", r"[Pp]rocess (?P<rank>\d+) terminated with (?:the following error|signal|exit code)"),
    ("process-rank", r"\[rank=(?P<rank>\d{1,6}), world_size=\d+\]"),
    ("process-rank", r"pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d{1,6})\b"),
    ("actor-failed", r"RayTaskError\(\w+\).{0,120}\(pid=(?P<pid>\d+)"),
    ("world-size", r"(?:world[_ ]size|WORLD_SIZE)\W{0,3}(?P<world>\d{1,6})\b|MEMBER: \d+/(?P<members>\d{1,6})"),
    ("world-size", r"rank=\d+, size=(?P<world>\d{1,6})\b"),
    ("guesses", r"potential root causes|Some common causes include"),
    ("mpi-process", r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]"),
    ("mpi-signal", r"(?:process rank (?P<rank>\d+).{0,60})?exited on signal (?P<signal>\d+)"),
    ("mpi-signal", r"noticed that process rank (?P<rank>\d+) with PID"),
    ("slurm-task", r"srun: error: (?P<host>\S+?): tasks? (?P<tasks>[\d,\-\[\]]+): (?P<what>.+)"),
    ("slurm-cancelled", r"(?:STEP|JOB) [\d.+_]+ ON \S+ CANCELLED AT \S+(?: DUE TO (?P<why>[A-Z ]+))?"),
    ("time-limit", r"DUE TO TIME LIMIT|time limit (?:reached|exceeded)|DeadlineExceeded"),
    ("node-failure", r"NODE FAILURE|NODE_FAIL|[Nn]ode failure|NodeNotReady|NodeLost"),
    ("node-failure", r"node .{0,60}(?:marked dead|has died|unexpectedly|was terminated)"),
    ("node-failure", r"missed too many heartbeats|kubelet stopped posting|ActorDiedError|WorkerCrashedError"),
    ("node-failure", r"RayActorError: The actor died|worker process has died|worker died or was killed while"),
    ("node-failure", r"lost (?:contact|connection) (?:with|to) (?:node|worker|agent)"),
    ("preempted", r"\b[Pp]reempted\b|PREEMPT(?:ED|ION)|[Pp]reemption (?:notice|warning|event)"),
    ("preempted", r"[Ss]pot (?:instance )?(?:interruption|termination)|\bEvicted\b|scancel"),
    ("preempted", r"preempted_ranks=\[(?P<rank>\d+)"),
    ("preempted", r"PreemptionWatcher: drain detected"),
    ("preempted", r"TERMINATING|maintenance event"),
    ("terminated", r"[Rr]eceived (?:signal )?(?:Signals\.)?(?:SIGTERM|SIGHUP|SIGINT|15|1|2)\b"),
    ("terminated", r"got signal: (?:15|1|2)|death signal, shutting down"),
    ("terminated", r"Received \d+ death signal|received SIGTERM|SIGHUP|SignalException|KeyboardInterrupt"),
    ("terminated", r"Job step aborted"),
    ("segfault", r"[Ss]egmentation fault|SIGSEGV|[Ss]ignal(?: code)?:? 11\b|exitcode: -11|exit code 139"),
    ("segfault", r"double free detected|free\(\): invalid|malloc\(\): |corrupted size vs\. prev_size|munmap_chunk\(\)"),
    ("killed", r"SIGKILL|exitcode\s*: -9|exit code:? 137|exitcode=-9|[Ss]ignal 9\b|: Killed\b"),
    ("aborted", r"SIGABRT|exitcode\s*: -6|Signal 6|Aborted \(core dumped\)"),
    ("left-at-exit", r"^(?:\[.{1,40}\]:? ?)?terminate called without an active exception"),
    ("traceback", r"Traceback \(most recent call last\)"),
    ("frame", r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?'),
)  # fmt: skip

ANCHORED = (
    Row(
        "exception",
        r"^[\s^~|]*(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure)(?:_\w+)?)(?:\s*:\s*(?P<text>.*))?$",
        find=r"(?:Error|Exception|Interrupt|Failure)(?:_\w+)?\b",
    ),
    Row(
        "failed-rank",
        r"^\s*rank\s*: (?P<rank>\d{1,6}) \(local_rank: (?P<local_rank>\d+)\)",
        find=r"rank\s*: \d+ \(local_rank",
    ),
    Row("failed-code", r"^\s*exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)", find=r"exitcode\s*: -?\d+ \(pid"),
    Row("failed-time", r"^\s*time\s*: (?P<time>\d{4}-\d\d-\d\d_[\d:]{8})", find=r"time\s+: \d{4}-"),
    Row("failed-host", r"^\s*host\s*: (?P<host>\S+)", find=r"host\s+: "),
    Row("process-rank", r"^[Rr]ank[ =:]{0,2}(?P<rank>\d{1,6})(?: of |/)\d+", find=r"[Rr]ank[ =:]{0,2}\d+(?: of |/)\d"),
    Row("actor-failed", r"^\s*pid: (?P<pid>\d+)$", find=r"\bpid: \d+"),
    Row("failed-rank-json", r'^\s*"(?P<rank>\d+)": \{', find=r'"\d+": \{'),
)

NOISE = any_case(
    ("noise-address-family", r"errno: 97|address family not supported by protocol"),
    ("noise-omp", r"Setting OMP_NUM_THREADS"),
    ("noise-verbs", r"failed to open libibverbs|libibverbs.{0,40}(?:not found|cannot open)"),
    ("noise-plugin", r"no plugin found|net/ib : no device found|using internal implementation"),
    (
        "noise-plugin",
        r"failed to find nccl\w*plugin\w*|plugin load .{0,40}returned|plugin: (?:failed to find|could not find)",
    ),
    ("noise-plugin", r"libfabric:.{0,200}<(?:warn|info)>"),
    ("noise-ece", r"ibv_set_ece failed|ibv_query_ece"),
    ("noise-destroy", r"destroy_process_group\(\) was not called|process group has not been destroyed"),
    ("noise-device-id", r"no device id is provided|using gpu \d+ (?:to perform barrier|as device)"),
    (
        "noise-proxy",
        r"connection closed by localrank|\[service thread\]|proxy service|could not receive type from localrank",
    ),
    ("noise-not-saved", r"did not save the model"),
    ("noise-launcher", r"forcefully exiting via signals\.|closing signal sig|failed to send message_task_exit"),
    ("noise-flight-recorder", r"stack trace of the failed collective not found"),
    ("noise-deprecated", r"futurewarning|deprecationwarning|userwarning"),
)
