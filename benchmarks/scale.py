"""The watcher of a node and of the leader, at 64 to 16,384 ranks on up to 2,048 nodes.

One node is real: eight trace files of a simulated job, eight living processes, and the watcher's
own loop. Its summary, with other ranks, hosts and groups, stands for the other nodes. The leader
gets all of them once a second, as the agent forwards them, through a real TCPStore. Then all nodes
report that their ranks stopped in a collective, except one rank, until the verdict. Each role is a
process of its own, so that its CPU time and peak memory are its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.simulated_job import LANES, JobModel, simulate, write_traces
from holdfast.core.rank_table import GroupProgress, ProcessGroupInfo, RecordedCall, ThreadStack
from holdfast.core.rank_table import SourceLine as Line
from holdfast.core.settings import current_environment
from holdfast.host.checks import CheckContext
from holdfast.watcher import agent_messages, process
from holdfast.watcher.agent_messages import (
    NodeSummary,
    PeerSummaries,
    StartWatching,
    VerdictReport,
    WatchedWorker,
)
from holdfast.watcher.host_health import HostHealthMonitor
from holdfast.watcher.job_summary import JobSummary, decode_summary, encode_summary
from holdfast.watcher.limit_learning import LimitLearner
from holdfast.watcher.live_writer import LiveWriter
from holdfast.watcher.process import TICK_S, NodeWatcher
from holdfast.watcher.rules.stall import StallLimits
from holdfast.watcher.wait_times import SLICES, WaitTimes

RANKS = (64, 512, 4096, 16_384)
WINDOW_S, MEASURED_S, STALL_S = 60.0, 12.0, 5.0
RELAY_S, READ_S = 1.0, 0.25
GUILTY = 42


@dataclass
class RoleCost:
    """CPU time as a fraction of a core, peak memory in MiB, and what else was measured."""

    cpu: float
    memory_mib: float
    bytes_a_message: int = 0
    verdict_s: float = 0.0
    verdict: str = ""


def main() -> None:
    """Print the table, for the numbers of ranks in the arguments or all.

    With the arguments ``ROLE RANKS SUMMARY``, measure one role.
    """
    if len(sys.argv) == 4 and sys.argv[1] in _ROLES:
        print(json.dumps(asdict(_ROLES[sys.argv[1]](int(sys.argv[2]), Path(sys.argv[3])))))
        return
    print(
        "  ranks  nodes   node: CPU   memory  bytes/s   leader's watcher: CPU  memory   "
        "leader's store: CPU  bytes/s   verdict"
    )
    for ranks in [int(word) for word in sys.argv[1:] if word.isdigit()] or RANKS:
        with tempfile.TemporaryDirectory() as folder:
            summary = Path(folder, "summary")
            node, leader, store = (
                _in_process(role, ranks, summary) for role in ("node", "leader", "store")
            )
        nodes = ranks // LANES
        sent = node.bytes_a_message / TICK_S
        print(
            f"{ranks:7} {nodes:6} {node.cpu:11.2%} {node.memory_mib:4.0f} MiB {sent:8,.0f}"
            f" {leader.cpu:23.1%} {leader.memory_mib:4.0f} MiB {store.cpu:21.1%}"
            f" {sent * nodes:12,.0f} {leader.verdict_s:6.1f} s",
            flush=True,
        )
        print(f"        {leader.verdict}; the store served {store.verdict}", flush=True)


def _in_process(role: str, ranks: int, summary: Path) -> RoleCost:
    command = [sys.executable, "-m", "benchmarks.scale", role, str(ranks), str(summary)]
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    return RoleCost(**json.loads(out.splitlines()[-1]))


def measure_node(ranks: int, summary: Path) -> RoleCost:
    """Measure the watcher of a node that does not lead; store its last summary."""
    with tempfile.TemporaryDirectory() as folder, _Sleepers() as pids:
        watcher = _start_watcher(Path(folder), ranks, pids, leader=False)
        sizes, spent_s, begin = [], 0.0, time.monotonic()
        while time.monotonic() < begin + MEASURED_S:
            at = time.process_time()
            for reply in watcher.tick():
                if isinstance(reply, NodeSummary):
                    sizes.append(len(reply.summary))
                    summary.write_text(reply.summary)
            spent_s += time.process_time() - at
            time.sleep(TICK_S)
    return RoleCost(spent_s / MEASURED_S, _peak_mib(), sizes[-1])


def measure_leader(ranks: int, summary: Path) -> RoleCost:
    """Measure the leader's watcher, then the time from the last progress to the verdict."""
    healthy = decode_summary(summary.read_text())
    with tempfile.TemporaryDirectory() as folder, _Sleepers() as pids:
        watcher = _start_watcher(Path(folder), ranks, pids, leader=True)
        before, rounds = time.process_time(), 8
        made_s = 0.0
        for _ in range(rounds):
            at = time.process_time()
            line = _peers(healthy, ranks)
            made_s += time.process_time() - at
            for _reply in watcher.handle(agent_messages.decode_request(line)):
                pass
            for _ in range(int(RELAY_S / TICK_S)):
                for _reply in watcher.tick():
                    pass
        cpu = (time.process_time() - before - made_s) / rounds
        memory = _peak_mib()
        verdict_s, verdict = _until_verdict(watcher, healthy, ranks)
    return RoleCost(cpu, memory, verdict_s=verdict_s, verdict=verdict)


