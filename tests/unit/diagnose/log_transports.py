"""Logs of three failures and a healthy job, and the forms in which logs are passed on.

A form turns the lines of a log into the bytes of a file, as the program that carried them does.
"""

from __future__ import annotations

import csv
import io
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

_BEGIN = 1_772_323_200.0  # 2026-03-01 00:00:00 UTC
RANKS = 4


@dataclass(frozen=True)
class Line:
    """A line of a log: its rank (None: the launcher's or the kernel's), time and text."""

    rank: int | None
    time: float
    text: str

    @property
    def plain(self) -> str:
        """The line as torchrun prints it."""
        return self.text if self.rank is None else f"[rank{self.rank}]: {self.text}"

    def stamp(self, style: str) -> str:
        """Return the time in the style of ``strftime``."""
        return datetime.fromtimestamp(self.time, UTC).strftime(style)


Log = tuple[Line, ...]


def _log(parts: Iterator[tuple[int | None, str]]) -> Log:
    return tuple(Line(rank, _BEGIN + 0.25 * at, text) for at, (rank, text) in enumerate(parts))


def _steps(steps: range) -> Iterator[tuple[int | None, str]]:
    for step in steps:
        for rank in range(RANKS):
            yield rank, f"step {step}/90 | loss {2.5 - step / 100:.3f} | lr 3.0e-04"


def _table(rank: int, code: int, why: str) -> Iterator[tuple[int | None, str]]:
    """Yield what torchrun prints when rank ``rank`` ends with ``code``."""
    api = "torch/distributed/elastic/multiprocessing/api.py"
    yield None, f"W0301 00:02:00.100000 77 {api}:897] Sending process 80 closing signal SIGTERM"
    yield (
        None,
        (
            f"E0301 00:02:00.200000 77 {api}:869] failed (exitcode: {code}) local_rank: {rank} "
            f"(pid: {80 + rank}) of binary: /usr/bin/python3"
        ),
    )
    for text in (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "============================================================",
        "/job/train.py FAILED",
        "------------------------------------------------------------",
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "------------------------------------------------------------",
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-03-01_00:02:00",
        "  host      : node-a",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: {80 + rank})",
        "  error_file: <N/A>",
        f"  traceback : {why}",
        "============================================================",
    ):
        yield None, text


def _exception() -> Iterator[tuple[int | None, str]]:
    yield from _steps(range(1, 6))
    for text in (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 60, in <module>',
        "    main()",
        '  File "/job/train.py", line 41, in step',
        '    loss = criterion(model(batch["inputs"].to(device)), batch["labels"].to(device), weight)',
        "                                                        ~~~~~^^^^^^^^^^",
        "KeyError: 'labels'",
    ):
        yield 1, text
    yield from _table(
        1, 1, "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
    )


def _unranked() -> Iterator[tuple[int | None, str]]:
    """Yield the log of one process, which ends with an exception of an unusual name."""
    for step in range(1, 20):
        yield None, f"step {step}/90 | loss {2.5 - step / 100:.3f} | lr 3.0e-04"
    for text in (
        "Traceback (most recent call last):",
        '  File "/job/train.py", line 60, in <module>',
        "    main()",
        '  File "/job/train.py", line 41, in step',
        "    shard = reader.next()",
        "            ^^^^^^^^^^^^^",
        "webdataset.reader.BadShard: shard-17.tar",
    ):
        yield None, text


