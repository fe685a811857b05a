"""Hooks of a node, with a fake watcher."""

import json
import signal

import msgspec
import pytest

from holdfast.core.failures import JobState
from holdfast.core.findings import Finding, Level, Subject, Verdict, verdict_to_json
from holdfast.core.trace_file import TraceNote, TraceWriter
from holdfast.launcher import agent
from holdfast.launcher.agent import NodeAgent
from holdfast.launcher.elastic.generation import (
    Generation,
    GenerationEnd,
    NodeStatus,
    OrderAction,
    StatusBoard,
    Worker,
)
from holdfast.launcher.messages import LaunchPlan
from holdfast.launcher.policy import OnHang, RecoveryOptions
from holdfast.launcher.recovery import Recovery
from holdfast.watcher.agent_messages import (
    DumpLocation,
    HangSuspected,
    JudgeNow,
    LeaderContact,
    NodeSummary,
    PeerSummaries,
    StackAnswer,
    StackQuestion,
    StartWatching,
    SuspicionWithdrawn,
    VerdictReport,
    WatchedWorker,
    WorkerExits,
    decode_request,
    encode_message,
)
from holdfast.watcher.run_folder import RunFolder

ROOT = Finding(
    code="SYNC002",
    cause="rank-missing-collective",
    level=Level.ERROR,
    message="rank 1 sleeps at train.py:41",
    subject=Subject(rank=1, file="train.py", line=41),
    confidence=0.9,
)
VERDICT = Verdict(question="Why did the job hang?", root=ROOT)


class Watcher:
    """A fake watcher that records requests and returns the replies set by the test."""

    pid, status = 4711, None

    def __init__(self):
        self.requests = []
        self.next_replies = []
        self.alive = True
        self.ended = ""
        self.next = None

    def restart(self):
        self.next = Watcher()
        return self.next

    def send(self, request):
        self.requests.append(request)

    def replies(self):
        while self.next_replies:
            yield self.next_replies.pop(0)

    def close(self):
        self.ended = "closed"

    def kill(self):
        self.ended = "killed"


class FakeBoard(StatusBoard):
    """A status board of two nodes without a store."""

    def __init__(self, **others):
        super().__init__(None, 0, 2)
        self.posted = {}
        self.others = others

    def post(self, topic, text):
        self.posted[topic] = text

    def read(self, topic):
        return self.others.get(topic, {})


