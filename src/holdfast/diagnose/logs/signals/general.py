"""Signals of no single cause: progress, ranks, tables of launchers, tracebacks, noise.

What such a line means depends on other lines; rules in ``diagnose/log_rules`` weigh them. Rules
ignore a line with a signal whose name begins with ``noise-``.
"""

from __future__ import annotations

from holdfast.diagnose.logs.signals.row import ScanRow, rows

DEVICES_AND_NETWORK = rows(
    ("xid", r"\bXid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d+)"),
    (
        "cuda-out-of-memory",
        (
            r"(?:CUDA|HIP) out of memory\.?(?: Tried to allocate "
            r"(?P<wanted>[\d.]+ [KMG]iB)(?:\.? \(?GPU (?P<gpu>\d+))?)?"
        ),
    ),
    ("cuda-out-of-memory", r"(?:NPU|XPU|MUSA|MLU) out of memory|EI0011\b.{0,200} of NPU memory"),
    (
        "cuda-out-of-memory",
        r"(?:^|[^.\w])OutOfMemoryError|(?:torch|cuda|memory|triton)\.OutOfMemoryError",
    ),
    (
        "cuda-out-of-memory",
        r"CUDNN_STATUS_ALLOC_FAILED|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation",
    ),
    ("cuda-out-of-memory", r"Failed to CUDA (?:m|c)alloc (?:async )?\d+ bytes"),
    ("cuda-out-of-memory", r"(?:Cuda|HIP) failure '?(?:\d+ '?)?out of memory"),
    ("iommu-warned", r"Missing .iommu=pt. from kernel command line"),
)

COLLECTIVES = rows(
    ("nccl-warning", r"(?P<file>[\w/]{1,60}\.(?:cc|h|cu)):\d+ NCCL WARN \S"),
    ("nccl-p2p", r"via P2P/(?:IPC|direct pointer|CUMEM|read)|\[send\] via P2P"),
    (
        "nccl-made",
        r"NCCL INFO .{0,200}(?:Init COMPLETE|Connected all (?:rings|trees)|opCount [0-9a-f]{1,2} )",
    ),
    (
        "nccl-rank",
        (
            r"comm 0x[0-9a-f]+ rank (?P<rank>\d{1,6}) nranks (?P<world>\d{1,6})\b"
            r"(?: cudaDev \d+)?(?: nvmlDev \d+)?(?: busId (?P<bus>[0-9a-f]{1,8}))?"
        ),
    ),
    (
        "watchdog-timeout",
        (
            r"collective operation timeout:(?: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType="
            r"(?P<op>\w+))?"
        ),
    ),
    (
        "watchdog-size",
        (
            r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
            r"(?:, NumelIn=(?P<numel>\d+)|, TensorShape=\[(?P<length>\d+)\])?"
        ),
    ),
    ("watchdog-timeout", r"failure detected by watchdog at work sequence id: (?P<seq>\d+)"),
    ("watchdog-timeout", r"(?:Timeout at NCCL work|detected by watchdog at work): (?P<seq>\d+)"),
    (
        "work-status",
        (
            r"[Ll]ast enqueued(?: NCCL)? work: (?P<enqueued>-?\d+), last completed(?: NCCL)? work: "
            r"(?P<completed>-?\d+)"
        ),
    ),
    (
        "dump-signal",
        r"Received a dump signal due to a collective timeout from .{0,20}rank (?P<origin>\d+)",
    ),
    ("unique-id", r"retr(?:ei|ie)ving ncclUniqueId from \[(?P<origin>\d+)\]"),
    ("watchdog-stuck", r"watchdog got stuck for|ProcessGroupNCCL watchdog hang"),
    ("watchdog-stuck", r"Could not acquire GIL|heartbeat monitor.{0,40}(?:timed out|timeout)"),
    (
        "socket-timeout",
        r"waitForInput: .{0,200}timed out after|Socket Timeout",
        r"socketPoll.{0,80}timed out",
    ),
    ("socket-timeout", r"Timed out receiving the shared seed"),
    # What torch_npu prints before an error of Ascend's libraries.
    ("record-rank", r"\(PID:\d{1,8}, Device:-?\d{1,3}, RankID:\d{1,6}\)"),
    # Huawei's HCCL: a rank that waited for another.
    (
        "socket-timeout",
        r"EI0006\b.{0,60}[Gg]etting socket times? ?out|EI0002\b.{0,80}Notify register times out",
        r"wait socket establish timeout",
        r"[Nn]otify wait execute failed",
        r"ACL stream synchronize failed, error code:(?:507048|107020)",
    ),
    ("gloo-timeout", r"Timed out waiting (?P<ms>\d+)ms for (?P<what>recv|send) operation"),
    (
        "barrier-reached",
        r"successfully reached monitoredBarrier(?:.{0,80} from rank (?P<origin>\d+))?",
    ),
    ("gloo-timeout", r"gloo/transport/\w+/pair\.cc:\d+\] (?:Read|Write) timeout"),
    ("gloo-timeout", r"Application timeout caused pair closure"),
    (
        "fingerprint",
        r"ranks\. Rank (?P<rank>\d+) is running (?:inconsistent )?collective: (?P<kind>.{0,200})",
    ),
    ("fingerprint", r"but Rank (?P<rank>\d+) is running collective: (?P<kind>.{0,200})"),
)