def _timeout() -> Iterator[tuple[int | None, str]]:
    yield from _steps(range(1, 6))
    for rank in (0, 1, 3):
        yield (
            rank,
            (
                f"[E301 00:01:59.{rank}00000000 ProcessGroupNCCL.cpp:683] [Rank {rank}] Watchdog caught "
                "collective operation timeout: WorkNCCL(SeqNum=167, OpType=ALLREDUCE, NumelIn=1024, "
                "NumelOut=1024, Timeout(ms)=600000) ran for 600017 milliseconds before timing out."
            ),
        )
        yield (
            rank,
            (
                f"[E301 00:01:59.{rank}50000000 ProcessGroupNCCL.cpp:2241] [PG ID 0 PG GUID "
                f"0(default_pg) Rank {rank}] Timeout at NCCL work: 167, last enqueued NCCL work: 167, last "
                "completed NCCL work: 166."
            ),
        )
    yield (
        2,
        (
            "[E301 00:01:59.900000000 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 2] "
            "Received a dump signal due to a collective timeout from rank 0 and we will try our best to "
            "dump it. Last enqueued NCCL work: 166, last completed NCCL work: 166."
        ),
    )
    yield from _table(0, -6, "Signal 6 (SIGABRT) received by PID 80")


def _oom_kill() -> Iterator[tuple[int | None, str]]:
    yield from _steps(range(1, 6))
    yield (
        None,
        (
            "[ 8123.456789] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=job,mems_allowed=0,"
            "oom_memcg=/job,task_memcg=/job,task=python3,pid=82,uid=1000"
        ),
    )
    yield (
        None,
        (
            "[ 8123.456801] Memory cgroup out of memory: Killed process 82 (python3) total-vm:98304000kB, "
            "anon-rss:67108864kB, file-rss:2048kB, shmem-rss:0kB, UID:1000 pgtables:140000kB "
            "oom_score_adj:0"
        ),
    )
    yield from _table(2, -9, "Signal 9 (SIGKILL) received by PID 82")


def _healthy() -> Iterator[tuple[int | None, str]]:
    yield from _steps(range(1, 12))
    yield 0, "saving checkpoint to /checkpoints/run/step-11"
    yield 0, "training finished"


LOGS: dict[str, Log] = {
    "exception": _log(_exception()),
    "timeout": _log(_timeout()),
    "oom-kill": _log(_oom_kill()),
    "unranked": _log(_unranked()),
    "healthy": _log(_healthy()),
}


# ---- forms: prefixes of lines

Form = Callable[[Log], bytes]


def _each(write: Callable[[Line], str]) -> Form:
    return lambda log: "".join(f"{write(line)}\n" for line in log).encode()


def plain(log: Log) -> bytes:
    """Return the log as torchrun prints it."""
    return _each(lambda line: line.plain)(log)


def _default_prefix(line: Line) -> str:
    return line.text if line.rank is None else f"[default{line.rank}]:{line.text}"


def _hydra(line: Line) -> str:
    level = "ERROR" if "Error" in line.text else "INFO"
    return f"[{line.stamp('%Y-%m-%d %H:%M:%S')},123][trainer.loop][{level}] - {line.plain}"


def _loguru(line: Line) -> str:
    return f"{line.stamp('%Y-%m-%d %H:%M:%S')}.123 | INFO     | trainer.loop:run:212 - {line.plain}"


def _logging_by_first_line(log: Log) -> bytes:
    """Return the log as Python's logging writes it: a traceback's lines have no prefix."""
    lines = []
    for line in log:
        is_continued = line.text.startswith(" ") or "KeyError" in line.text
        prefix = (
            "" if is_continued else f"{line.stamp('%Y-%m-%d %H:%M:%S')},123 - trainer - INFO - "
        )
        lines.append(prefix + line.plain)
    return "\n".join(lines).encode()


def _journalctl(line: Line) -> str:
    return f"{line.stamp('%b %d %H:%M:%S')} node-a torchrun[4711]: {line.plain}"


def _journalctl_iso(line: Line) -> str:
    return f"{line.stamp('%Y-%m-%dT%H:%M:%S')}+0000 node-a train.sh[4711]: {line.plain}"


def _syslog_5424(line: Line) -> str:
    return f"<14>1 {line.stamp('%Y-%m-%dT%H:%M:%S')}.000Z node-a trainer 4711 - - {line.plain}"