class SilentBoard(FakeBoard):
    """The board of a node whose leader does not answer."""

    leader_silent_s = 9.5


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(agent.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def start(tmp_path):
    """Start a node in generation ``number``; return its hooks, watcher and folder."""

    def begin(number=0, *, most=2, on_hang=OnHang.RESTART, node=0, board=None, **more):
        (tmp_path / "shm").mkdir(exist_ok=True)
        folder = RunFolder(tmp_path / "runs", workers=2, records=64, shm=tmp_path / "shm")
        plan = LaunchPlan(
            workers=2,
            recorder="python",
            native="",
            inject="",
            environment={},
            gaps={"SET": "here"},
            json_report=tmp_path / "report.json",
            **more,
        )
        watcher = Watcher()
        recovery = Recovery(
            folder, RecoveryOptions(max_restarts=most, on_hang=on_hang), agent.print_message
        )
        hooks = NodeAgent(folder, plan, recovery, watcher)
        nodes = 1 if board is None else 2
        workers = tuple(Worker(2 * node + at, at, 100 + at) for at in range(2))
        board = board or StatusBoard(None, 0, 1)
        hooks.workers_started(Generation(number, node, nodes, 2 * nodes, workers, board))
        for rank in (0, 1):
            folder.trace_file(rank).write_text("")
        return hooks, watcher, folder

    return begin


def test_stacks_are_asked_for_and_answered_between_nodes(start):
    board = FakeBoard()
    hooks, watcher, _ = start(node=1, board=board)  # ranks 2 and 3
    question, other = (StackQuestion(rank=rank, nonce=f"n{rank}") for rank in (3, 0))
    answer = StackAnswer(nonce="n3", frames=("train.py:1 in main",))
    watcher.next_replies = [question, answer]
    hooks.tick(NodeStatus({}))
    sent = [
        decode_request(board._unsent[f"holdfast/{key}"].encode()) for key in ("question", "answer")
    ]
    assert sent == [question, answer]
    for text in (question, other, answer):
        board._texts["holdfast/question"] = encode_message(text).decode()
        hooks.tick(NodeStatus({}))
        hooks.tick(NodeStatus({}))
    assert [each for each in watcher.requests if isinstance(each, StackQuestion | StackAnswer)] == [
        question,
        answer,
    ]


def verdict(folder, *, hang=True, generation=0, verdict=VERDICT):
    incident = folder.new_incident()
    return VerdictReport(
        generation=generation,
        hang=hang,
        verdict=verdict,
        stuck=(1,),
        html=str(incident / "report.html"),
        folder=str(incident),
        detected_s=6.1,
    )


def test_the_watcher_receives_the_generation(start, capfd):
    _, watcher, folder = start()
    (request,) = watcher.requests
    assert isinstance(request, StartWatching)
    assert (request.generation, request.leader, request.world_size) == (0, True, 2)
    dumps = f"{folder.path}/flight-recorder/generation0-rank1"
    assert request.workers[1] == WatchedWorker(
        1, 101, str(folder.trace_file(1)), DumpLocation(f"{dumps}-ask", f"{dumps}-dump")
    )
    assert request.run_dir == str(folder.path)
    assert capfd.readouterr().err == (
        f"holdfast: generation 0: ranks 0 to 1 of 2, recorder python, run folder {folder.path}\n"
    )


def test_the_environment_of_a_worker_has_trace_file_and_preset(start):
    hooks, _, folder = start()
    variables = hooks.worker_environment(1, 0)
    assert variables["HOLDFAST_BOX"] == variables["HOLDFAST_TRACE"]
    assert (variables["HOLDFAST_TRACE"], variables["HOLDFAST_WATCHER_PID"]) == (
        str(folder.trace_file(1)),
        "4711",
    )
    assert (variables["SET"], variables["HOLDFAST_RECORDER"], variables["HOLDFAST_NATIVE"]) == (
        "here",
        "python",
        "",
    )


def test_a_hang_is_ignored_if_all_workers_have_exited_meanwhile(start):
    hooks, watcher, folder = start()
    watcher.next_replies = [verdict(folder)]
    assert hooks.tick(NodeStatus({0: 143, 1: 143})) is None
    watcher.next_replies = [verdict(folder)]
    assert hooks.tick(NodeStatus({0: 0, 1: 0})) is None
    watcher.next_replies = [verdict(folder)]
    assert hooks.tick(NodeStatus({0: 0})).action is OrderAction.RESTART  # one worker still runs


def test_the_grace_period_is_short_before_a_restart_after_a_crash(start):
    hooks, watcher, folder = start()
    watcher.next_replies = [verdict(folder, hang=False)]
    assert hooks.tick(NodeStatus({1: -9})).grace_s == agent.CRASH_GRACE_S
    hooks, watcher, folder = start(most=0)
    watcher.next_replies = [verdict(folder, hang=False)]
    assert hooks.tick(NodeStatus({1: -9})).grace_s is None  # no restart follows


def test_a_hang_leads_to_an_order_to_restart(start, capfd):
    hooks, watcher, folder = start()
    watcher.next_replies = [verdict(folder)]
    order = hooks.tick(NodeStatus({}))
    assert (order.action, order.reason, order.stuck) == (
        OrderAction.RESTART,
        "restart 1 of 2",
        (1,),
    )
    assert order.grace_s == agent.HANG_GRACE_S
    shown = capfd.readouterr().err
    assert "rank 1 sleeps at train.py:41" in shown
    assert "incidents/0/report.html" in shown
    hooks.order_agreed(order)
    hooks.workers_ended(GenerationEnd.FAILED)
    assert sorted(path.name for path in folder.incidents.glob("0/traces/*")) == [
        "rank0.trace",
        "rank1.trace",
    ]
    assert list(folder.traces.glob("rank*")) == []


def test_a_verdict_about_another_generation_is_ignored(start):
    hooks, watcher, folder = start(number=1)
    watcher.next_replies = [verdict(folder, generation=0)]
    assert hooks.tick(NodeStatus({})) is None


def test_on_hang_report_does_not_stop_the_job(start, tmp_path, capfd):
    hooks, watcher, folder = start(on_hang=OnHang.REPORT)
    watcher.next_replies = [verdict(folder)]
    assert hooks.tick(NodeStatus({})) is None
    assert "--on-hang report leaves the job as it is" in capfd.readouterr().err
    hooks.close(0)
    assert [
        each["decision"] for each in json.loads((tmp_path / "report.json").read_text())["incidents"]
    ] == ["report"]


SUSPICION = HangSuspected(text="suspected hang: rank 1 sleeps", verdict=VERDICT)


def test_a_suspicion_is_printed_without_an_order(start, capfd):
    hooks, watcher, _ = start()
    watcher.next_replies = [SUSPICION]
    assert hooks.tick(NodeStatus({})) is None
    watcher.next_replies = [SuspicionWithdrawn(text="suspicion withdrawn: the job advanced")]
    assert hooks.tick(NodeStatus({})) is None
    hooks.workers_ended(GenerationEnd.CLEAN)
    assert capfd.readouterr().err.splitlines()[1:] == [
        "holdfast: suspected hang: rank 1 sleeps",
        "holdfast: suspicion withdrawn: the job advanced",
    ]


@pytest.mark.parametrize(
    ("how", "withdrawn"),
    [(GenerationEnd.CLEAN, 1), (GenerationEnd.FAILED, 0), (GenerationEnd.INTERRUPTED, 0)],
)
def test_a_suspicion_is_withdrawn_if_the_job_succeeds(start, capfd, how, withdrawn):
    hooks, watcher, _ = start()
    watcher.next_replies = [SUSPICION]
    hooks.tick(NodeStatus({}))
    hooks.workers_ended(how)
    assert (
        capfd.readouterr().err.count("suspicion withdrawn: the job ended with status 0")
        == withdrawn
    )


@pytest.mark.parametrize("is_withdrawn", [False, True])
def test_the_report_of_an_interrupted_job_has_the_suspected_hang(start, tmp_path, is_withdrawn):
    hooks, watcher, _ = start()
    watcher.next_replies = [SUSPICION, *[SuspicionWithdrawn(text="it advanced")] * is_withdrawn]
    hooks.tick(NodeStatus({}))
    hooks.workers_ended(GenerationEnd.INTERRUPTED)
    hooks.close(1)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"]["root"] is None) is is_withdrawn
    assert [each["decision"] for each in report["incidents"]] == ["report"] * (not is_withdrawn)


def test_a_verdict_about_dead_workers_is_awaited(start, clock):
    hooks, watcher, folder = start()
    assert hooks.tick(NodeStatus({1: -9})) is None
    assert watcher.requests[1:] == [WorkerExits(codes={1: -9}), JudgeNow()]
    clock[0] += 1
    assert hooks.tick(NodeStatus({1: -9, 0: 1})) is None
    assert watcher.requests[3:] == [WorkerExits(codes={1: -9, 0: 1})]
    watcher.next_replies = [verdict(folder, hang=False)]
    order = hooks.tick(NodeStatus({1: -9, 0: 1}))
    assert (order.action, order.grace_s) == (OrderAction.RESTART, agent.CRASH_GRACE_S)


def test_a_worker_with_exit_status_0_is_not_a_failure(start):
    hooks, watcher, _ = start()
    assert hooks.tick(NodeStatus({0: 0})) is None
    assert watcher.requests[1:] == [WorkerExits(codes={0: 0})]


def test_without_a_verdict_the_policy_decides_after_a_timeout(start, clock, capfd):
    hooks, _, folder = start()
    hooks.tick(NodeStatus({1: -9}))
    clock[0] += agent.VERDICT_TIMEOUT_S + 0.1
    order = hooks.tick(NodeStatus({1: -9}))
    assert order.action is OrderAction.RESTART
    assert (
        "rank 1 was killed by SIGKILL; the watcher returned no verdict in time; restart 1 of 2"
        in capfd.readouterr().err
    )
    hooks.order_agreed(order)
    hooks.workers_ended(GenerationEnd.FAILED)
    assert len(list(folder.incidents.glob("0/traces/*.trace"))) == 2


def test_a_dead_watcher_is_replaced_and_receives_all_messages_again(start, capfd):
    hooks, watcher, folder = start()
    hooks.tick(NodeStatus({1: -9}))
    watcher.alive = False
    assert hooks.tick(NodeStatus({1: -9})) is None
    assert "starting another one" in capfd.readouterr().err
    assert watcher.next.requests == [watcher.requests[0], WorkerExits(codes={1: -9}), JudgeNow()]
    watcher.next.next_replies = [verdict(folder, hang=False)]
    assert hooks.tick(NodeStatus({1: -9})).action is OrderAction.RESTART


def test_the_job_continues_without_a_watcher_after_several_deaths(start, capfd):
    hooks, watcher, _ = start()
    for _ in range(agent.MAX_WATCHERS):
        watcher.alive = False
        assert hooks.tick(NodeStatus({})) is None
        watcher = watcher.next or watcher
    assert "the job continues without one" in capfd.readouterr().err
    assert hooks.tick(NodeStatus({0: 3})).action is OrderAction.RESTART


def test_a_preemption_is_no_failure(start, capfd):
    hooks, watcher, folder = start()
    report = verdict(folder, hang=False)
    watcher.next_replies = [msgspec.structs.replace(report, job=JobState(saved=18, preempted=138))]
    trace = TraceWriter(folder.trace_file(1), rank=1, world_size=2)
    trace.note_json(TraceNote.PREEMPTED, {"signal": signal.SIGUSR1, "step": 18, "status": 138})
    order = hooks.tick(NodeStatus({1: 138}))
    hooks.order_agreed(order)
    hooks.workers_ended(GenerationEnd.FAILED)
    hooks.close(138)
    _, ending = capfd.readouterr().err.splitlines()
    assert ending.startswith(
        "holdfast: preempted by SIGUSR1: all ranks saved at step 18 and exited with status 138; "
    )


def test_the_last_failure_is_the_last_line_and_in_the_json_report(start, tmp_path, capfd):
    hooks, watcher, folder = start(number=2)
    watcher.next_replies = [verdict(folder, generation=2)]
    order = hooks.tick(NodeStatus({}))
    assert (order.action, order.reason) == (OrderAction.STOP, "stop: all 2 restarts are used")
    hooks.order_agreed(order)
    hooks.workers_ended(GenerationEnd.FAILED)
    hooks.close(1)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("holdfast: the job failed; report: ")
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report) == [
        "schema",
        "command",
        "findings",
        "verdict",
        "incidents",
        "status",
        "restarts",
        "run_dir",
    ]
    assert report["verdict"] == json.loads(json.dumps(verdict_to_json(VERDICT)))
    assert [claim["code"] for claim in report["findings"]] == ["SYNC002"]
    assert (report["status"], report["restarts"], report["run_dir"]) == (1, 2, str(folder.path))
    assert list(report["incidents"][0]) == [
        "generation",
        "verdict",
        "decision",
        "html",
        "folder",
        "detected_s",
    ]
    assert list((tmp_path / "shm").iterdir()) == []