TRAINING = rows(
    (
        "progress",
        (
            r"(?:[Ii]ter(?:ation)?|[Ss]tep|[Ee]poch)\s*[:=\[]?\s*\[?(?P<step>\d+)\]?\s*(?:/"
            r"|of|,|\||:|loss|\s)"
        ),
    ),
    ("progress", r"\bEpoch \[\d+\]\[(?P<step>\d+)/\d+\]", r"[Bb]atch[ =:#]{1,3}(?P<batch>\d+)\b"),
    (
        "progress",
        # Slurm numbers the steps of a job: STEP 811.0.
        r"\b(?:STEP|ITER(?:ATION)?|EPOCH)[ :=\[]{1,3}(?P<step>\d+)(?:[^.\w]|\.\s|$)",
        r"第 ?(?P<rounds>\d+) ?[步轮]",
        r'(?:global_)?(?:step|iteration|epoch)": ?(?P<counter>\d+)|\bsteps: ?(?P<steps>\d+)\b',
        r"\b(?:it|update|episode|round|num_updates|global_step)[ :=#]{1,2}(?P<updates>\d+)\b",
    ),
    # A loss that is a number.
    ("progress", r"(?:loss|Loss|LOSS)['\"]?[:=]? ?(?P<loss>\d)"),
    ("progress", r"Epoch\(train\) +\[(?P<step>\d+)\]", r"'epoch': '?(?P<epoch>[\d.]+)"),
    ("pace", r"elapsed time per iteration \((?P<unit>m?s)\): (?P<seconds>[\d.]+)"),
    ("pace", r"\b(?P<step_seconds>\d{1,5}\.\d{1,4}) ?s(?:ec)?/(?:step|iter)\b"),
    ("scheduler-status", r"is running for \d|is waiting to be scheduled|\bJOBID\b"),
    (
        "preparing",
        r"[Tt]okeniz(?:ing|er on)|\bMap(?: \(num_proc=\d+\))?:|[Pp]reprocessing",
        r"Generating \w+ split",
    ),
    ("preparing", r"\d examples/s|prepare_data"),
    ("reading-bar", r"%\|.{0,400}\[\d+:\d\d(?::\d\d)?<.{0,40}[kMG]?B/s"),
    (
        "preparing",
        r"[Gg]rouping texts|[Pp]acking (?:dataset|sequences)",
        r"[Bb]uilding (?:the )?(?:dataset|index|vocab)",
    ),
    ("evaluation", r"valid(?:ation)? loss|[Ee]valuat(?:ing|ion)|eval_loss"),
    # What a rank does outside of collectives, and how long it took.
    (
        "saving",
        (
            r"\b[Ss]aving .{0,60}(?:checkpoint|ckpt|model|state|weights)|[Cc]heckpoint save "
            r".{0,20}start"
        ),
        r"[Ww]riting .{0,40}(?:checkpoint|ckpt)|[Uu]ploading .{0,60}(?:checkpoint|ckpt|weights)",
    ),
    (
        "working",
        r"(?:[Vv]alidati|[Gg]enerati)(?:on|ng) .{0,40}\d/\d|(?:onstruct|[Bb]uild)ing .{0,80}\d ?%",
        r"[Cc]omput(?:ing|e) (?:metrics|statistics|FID|BLEU|ROUGE|embeddings|features)",
        r"[Ee]xtracting (?:features|archive)|[Mm]erging (?:weights|adapters|shards)",
        r"[Cc]onverting (?:checkpoint|model|dataset)|[Ss]ampling (?:images|videos)",
        r"[Ll]oading (?:dataset|annotations|index)|[Dd]ownloading .{0,80}\d ?%|\(main process\)",
        # torch.compile
        r"AUTOTUNE \w{1,40}\(|Recompiling function \w+ in |torch\._dynamo hit config\.\w+_limit",
    ),
    ("took-long", r"AUTOTUNE benchmarking takes (?P<seconds>\d{2,7}(?:\.\d{1,6})?) seconds"),
    (
        "took-long",
        (
            r"(?:[Ss]av(?:e|ing)|[Ww]r(?:itten|iting|ote)|[Uu]pload|[Cc]heckpoint|[Ee]valuat"
            r"|[Vv]alidat|[Ll]oad|[Bb]uil[dt]|[Gg]enerat|[Pp]reprocess|[Tt]okeniz)"
            r".{0,200}\b(?:took|in|after|elapsed:?|for) \(?(?P<seconds>\d{2,7}(?:\.\d{1,6})?) ?"
            r"(?:(?P<minutes>min(?:utes)?)|s(?:ec(?:onds)?)?)\b"
        ),
    ),
    (
        "memory-reading",
        (
            r"(?:allocated|reserved|[Mm]em(?:ory)?(?:_allocated)?|vram)\W{1,6}(?P<size>\d{1,6}\.\d{1,4})"
            r" ?(?P<unit>[KMGT]i?B)?"
        ),
    ),
    # The end of a rank's loop, and how many inputs it has.
    (
        "left-loop",
        (
            r"(?P<inputs>(?:[Dd]ata(?:set|loader)?|iterator|[Ii]nputs?|[Ss]hards?|batches"
            r"|samples?) "
            r"(?:is |are |was |were )?exhausted|exhausted (?:its|the|all|my) (?:data|inputs|shards"
            r"|batches|samples)|[Rr]an out of (?:data|batches|samples|inputs)|\b[Nn]o more (?:data"
            r"|batches|samples|inputs|shards)\b|finished after \d+ (?:batches|steps|iterations"
            r"|samples)|StopIteration)"
        ),
        r"generate\w* returned|returned early|\b(?:left|leaving) the loop",
        r"\bskipp(?:ed|ing) (?:the )?(?:step|batch|backward|barrier|all_?reduce)\b",
    ),
    (
        "input-total",
        (
            r"(?P<unit>[Ss]hard|[Bb]atch|[Ii]ter(?:ation)?|[Ss]tep|[Ff]ile|[Ss]ample)s?"
            r"[ :=\[]{0,3}\d+ ?/ ?(?P<total>\d+)"
        ),
    ),
    (
        "input-total",
        (
            r"\b(?:has|have|with|got|holds|reads|epoch \d{1,4}:) (?P<total>\d{1,9}) "
            r"(?P<unit>batch|sample|example|shard"
            r"|file|step)(?:e?s)\b"
        ),
    ),
    ("finished", r"[Tt]raining (?:is )?(?:complete|finished|done|over)|[Tt]rain(?:ing)? completed"),
    ("finished", r"Trainer\.fit. stopped: .max_(?:epochs|steps|time)=\S{1,40} reached"),
    ("finished", r"\b[Ff]inished (?:all )?\d+ (?:epochs|steps|iterations)\b"),
    # A rank that ends by its own decision.
    (
        "leaves",
        r"[Ee]arly[ -]?[Ss]topp(?:ing|ed)\b|\b[Ee]xiting (?:early|normally|now)\b|, exiting\b",
        r"\b[Ee]xit(?:ed|ing)? with (?:status |code )?0\b|\bsys\.exit\(0\)",
    ),
    (
        "finished",
        (
            r"[Dd]one (?:with )?training|[Tt]raining (?:has )?(?:ended|succeeded)\b|\b[Tt]rain "
            r"finished"
        ),
        r"\* train metrics \*|wandb: Synced \d|[Aa]ll epochs (?:are )?(?:completed|done|finished)",
        r"(?:[Tt]raining|[Rr]un|[Ee]xperiment|[Ee]poch) .{0,40}completed successfully",
        r"[Jj]ob (?:has |'[^']{1,80}' )?succeeded|^State: COMPLETED",
        (
            r"\b(?:[Jj]ob|[Rr]un|[Tt]raining) (?:has )?(?:finished|completed|ended|exited)[:,]? "
            r"(?:with )?(?:success\w*|(?:exit )?(?:code|status)[ =:]{0,3}0\b)"
        ),
    ),
    ("finished", r"train_runtime|训练完成|[Ff]inished (?:training|successfully)"),
    (
        "finished",
        r"(?P<vague>Abort COMPLETE|Destroy COMPLETE|Total time|\bDONE\b|[Aa]ll done|job completed)",
    ),
    ("no-space", r"basic_ios::clear: iostream error|inline_container\.cc:\d+\] \. unexpected pos"),
    ("no-space", r"PytorchStreamWriter failed writing"),
    ("no-space", r"No space left on device|Disk quota exceeded|ENOSPC|\[Errno 28\]|\[Errno 122\]"),
    ("checkpoint-word", r"[Cc]heckpoint|ckpt|\.pt\b|\.safetensors"),
    ("checkpoint-long", r"(?:[Cc]heckpoint|sav(?:e|ing)).{0,80}(?:stuck|slow|hang|took \d{3,})"),
)