def _srun_label(line: Line) -> str:
    return line.text if line.rank is None else f"{line.rank}: {line.text}"


def _ray(line: Line) -> str:
    if line.rank is None:
        return line.text
    return f"\x1b[36m(RayTrainWorker pid={4000 + line.rank}, ip=10.0.0.{line.rank})\x1b[0m {line.plain}"


def _colors(line: Line) -> str:
    text = re.sub(r"(Traceback|KeyError|Watchdog|Killed)", "\x1b[1;31m\\1\x1b[0m", line.text)
    text = re.sub(
        r'"(/job/\S+)", line (\d+)', '\x1b[35m"\\1"\x1b[0m, line \x1b[35m\\2\x1b[0m', text
    )
    rank = "" if line.rank is None else f"\x1b[36m[rank{line.rank}]:\x1b[0m "
    return f"{rank}{text}\x1b[K"


def _progress_bars(log: Log) -> bytes:
    """Return the log with tqdm's bar before every line, and on the line of the traceback."""
    bars = "".join(
        f"\r{10 * step:3d}%|{'#' * step:10}| {step}/10 [00:0{step}<00:09,  1.00it/s]"
        for step in range(1, 8)
    )
    return "".join(f"{bars}\r{line.plain}\n" for line in log).encode()


def _rank_from_file_prefix(line: Line) -> str:
    return f"/logs/run-7/rank{line.rank or 0}.out:{line.plain}"


# ---- forms: JSON


def _docker(line: Line) -> str:
    record = {
        "log": line.plain + "\n",
        "stream": "stderr",
        "time": f"{line.stamp('%Y-%m-%dT%H:%M:%S')}.1Z",
    }
    return json.dumps(record, separators=(",", ":"))


def _json_message(line: Line) -> str:
    record = {"timestamp": line.stamp("%Y-%m-%dT%H:%M:%SZ"), "level": "info", "message": line.text}
    return json.dumps(record if line.rank is None else {**record, "rank": line.rank})


def _structlog(line: Line) -> str:
    return json.dumps({"event": line.plain, "logger": "trainer", "level": "info"})


def _json_with_exc_info(log: Log) -> bytes:
    """Return the log as python-json-logger writes it: a traceback is one field of a record."""
    records, trace = [], list[str]()
    for line in log:
        if trace or "Traceback" in line.text:
            trace.append(line.text)
            if not line.text.startswith((" ", "Traceback")):
                record = {"message": "training failed", "exc_info": "\n".join(trace)}
                records.append(record if line.rank is None else {**record, "rank": line.rank})
                trace = []
        else:
            records.append({"message": line.plain, "levelname": "INFO"})
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def _logstash(line: Line) -> str:
    fields = {"name": f"train-{line.rank}"}
    return json.dumps(
        {
            "@timestamp": line.stamp("%Y-%m-%dT%H:%M:%S.000Z"),
            "@version": "1",
            "message": line.plain,
            "kubernetes": {"pod": fields, "container": {"image": "trainer:7"}},
        }
    )


def _fluentd(line: Line) -> str:
    record = {"log": line.plain, "container_name": "trainer", "source": "stderr"}
    return f"{line.stamp('%Y-%m-%d %H:%M:%S')}.000000000 +0000 kube.train: {json.dumps(record)}"


def _gke(log: Log) -> bytes:
    """Return the entries that ``gcloud logging read --format=json`` prints."""
    return json.dumps(
        [
            {
                "insertId": f"a{number}",
                "textPayload": line.plain,
                "resource": {"type": "k8s_container", "labels": {"pod_name": "train-0"}},
                "timestamp": line.stamp("%Y-%m-%dT%H:%M:%S.000Z"),
            }
            for number, line in enumerate(log)
        ],
        indent=2,
    ).encode()