def test_the_json_report_of_a_successful_job(start, tmp_path):
    hooks, watcher, folder = start()
    hooks.workers_ended(GenerationEnd.CLEAN)
    assert list(folder.traces.glob("rank*")) == []
    hooks.close(0)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"]["root"], report["incidents"], report["status"]) == (None, [], 0)
    assert watcher.ended == "closed"


def test_trace_files_of_an_interrupted_job_are_kept(start):
    hooks, _, folder = start()
    hooks.workers_ended(GenerationEnd.INTERRUPTED)
    assert len(list(folder.path.glob("interrupted/*.trace"))) == 2


def test_abort_kills_the_watcher_and_removes_trace_files(start, tmp_path):
    hooks, watcher, _ = start()
    hooks.abort()
    assert (watcher.ended, list((tmp_path / "shm").iterdir())) == ("killed", [])


# Several nodes


def test_the_leader_forwards_summaries_of_other_nodes(start, clock):
    hooks, watcher, _ = start(board=FakeBoard(summary={1: "seen"}))
    for _ in range(5):
        hooks.tick(NodeStatus({}))
    clock[0] += 1.1
    hooks.tick(NodeStatus({}))
    assert watcher.requests[1:] == [PeerSummaries(summaries={1: "seen"})] * 2


def test_the_leader_requests_a_verdict_if_another_node_calls(start):
    board = FakeBoard(summary={1: "dead"})
    hooks, watcher, _ = start(board=board)
    hooks.tick(NodeStatus({}))
    board.others["call"] = {1: "1"}
    assert hooks.tick(NodeStatus({})) is None
    assert watcher.requests[-2:] == [PeerSummaries(summaries={1: "dead"}), JudgeNow()]