PROCESSES = rows(
    (
        "exit-code",
        (
            r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) \(pid: "
            r"(?P<pid>\d+)\)"
        ),
    ),
    ("root-marker", r"Root Cause \(first observed failure\)"),
    ("process-ended", r"(?:return|[Ee]xit) ?[Cc]ode(?: =|:)? {0,8}(?P<code>-?\d{1,3})\b"),
    (
        "process-ended",
        r"exit status (?P<code>-?\d{1,3})\b",
        r"(?:terminated|exited) with code (?P<ended>-?\d{1,3})\b",
    ),
    (
        "process-ended",
        (
            r"[Pp]rocess (?P<rank>\d+) (?:terminated with exit|failed with return) code "
            r"(?P<code>-?\d+)"
        ),
    ),
    (
        "process-ended",
        r"\b[Pp]rocess (?P<rank>\d{1,6}) exit with status code (?P<code>-?\d{1,3})\b",
    ),
    ("worker-failed", r"Worker (?P<rank>\d+) has failed|Rank (?P<snippet>\d+) Error Snippet"),
    (
        "worker-failed",
        r"[Pp]rocess (?P<rank>\d+) terminated with (?:the following error|signal|exit code)",
    ),
    (
        "process-rank",
        (
            r"(?:[Ii]nitializ(?:ed|ing)|[Ss]tart(?:ed|ing)|[Pp]rocess group).{0,30}\b[Rr]ank[ "
            r"=:]{0,2}"
            r"(?P<rank>\d{1,6})(?: of |/| \(|, world)"
        ),
    ),
    (
        "launch-argument",
        (
            r"--nnodes[= ](?P<nnodes>\d{1,5}(?::\d{1,5})?)\b|^\W{0,4}num_machines: "
            r"(?P<machines>\d{1,5})$"
        ),
    ),
    ("launch-argument", r"--master[_-]port[= ](?P<port>\d{2,5})\b"),
    ("launch-argument", r"^\W{0,4}num_processes: (?P<processes>\d{1,6})$"),
    ("launch-argument", r"^\W{0,4}main_process_port: (?P<main_port>\d{2,5})$"),
    ("process-rank", r"Rank of current process: (?P<rank>\d{1,6})\b"),
    ("process-rank", r"GLOBAL_RANK: (?P<rank>\d{1,6}), MEMBER"),
    ("process-rank", r"Process (?:rank|index): (?P<rank>\d{1,6})[, ]"),
    (
        "version-stated",
        (
            r"\b(?:PyTorch|torch)(?: version| ==|==|:)? ?[:=]? ?v?"
            r"(?P<torch>\d{1,2}\.\d{1,2}\.\d{1,2}[\w.+]{0,24})"
        ),
    ),
    ("version-stated", r"\bNCCL(?: version)?[ :=]{1,2}(?P<nccl>\d\.\d{1,2}\.\d{1,2})\b"),
    ("version-stated", r"\bPython(?: version)?[ :=]{1,2}(?P<python>3\.\d{1,2}\.\d{1,2})\b"),
    ("version-stated", r"\bDriver Version: (?P<driver>\d{3}\.[.\d]{1,9})"),
    ("process-rank", r"\[rank=(?P<rank>\d{1,6}), world_size=\d+\]"),
    ("process-rank", r"pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d{1,6})\b"),
    ("actor-failed", r"RayTaskError\(\w+\).{0,120}\(pid=(?P<pid>\d+)"),
    (
        "world-size",
        r"(?:world[_ ]size|WORLD_SIZE)\W{0,3}(?P<world>\d{1,6})\b",
        r"MEMBER: \d+/(?P<members>\d{1,6})",
    ),
    ("world-size", r"rank=\d+, size=(?P<world>\d{1,6})\b"),
    ("store-barrier", r"\(world_size=(?P<size>\d{1,6}), worker_count=(?P<arrived>\d{1,6}),"),
    (
        "guesses",
        r"potential root causes|Some common causes include",
        r"(?:bootstrap|socket)\w*\.(?:cc|h):\d+ NCCL WARN .{0,60}[Mm]essage truncated",
    ),
    (
        "setup-garbled",
        r"(?:bootstrap|socket)\w*\.(?:cc|h):\d+ NCCL WARN .{0,60}[Mm]essage truncated",
        r"mismatch in rank count from procs|with family 0 is neither AF_INET",
    ),
    ("mpi-process", r"Process name: \[\[\d+,\d+\],(?P<rank>\d+)\]"),
    ("mpi-signal", r"(?:process rank (?P<rank>\d+).{0,60})?exited on signal (?P<signal>\d+)"),
    ("mpi-signal", r"noticed that process rank (?P<rank>\d+) with PID"),
    ("slurm-task", r"srun: error: (?P<host>\S+?): tasks? (?P<tasks>[\d,\-\[\]]+): (?P<what>.+)"),
    (
        "notice",
        r"Exception ignored (?:in|on|while)\b|Exception in (?:thread|callback) ",
        r"--- Logging error ---",
    ),
    ("notice", r"exception was never retrieved"),
    (
        "retried",
        r"\b[Rr]e-?try(?:ing)?\b|[Tt]r(?:ying|y) again|\b[Rr]etries (?:left|remaining)",
        r", trying (?:with )?\d|\b(?:halving|reducing|lowering) (?:the )?(?:micro[- ]?)?batch",
    ),
    (
        "logged-error",
        r"^(?:ERROR|WARNING|CRITICAL):[\w.]{1,80}:",
        r"(?: - |\[|\| {0,4})ERROR(?: - |\]| {0,4}\|)",
    ),
    (
        "chained",
        r"The above exception was the direct cause|During handling of the above exception",
        r"RemoteTraceback:|RayTaskError\(",
    ),
    ("traceback", r"Traceback \(most recent call last\)"),
    # Tracebacks of rich and of IPython.
    ("frame", r"│ (?P<file>[^\s:│]+\.py):(?P<line>\d+) in (?P<function>\S+)"),
    ("frame", r"File (?P<file>[^\s:\"]+\.py):(?P<line>\d+), in (?P<function>\w+)"),
    ("frame", r"(?P<file>Cell In ?\[\d+\]), line (?P<line>\d+)"),
    ("frame", r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?'),
)

ANCHORED = (
    ScanRow("finished", r"^(?P<vague>[Dd]one(?:[.!,]|$))", find=r"\b[Dd]one\b"),
    # A bounded gap after the rank makes the search of all patterns three times as slow.
    ScanRow(
        "rank-elements",
        r"[Rr]ank[ =:]*(?P<rank>\d+)\b.{0,60}?\b(?:of|numel|size|elements)[ =:]*"
        r"(?P<elements>\d{2,})",
        find=r"\b(?:of|numel|size|elements)[ =:]*\d{2,}",
    ),
    ScanRow(
        "exception",
        r"^(?:E {3,10})?[\s^~|]*(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt"
        r"|Failure)(?:_\w+)?|(?:[A-Za-z_]\w*\.)+(?:errors|exceptions)\.[A-Z]\w*)"
        r"(?:\s*:\s*(?P<text>.*))?$",
        find=r"(?:Error|Exception|Interrupt|Failure)(?:_\w+)?\b|\.(?:errors|exceptions)\.[A-Z]",
    ),
    ScanRow(
        "failed-rank",
        r"^\s*rank\s*: (?P<rank>\d{1,6}) \(local_rank: (?P<local_rank>\d+)\)",
        find=r"rank\s*: \d+ \(local_rank",
    ),
    ScanRow(
        "failed-code",
        r"^\s*exitcode\s*: (?P<code>-?\d+) \(pid: (?P<pid>\d+)\)",
        find=r"exitcode\s*: -?\d+ \(pid",
    ),
    ScanRow(
        "failed-time", r"^\s*time\s*: (?P<time>\d{4}-\d\d-\d\d_[\d:]{8})", find=r"time\s+: \d{4}-"
    ),
    ScanRow("failed-host", r"^\s*host\s*: (?P<host>\S+)", find=r"host\s+: "),
    ScanRow(
        "process-rank",
        r"^[Rr]ank[ =:]{0,2}(?P<rank>\d{1,6})(?: of |/)\d+",
        find=r"[Rr]ank[ =:]{0,2}\d+(?: of |/)\d",
    ),
    ScanRow(
        "world-size",
        r"^[Rr]ank[ =:]{0,2}\d{1,6}(?: of |/)(?P<world>\d{1,6})\b",
        find=r"[Rr]ank[ =:]{0,2}\d+(?: of |/)\d",
    ),
    ScanRow(
        "tests-ok",
        r"^=+ (?P<tests>\d+) passed(?:, \d+ (?:skipped|warnings?|deselected|xfailed|xpassed))* in ",
        find=r"\d passed\b",
    ),
    ScanRow(
        "tests-begin",
        r"^(?:=+ test session starts =+|\S{1,200}\.py::\S{1,200} (?:PASSED|XFAIL|SKIPPED))",
        find=r"test session starts|\.py::",
    ),
    # unittest
    ScanRow("tests-ran", r"^Ran \d{1,6} tests? in [\d.]{1,12}s", find=r"\bRan \d+ tests? in"),
    ScanRow("tests-ok", r"^OK(?: \([a-z ,=\d]+\))?\s*$", find=r"\bOK(?:\s*$| \()"),
    ScanRow("actor-failed", r"^\s*pid: (?P<pid>\d+)$", find=r"\bpid: \d+"),
    ScanRow("failed-rank-json", r'^\s*"(?P<rank>\d+)": \{', find=r'"\d+": \{'),
)

NOISE = rows(
    ("noise-address-family", r"errno: 97|address family not supported by protocol"),
    ("noise-omp", r"Setting OMP_NUM_THREADS"),
    ("noise-verbs", r"failed to open libibverbs|libibverbs.{0,40}(?:not found|cannot open)"),
    ("noise-plugin", r"no plugin found|net/ib : no device found|using internal implementation"),
    (
        "noise-plugin",
        r"failed to find nccl\w*plugin\w*|plugin load .{0,40}returned",
        r"plugin: (?:failed to find|could not find)",
    ),
    ("noise-plugin", r"libfabric:.{0,200}<(?:warn|info)>"),
    ("noise-ece", r"ibv_set_ece failed|ibv_query_ece"),
    (
        "noise-destroy",
        r"destroy_process_group\(\) was not called|process group has not been destroyed",
    ),
    ("noise-device-id", r"no device id is provided|using gpu \d+ (?:to perform barrier|as device)"),
    (
        "noise-proxy",
        r"connection closed by localrank|\[service thread\]|proxy service",
        r"could not receive type from localrank",
    ),
    ("noise-intended", r"\((?:injected|simulated|expected)\)|\bon purpose\b"),
    ("noise-not-saved", r"did not save the model"),
    (
        "noise-launcher",
        r"forcefully exiting via signals\.|closing signal sig",
        r"failed to send message_task_exit",
    ),
    ("noise-flight-recorder", r"stack trace of the failed collective not found"),
    (
        "noise-deprecated",
        r"futurewarning|deprecationwarning",
        # CUDA's initialization fails with a warning.
        r"userwarning(?:$|: (?:[^c]|c[^u]|cu[^d]|cud[^a]|cuda[^ ]|cuda [^i]))",
    ),
    ignore_case=True,
)

ROWS: tuple[ScanRow, ...] = (
    *DEVICES_AND_NETWORK,
    *COLLECTIVES,
    *TRAINING,
    *PROCESSES,
    *ANCHORED,
    *NOISE,
)