def _datadog(log: Log) -> bytes:
    """Return what Datadog's API returns."""
    data = [
        {
            "id": f"AQ{number}",
            "type": "log",
            "attributes": {
                "status": "info",
                "service": "trainer",
                "host": "node-a",
                "message": line.plain,
                "timestamp": line.stamp("%Y-%m-%dT%H:%M:%S.000Z"),
                "tags": ["env:prod"],
            },
        }
        for number, line in enumerate(log)
    ]
    return json.dumps({"data": data, "meta": {"status": "done"}}).encode()


def _json_array(log: Log) -> bytes:
    return json.dumps([{"time": line.time, "msg": line.plain} for line in log]).encode()


def _pretty_json(log: Log) -> bytes:
    """Return the records as ``jq .`` prints them."""
    records = [{"level": "info", "ts": line.time, "msg": line.plain} for line in log]
    return "".join(json.dumps(record, indent=2) + "\n" for record in records).encode()


def _array_of_strings(log: Log) -> bytes:
    return json.dumps([line.plain for line in log], indent=1).encode()


def _journalctl_json(line: Line) -> str:
    micros = str(int(line.time * 1e6))
    return json.dumps(
        {"__REALTIME_TIMESTAMP": micros, "_HOSTNAME": "node-a", "MESSAGE": line.plain}
    )


def _whole_log_as_one_string(log: Log) -> bytes:
    return json.dumps({"status": "failed", "logs": plain(log).decode()}).encode()


def _cloudwatch_events(log: Log) -> bytes:
    """Return what ``aws logs get-log-events`` prints."""
    events = [
        {"timestamp": int(line.time * 1000), "message": line.plain, "ingestionTime": 1}
        for line in log
    ]
    return json.dumps({"events": events, "nextForwardToken": "f/3"}, indent=4).encode()


def _logcli_json(line: Line) -> str:
    labels = {"app": "train", "pod": "train-0"}
    return json.dumps(
        {"labels": labels, "line": line.plain, "timestamp": line.stamp("%Y-%m-%dT%H:%M:%SZ")}
    )


# ---- forms: tables


def _table_of(columns: list[str], row: Callable[[Line], list[str]], delimiter: str = ",") -> Form:
    def write(log: Log) -> bytes:
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(row(line) for line in log)
        return out.getvalue().encode()

    return write


_cloudwatch_csv = _table_of(
    ["timestamp", "message"], lambda line: [str(int(line.time * 1000)), line.plain]
)
_loki_tsv = _table_of(
    ["Time", "Line", "labels"],
    lambda line: [line.stamp("%Y-%m-%d %H:%M:%S.000"), line.plain, '{"app":"train"}'],
    "\t",
)
_datadog_csv = _table_of(
    ["Date", "Host", "Service", "Content"],
    lambda line: [line.stamp("%Y-%m-%dT%H:%M:%S.000Z"), "node-a", "train", line.plain],
)


def _newest_first(log: Log) -> bytes:
    """Return CloudWatch Insights' export: the newest line is first."""
    return _table_of(
        ["@timestamp", "@message"],
        lambda line: [line.stamp("%Y-%m-%d %H:%M:%S") + f".{line.time % 1:.3f}"[-4:], line.plain],
    )(log[::-1])


def _multi_line_cells(log: Log) -> bytes:
    """Return a table whose cells have several lines."""
    groups = [log[at : at + 9] for at in range(0, len(log), 9)]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["labels", "Time", "Line", "tsNs"])
    for group in groups:
        writer.writerow(
            ["{}", group[0].stamp("%Y-%m-%d"), "\n".join(line.plain for line in group), "1"]
        )
    return out.getvalue().encode()


# ---- forms: containers and clusters


def _cri(line: Line) -> str:
    return f"{line.stamp('%Y-%m-%dT%H:%M:%S')}.123456789Z stderr F {line.plain}"