def test_the_leader_waits_for_other_nodes_before_it_requests_a_verdict(start, clock):
    hooks, watcher, _ = start(board=FakeBoard())
    hooks.tick(NodeStatus({0: 1}))
    assert watcher.requests[1:] == [WorkerExits(codes={0: 1})]
    clock[0] += agent.SETTLE_S + 0.1
    hooks.tick(NodeStatus({0: 1}))
    assert watcher.requests[-1] == JudgeNow()


def test_another_node_posts_its_summary_and_calls_the_leader(start, clock):
    board = FakeBoard()
    hooks, watcher, _ = start(node=1, board=board)
    watcher.next_replies = [NodeSummary(summary="seen")]
    assert hooks.tick(NodeStatus({2: -9})) is None
    assert board.posted == {"summary": "seen"}
    clock[0] += agent.SETTLE_S + 0.1
    assert hooks.tick(NodeStatus({2: -9})) is None
    assert board.posted["call"] == "1"
    assert JudgeNow() not in watcher.requests
    clock[0] += agent.LEADER_TIMEOUT_S
    assert hooks.tick(NodeStatus({2: -9})) is None  # the leader does not respond: this node decides
    assert watcher.requests[-1] == JudgeNow()
    clock[0] += agent.VERDICT_TIMEOUT_S + 0.1
    assert hooks.tick(NodeStatus({2: -9})).action is OrderAction.RESTART