def measure_store(ranks: int, summary: Path) -> RoleCost:
    """Measure the leader's agent: the store's server and its reading of all topics."""
    from torch.distributed import TCPStore  # noqa: PLC0415 - only this role

    from holdfast.launcher.elastic.generation import (  # noqa: PLC0415 - imports torch
        StatusBoard,
        clear_board,
    )

    nodes, text = ranks // LANES, summary.read_text()
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clear_board(server, nodes)
    board = StatusBoard(None, 0, nodes)
    board._store = server  # noqa: SLF001 - the thread of the board would exchange at its own pace
    script = (
        "import sys, time\n"
        "from torch.distributed import TCPStore\n"
        f"store = TCPStore('127.0.0.1', {server.port}, is_master=False)\n"
        "text = sys.stdin.read()\n"
        f"for node in range({nodes}):\n"
        "    store.set(f'holdfast/summary/{node}', text)\n"
        "print('set', flush=True)\n"
        "while True:\n"
        f"    due = time.monotonic() + {TICK_S}\n"
        f"    for node in range({nodes}):\n"
        "        store.set(f'holdfast/summary/{node}', text)\n"
        "    print('round', flush=True)\n"
        "    time.sleep(max(due - time.monotonic(), 0))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write(text)
        writer.stdin.close()
        writer.stdout.readline()
        topics = ("call", "dead", "done", "left")
        keys = [f"holdfast/{topic}/{node}" for topic in topics for node in range(nodes)]
        summaries = [f"holdfast/summary/{node}" for node in range(nodes)]
        rounds = [0]
        lines = writer.stdout
        threading.Thread(target=lambda: _count(lines, rounds), daemon=True).start()
        before, begin, exchanges, written = time.process_time(), time.monotonic(), 0, rounds[0]
        while time.monotonic() < begin + MEASURED_S:
            board._exchange(keys, summaries)  # noqa: SLF001 - as above
            if exchanges % int(RELAY_S / READ_S) == 0:
                agent_messages.encode_message(PeerSummaries(summaries=board.read("summary")))
            exchanges += 1
            time.sleep(max(begin + exchanges * READ_S - time.monotonic(), 0))
        spent_s, took_s = time.process_time() - before, time.monotonic() - begin
        achieved = (rounds[0] - written) * TICK_S / took_s
        writer.kill()
    verdict = f"{exchanges * READ_S / took_s:.0%} of the reads, {achieved:.0%} of the writes"
    return RoleCost(spent_s / took_s, _peak_mib(), verdict=verdict)


def _count(lines: Iterator[str], rounds: list[int]) -> None:
    for _ in lines:
        rounds[0] += 1


_ROLES = {"node": measure_node, "leader": measure_leader, "store": measure_store}


class _Sleepers:
    """Eight processes that sleep, for the ranks of the real node."""

    def __enter__(self) -> list[int]:
        self._processes = [subprocess.Popen(["sleep", "600"]) for _ in range(LANES)]
        return [each.pid for each in self._processes]

    def __exit__(self, *_: object) -> None:
        for each in self._processes:
            each.kill()
            each.wait()


def _start_watcher(folder: Path, ranks: int, pids: list[int], *, leader: bool) -> NodeWatcher:
    """Start a watcher on traces whose last call is in the future, as if the ranks advanced."""
    seconds = 1.3 * WINDOW_S + MEASURED_S + 60.0
    times = simulate(JobModel(1, int(seconds / 0.46), np.ones(LANES)), np.random.default_rng(0))
    write_traces(folder, times, ranks // LANES, range(LANES), time.time() - 1.3 * WINDOW_S)
    (folder / "run").mkdir()
    environment = CheckContext(environ=current_environment())
    limits = StallLimits(stall_s=STALL_S, act_after_s=STALL_S)
    learner = LimitLearner(limits)
    watcher = NodeWatcher(learner, HostHealthMonitor(environment, 0.0), LiveWriter(1.0), WINDOW_S)
    workers = tuple(
        WatchedWorker(rank, pid, str(folder / f"rank{rank}.trace")) for rank, pid in enumerate(pids)
    )
    start = StartWatching(
        generation=0,
        run_dir=str(folder / "run"),
        node=0,
        nodes=ranks // LANES,
        leader=leader,
        world_size=ranks,
        workers=workers,
        agent="agent 0",
        leader_workers=LANES,
    )
    list(watcher.handle(start))
    list(watcher.tick())  # opens the trace files
    sensor = watcher._node  # noqa: SLF001 - as if it had watched for a window already
    assert sensor is not None
    sensor._wait_times = WaitTimes(WINDOW_S)  # noqa: SLF001 - as above
    sensor._wait_times.measure({}, time.time() - WINDOW_S * (1 + 2 / SLICES))  # noqa: SLF001
    list(watcher.tick())
    return watcher


def _peers(own: JobSummary, ranks: int, silent_since: float = 0.0) -> bytes:
    """Return the message with the summaries of all other nodes."""
    summaries = {
        node: encode_summary(_of_node(own, node, silent_since)) for node in range(1, ranks // LANES)
    }
    return agent_messages.encode_message(PeerSummaries(summaries=summaries))


def _of_node(own: JobSummary, node: int, silent_since: float) -> JobSummary:
    """Return ``own`` for the ranks of ``node``; its ranks hang if ``silent_since`` is not 0."""
    tensor = f"tp{node}"

    def renamed(name: str) -> str:
        return tensor if name == "tp0" else name

    members = tuple(range(node * LANES, (node + 1) * LANES))
    states = tuple(
        replace(
            state,
            rank=state.rank + node * LANES,
            host=f"node{node}",
            groups={renamed(name): progress for name, progress in state.groups.items()},
        )
        for state in own.ranks
    )
    groups = {
        renamed(name): ProcessGroupInfo(tensor, members, "", "gloo") if name == "tp0" else group
        for name, group in own.groups.items()
    }
    timings = tuple(
        replace(
            timing,
            group=renamed(timing.group),
            calls=tuple(replace(call, rank=call.rank + node * LANES) for call in timing.calls),
        )
        for timing in own.timings
    )
    now = time.time()
    if silent_since:
        states = tuple(_hung(state, silent_since) for state in states)
    return replace(
        own,
        ranks=states,
        groups=groups,
        timings=timings,
        time=now,
        silent_since=silent_since or now,
        agent=f"agent {node}",
    )


def _hung(state, silent_since: float):  # noqa: ANN001, ANN202 - a rank state
    """Return the state of a rank in the call of all ranks, or of the guilty one before it."""
    line = Line("/job/train.py", 120, "train_step")
    stacks = tuple(ThreadStack((line,) * 4, time=silent_since + 5 + at) for at in range(2))
    state = replace(state, progress=silent_since, stacks=stacks, cpu_share=0.0, pending=())
    if state.rank == GUILTY:
        return state
    name, reached = "world", state.groups["world"].entered
    call = RecordedCall(
        name,
        reached + 1,
        "all_reduce",
        "float32",
        1 << 20,
        (1 << 20,),
        site=line,
        entered=silent_since,
    )
    groups = state.groups | {name: GroupProgress(reached + 1, reached)}
    return replace(state, pending=(call,), groups=groups)


def _until_verdict(watcher: NodeWatcher, own: JobSummary, ranks: int) -> tuple[float, str]:
    """Return the seconds from the last progress to the verdict, and its sentence.

    The own node reports through the same summaries, because its trace files advance.
    """
    silent_since = time.time()
    node = _SilentNode(own, silent_since)
    watcher._node = node  # type: ignore[assignment] # noqa: SLF001 - has the methods that it uses
    relay_at = 0.0
    line = _peers(own, ranks, silent_since)  # the nodes make theirs at the same time
    shift = time.time() - silent_since
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if time.monotonic() >= relay_at:
            relay_at = time.monotonic() + RELAY_S
            watcher._reported_at = {}  # noqa: SLF001 - the message is a new one
            for _reply in watcher.handle(agent_messages.decode_request(line)):
                pass
        for reply in watcher.tick():
            if isinstance(reply, VerdictReport):
                root = reply.verdict.root
                took_s = time.time() - silent_since
                return max(took_s - max(shift - STALL_S, 0.0), 0.0), root.message if root else ""
        time.sleep(process.SUSPICION_TICK_S if watcher.is_suspecting else TICK_S)
    return float("nan"), "no verdict"


class _SilentNode:
    """The sensor of the leader's own node once its ranks hang."""

    def __init__(self, own: JobSummary, silent_since: float) -> None:
        self._summary = _of_node(own, 0, silent_since)

    def observe(self) -> JobSummary:
        return replace(self._summary, time=time.time())

    def observe_closely(self, *, stacks: bool = True) -> JobSummary:  # noqa: ARG002 - as the sensor
        return self.observe()

    def new_warnings(self) -> list[tuple[int, str, str]]:
        return []


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
