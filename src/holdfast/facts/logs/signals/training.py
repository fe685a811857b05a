"""Signals of NCCL, the watchdog, the model and its data."""

from __future__ import annotations

from holdfast.facts.logs.signals.row import rows

NCCL = rows(
    ("nccl-system-error", r"unhandled system error|ncclSystemError|NCCL error.{0,80}system error"),
    ("nccl-cuda-error", r"unhandled cuda error|ncclUnhandledCudaError|NCCL WARN Cuda failure"),
    ("nccl-internal-error", r"ncclInternalError|NCCL.{0,60}internal error"),
    ("nccl-invalid-usage", r"ncclInvalidUsage|ncclInvalidArgument|NCCL.{0,60}invalid (?:usage|argument)"),
    ("nccl-version", r"undefined symbol: nccl\w+|Mismatched NCCL version|NCCL version mismatch"),
    ("nccl-version", r"symbol lookup error.{0,80}nccl"),
    ("nccl-version", r"NCCL library version .{0,40}(?:differ|mismatch)|compiled with NCCL .{0,60}but"),
    ("nccl-plugin", r"[Nn]etwork (?P<net>[\w-]+) not found"),
    ("nccl-plugin", r"Failed to (?:load|initialize|open) .{0,20}(?:plugin|libnccl-)"),
    ("nccl-plugin", r"NCCL WARN NET/(?:OFI|Plugin) .{0,80}(?:[Ff]ail|[Ee]rror|Unable|Couldn't|Could not)"),
    ("nccl-plugin", r"libnccl-(?:net|tuner)\S*: (?:undefined symbol|version)|NCCL_NET_PLUGIN.{0,60}not (?:found|load)"),
    ("nccl-config", r"NCCL WARN .{0,60}(?:[Ii]nvalid|[Uu]nknown|[Uu]nsupported) .{0,40}NCCL_\w+"),
    ("nccl-config", r"NCCL_(?:ALGO|PROTO)\b.{0,60}(?:not|no )"),
    ("nccl-config", r"[Tt]p[_-]comm[_-]overlap|ub_cfg|userbuffers|Too many SMs"),
    ("nccl-config", r"no algorithm/protocol available"),
    ("nccl-truncated", r"Message truncated|message truncated|[Mm]ismatched? (?:collective|size)"),
    ("nccl-truncated", r"size mismatch between ranks"),
    ("nccl-p2p", r"via P2P/(?:IPC|direct pointer|CUMEM|read)|\[send\] via P2P"),
    ("nccl-made", r"NCCL INFO .{0,200}(?:Init COMPLETE|Connected all (?:rings|trees)|opCount [0-9a-f]{1,2} )"),
    ("nccl-rank", r"comm 0x[0-9a-f]+ rank (?P<rank>\d+) nranks (?P<world>\d+)"),
)  # fmt: skip

WATCHDOG = rows(
    ("watchdog-timeout", r"collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"),
    ("watchdog-size", r"WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+), NumelIn=(?P<numel>\d+)"),
    ("watchdog-timeout", r"failure detected by watchdog at work sequence id: (?P<seq>\d+)"),
    ("watchdog-timeout", r"(?:Timeout at NCCL work|detected by watchdog at work): (?P<seq>\d+)"),
    (
        "work-status",
        r"last enqueued(?: NCCL)? work: (?P<enqueued>-?\d+), last completed(?: NCCL)? work: (?P<completed>-?\d+)",
    ),
    ("dump-signal", r"Received a dump signal due to a collective timeout from .{0,20}rank (?P<origin>\d+)"),
    ("watchdog-stuck", r"watchdog got stuck for|Could not acquire GIL|heartbeat monitor.{0,40}(?:timed out|timeout)"),
    ("socket-timeout", r"waitForInput: .{0,200}timed out after|Socket Timeout|socketPoll.{0,80}timed out"),
    ("gloo-timeout", r"Timed out waiting (?P<ms>\d+)ms for (?P<what>recv|send) operation"),
    ("barrier-missing", r"Ranks? (?P<missing>[\d, ]+?) failed to (?:pass|reach) monitoredBarrier"),
    ("mismatch-said", r"Detected mismatch between collectives on ranks|[Cc]ollectives differ in the following aspects"),
    ("mismatch-said", r"op\.preamble\.length|[Dd]esync(?:hronization)? (?:report|detected)|do not match across ranks"),
    ("desync-report", r"(?:Ranks? )?\[(?P<ranks>[\d, ]+)\] (?:haven't|finished|joined) .{0,60}(?:collective|but)"),
)

MODEL = rows(
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
    ("nan", r"Attempted loss scale: \S+ reducing to (?:1|0\.\d+)(?:\.0)?\s*$"),
    ("preparing", r"[Tt]okeniz(?:ing|er on)|\bMap(?: \(num_proc=\d+\))?:|[Pp]reprocessing|Generating \w+ split"),
    ("preparing", r"\d examples/s|prepare_data"),
    ("preparing", r"[Gg]rouping texts|[Pp]acking (?:dataset|sequences)|[Bb]uilding (?:the )?(?:dataset|index|vocab)"),
    ("evaluation", r"valid(?:ation)? loss|[Ee]valuat(?:ing|ion)|eval_loss"),
    ("finished", r"[Tt]raining (?:is )?(?:complete|finished|done|over)|[Tt]rain(?:ing)? completed"),
    ("finished", r"train_runtime|Total time|训练完成"),
    ("finished", r"Abort COMPLETE|Destroy COMPLETE|[Ff]inished (?:training|successfully)|\bDONE\b"),
    ("finished", r"[Aa]ll done|job completed"),
)  # fmt: skip

DATA = rows(
    ("loader-killed", r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)"),
    ("loader-timeout", r"DataLoader timed out after"),
    ("download", r"LocalEntryNotFoundError|couldn't connect to .{0,60}(?:huggingface|hub)|HfHubHTTPError"),
    ("download", r"Consistency check failed"),
    ("download", r"NonMatching(?:Splits|Checksum)|IncompleteRead|BadZipFile"),
    ("download", r"FileExistsError.{0,120}(?:cache|lock|\.incomplete)"),
    ("download", r"(?:cache|hub|download|snapshots?|\.lock).{0,120}(?:No such file|FileNotFoundError|Stale file)"),
    ("download", r"\[Errno (?:17|39)\] .{0,200}(?:cache|hub|incomplete|download|\.lock)"),
    ("download", r"tarfile\.ReadError"),
    ("download", r"tarfile\.ReadError"),
    ("no-space", r"No space left on device|Disk quota exceeded|ENOSPC|\[Errno 28\]|\[Errno 122\]"),
    ("checkpoint-word", r"[Cc]heckpoint|ckpt|\.pt\b|\.safetensors"),
    ("checkpoint-broken", r"PytorchStreamReader failed|failed finding central directory|UnpicklingError"),
    ("checkpoint-broken", r"MetadataIncompleteBuffer"),
    ("checkpoint-slow", r"(?:[Cc]heckpoint|sav(?:e|ing)).{0,80}(?:stuck|slow|hang|took (?P<seconds>\d{3,}))"),
    ("checkpoint-slow", r"Stale file handle|I/O error|Input/output error"),
)  # fmt: skip