def test_a_watcher_is_informed_about_a_leader_that_does_not_answer(start, clock):
    board = SilentBoard()
    hooks, watcher, _ = start(node=1, board=board)
    clock[0] += agent.RELAY_EVERY_S
    assert hooks.tick(NodeStatus({})) is None
    assert watcher.requests[-1] == LeaderContact(silent_s=9.5)
    board.lost = True
    hooks.tick(NodeStatus({2: 1}))
    clock[0] += agent.SETTLE_S + 0.1
    hooks.tick(NodeStatus({2: 1}))  # without waiting for the leader
    assert watcher.requests[-1] == JudgeNow()


def test_the_order_carries_the_verdict_to_all_nodes(start, tmp_path, capfd):
    leader, watcher, folder = start(board=FakeBoard())
    watcher.next_replies = [verdict(folder)]
    order = leader.tick(NodeStatus({}))
    other, _, _ = start(node=1, board=FakeBoard())
    capfd.readouterr()
    other.order_agreed(order)
    assert (
        capfd.readouterr().err
        == "holdfast: another node decided: rank 1 sleeps at train.py:41; restart 1 of 2\n"
    )
    other.close(0)
    assert (
        json.loads((tmp_path / "report.json").read_text())["verdict"]["root"]["message"]
        == ROOT.message
    )