def _cri_partial(log: Log) -> bytes:
    """Return CRI lines; each longer than 30 bytes is cut into partial ones."""
    lines = []
    for line in log:
        parts = re.findall(r".{1,30}", line.plain) or [""]
        for number, part in enumerate(parts, 1):
            tag = "F" if number == len(parts) else "P"
            lines.append(f"{line.stamp('%Y-%m-%dT%H:%M:%S')}.123456789Z stdout {tag} {part}\n")
    return "".join(lines).encode()


def _kubectl_prefix(line: Line) -> str:
    return f"[pod/train-worker-{line.rank or 0}/pytorch] {line.plain}"


def _kubectl_timestamps(line: Line) -> str:
    stamp = line.stamp("%Y-%m-%dT%H:%M:%S")
    return f"[pod/train-worker-x7k2p/pytorch] {stamp}.123456789Z {line.plain}"


def _stern(line: Line) -> str:
    return f"train-worker-{line.rank or 0} pytorch {line.plain}"


def _compose(line: Line) -> str:
    return f"\x1b[33mtrainer-1  | \x1b[0m{line.plain}"


def _aws_tail(line: Line) -> str:
    stamp = line.stamp("%Y-%m-%dT%H:%M:%S")
    return f"{stamp}.123000+00:00 train/default/0f3a9c81d2 {line.plain}"


def _logcli(line: Line) -> str:
    stamp = line.stamp("%Y-%m-%dT%H:%M:%S")
    return f'{stamp}Z {{app="train", pod="train-0"}} {line.plain}'


def _github_actions(line: Line) -> str:
    return f"{line.stamp('%Y-%m-%dT%H:%M:%S')}.1234567Z {line.plain}"


def _wandb_console(line: Line) -> str:
    return f"{line.stamp('%Y-%m-%d %H:%M:%S')} {line.plain}"


# ---- forms: people


def _quoted(line: Line) -> str:
    return f"> {line.plain}".rstrip()


def _quoted_twice(line: Line) -> str:
    return f"> > {line.plain}"


def _fenced(log: Log) -> bytes:
    """Return an issue's text with the log between fences."""
    head = "### Bug\n\nTraining stops after a while. My log:\n\n<details>\n\n```text\n"
    return head.encode() + plain(log) + b"```\n\n</details>\n\nAny ideas?\n"


def _indented_code(line: Line) -> str:
    return f"    {line.plain}"


def _html(log: Log) -> bytes:
    """Return a page with the log in an element ``pre``."""
    text = plain(log).decode()
    for plain_text, escaped in (
        ("&", "&amp;"),
        ("<", "&lt;"),
        (">", "&gt;"),
        ('"', "&quot;"),
        ("'", "&#39;"),
    ):
        text = text.replace(plain_text, escaped)
    return f"<html><body><pre>\n{text}</pre></body></html>\n".encode()


def _wrapped(width: int) -> Form:
    """Return the form of text copied from a terminal of that width."""

    def write(log: Log) -> bytes:
        lines = [
            part for line in log for part in re.findall(rf".{{1,{width}}}", line.plain) or [""]
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    return write


def _wrapped_by_editor(log: Log) -> bytes:
    """Return the log with long lines broken between words, as mail programs do."""
    wrapper = textwrap.TextWrapper(
        76, break_long_words=False, drop_whitespace=True, break_on_hyphens=False
    )
    lines = [part for line in log for part in (wrapper.wrap(line.plain) or [""])]
    return "".join(f"> {line}\n" for line in lines).encode()


def _glued_by_spaces(log: Log) -> bytes:
    return " ".join(line.plain for line in log).encode()


def _glued_without_spaces(log: Log) -> bytes:
    return "".join(line.plain for line in log).encode()


def _literal_newlines(log: Log) -> bytes:
    return "\\n".join(line.plain for line in log).encode()


def _python_repr(log: Log) -> bytes:
    """Return the log as the repr of bytes, as ``print(completed.stdout)`` shows it."""
    return f"job output: {plain(log)!r}\n".encode()


def _numbered(log: Log) -> bytes:
    return "".join(f"{number:6}\t{line.plain}\n" for number, line in enumerate(log, 1)).encode()


def _grep_numbered(log: Log) -> bytes:
    return "".join(f"{number}:{line.plain}\n" for number, line in enumerate(log, 1)).encode()


FORMS: dict[str, Form] = {
    "plain": plain,
    "torchrun-default-prefix": _each(_default_prefix),
    "hydra": _each(_hydra),
    "loguru": _each(_loguru),
    "logging": _logging_by_first_line,
    "journalctl": _each(_journalctl),
    "journalctl-iso": _each(_journalctl_iso),
    "journalctl-json": _each(_journalctl_json),
    "syslog-5424": _each(_syslog_5424),
    "srun-label": _each(_srun_label),
    "ray": _each(_ray),
    "colors": _each(_colors),
    "progress-bars": _progress_bars,
    "grep-file-names": _each(_rank_from_file_prefix),
    "docker-json": _each(_docker),
    "json-message": _each(_json_message),
    "structlog": _each(_structlog),
    "json-exc-info": _json_with_exc_info,
    "logstash": _each(_logstash),
    "fluentd": _each(_fluentd),
    "gke": _gke,
    "datadog": _datadog,
    "datadog-csv": _datadog_csv,
    "json-array": _json_array,
    "json-strings": _array_of_strings,
    "json-pretty": _pretty_json,
    "json-one-string": _whole_log_as_one_string,
    "cloudwatch-events": _cloudwatch_events,
    "cloudwatch-csv": _cloudwatch_csv,
    "cloudwatch-newest-first": _newest_first,
    "cloudwatch-tail": _each(_aws_tail),
    "loki-tsv": _loki_tsv,
    "loki-json": _each(_logcli_json),
    "loki-logcli": _each(_logcli),
    "csv-multi-line-cells": _multi_line_cells,
    "cri": _each(_cri),
    "cri-partial": _cri_partial,
    "cri-in-docker": lambda log: b"".join(
        json.dumps({"log": raw.decode() + "\n", "stream": "stdout"}).encode() + b"\n"
        for raw in _each(_cri)(log).splitlines()
    ),
    "kubectl-prefix": _each(_kubectl_prefix),
    "kubectl-prefix-timestamps": _each(_kubectl_timestamps),
    "stern": _each(_stern),
    "docker-compose": _each(_compose),
    "github-actions": _each(_github_actions),
    "wandb-console": _each(_wandb_console),
    "ts": _each(lambda line: f"{line.stamp('%b %d %H:%M:%S')} {line.plain}"),
    "ts-elapsed": _each(lambda line: f"{line.stamp('%H:%M:%S')} {line.plain}"),
    "ts-unix": _each(lambda line: f"{line.time:.6f} {line.plain}"),
    "quoted": _each(_quoted),
    "quoted-twice": _each(_quoted_twice),
    "fenced": _fenced,
    "indented-code": _each(_indented_code),
    "html": _html,
    "wrapped-80": _wrapped(80),
    "wrapped-120": _wrapped(120),
    "wrapped-quoted": lambda log: b"".join(
        b"> " + raw + b"\n" for raw in _wrapped(98)(log).splitlines()
    ),
    "wrapped-by-editor": _wrapped_by_editor,
    "glued-by-spaces": _glued_by_spaces,
    "glued-without-spaces": _glued_without_spaces,
    "literal-newlines": _literal_newlines,
    "python-repr": _python_repr,
    "numbered": _numbered,
    "grep-numbered": _grep_numbered,
    "windows-line-ends": lambda log: plain(log).replace(b"\n", b"\r\n"),
    "utf-16": lambda log: plain(log).decode().encode("utf-16"),
    "utf-16-no-mark": lambda log: plain(log).decode().encode("utf-16-le"),
}
