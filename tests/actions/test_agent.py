"""The hooks of a node, with a watcher that the test plays itself."""

import json

import pytest

from holdfast.actions import agent
from holdfast.actions.agent import NodeAgent
from holdfast.actions.policy import OnHang, Terms
from holdfast.actions.recovery import Recovery
from holdfast.actions.run_folder import RunFolder
from holdfast.actions.words import Plan
from holdfast.facts.dump_requests import DumpPlace
from holdfast.findings import Finding, Level, Subject, Verdict, verdict_to_json
from holdfast.runtime.generation import Board, Choice, End, Generation, Look, Worker

ROOT = Finding(
    code="SYNC002", cause="rank-missing-collective", level=Level.ERROR, message="rank 1 sleeps at train.py:41",
    subject=Subject(rank=1, file="train.py", line=41), confidence=0.9,
)  # fmt: skip
VERDICT = Verdict(question="Why does nobody advance?", root=ROOT)


class Watcher:
    """Stands for the watcher: keeps what it is told, answers what the test says."""

    pid, status = 4711, None

    def __init__(self):
        self.told = []
        self.to_say = []
        self.alive = True
        self.ended = ""
        self.next = None

    def again(self):
        self.next = Watcher()
        return self.next

    def send(self, kind, **what):
        self.told.append({"kind": kind, **what})

    def answers(self):
        while self.to_say:
            yield self.to_say.pop(0)

    def close(self):
        self.ended = "closed"

    def kill(self):
        self.ended = "killed"


class Sheets(Board):
    """Stands for the board of a job with two nodes."""

    def __init__(self, **others):
        super().__init__(None, 0, 2)
        self.posted = {}
        self.others = others

    def post(self, sheet, text):
        self.posted[sheet] = text

    def read(self, sheet):
        return self.others.get(sheet, {})


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(agent.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def start(tmp_path):
    """Starts a node in generation ``number``; gives the node, its watcher and its folder."""

    def begin(number=0, *, most=2, on_hang=OnHang.RESTART, node=0, board=None, **more):
        (tmp_path / "shm").mkdir(exist_ok=True)
        folder = RunFolder(tmp_path / "runs", workers=2, records=64, shm=tmp_path / "shm")
        plan = Plan(workers=2, recorder="python", native="", inject="", preset="basic", environment={},
                    gaps={"SET": "here"}, json_report=tmp_path / "report.json", **more)  # fmt: skip
        watcher = Watcher()
        recovery = Recovery(folder, Terms(restarts=most, on_hang=on_hang), agent.say)
        hooks = NodeAgent(folder, plan, recovery, watcher)
        nodes = 1 if board is None else 2
        workers = tuple(Worker(2 * node + at, at, 100 + at) for at in range(2))
        board = board or Board(None, 0, 1)
        hooks.started(Generation(number, node, nodes, 2 * nodes, most - number, workers, board))
        for rank in (0, 1):
            folder.box(rank).write_text("")
        return hooks, watcher, folder

    return begin


def verdict(folder, *, hang=True, generation=0, verdict=VERDICT):
    incident = folder.new_incident()
    return {
        "kind": "verdict", "generation": generation, "hang": hang, "verdict": verdict_to_json(verdict), "stuck": [1],
        "stopped": [], "html": str(incident / "report.html"), "folder": str(incident), "detected_s": 6.1,
    }  # fmt: skip


def test_the_watcher_is_told_whom_to_watch(start, capfd):
    _, watcher, folder = start()
    (told,) = watcher.told
    assert (told["kind"], told["generation"], told["leader"], told["world_size"]) == ("start", 0, True, 2)
    dumps = f"{folder.path}/flight-recorder/generation0-rank1"
    assert told["workers"][1] == {
        "rank": 1, "local_rank": 1, "pid": 101, "box": str(folder.box(1)),
        "dumps": DumpPlace(f"{dumps}-ask", f"{dumps}-dump"),
    }  # fmt: skip
    assert told["run_dir"] == str(folder.path)
    preset = "preset basic sets SET=here"
    assert capfd.readouterr().err == (
        f"holdfast: generation 0: ranks 0 to 1 of 2, recorder python, {preset}, run folder {folder.path}\n"
    )


def test_a_worker_gets_its_box_and_the_presets_values(start):
    hooks, _, folder = start()
    variables = hooks.variables(1, 0)
    assert (variables["HOLDFAST_BOX"], variables["HOLDFAST_WATCHER_PID"]) == (str(folder.box(1)), "4711")
    assert (variables["SET"], variables["HOLDFAST_RECORDER"], variables["HOLDFAST_NATIVE"]) == ("here", "python", "")


def test_a_hang_that_was_over_before_it_was_judged_is_nobodys_order(start):
    hooks, watcher, folder = start()
    watcher.to_say = [verdict(folder)]
    assert hooks.tick(Look({0: 143, 1: 143})) is None
    watcher.to_say = [verdict(folder)]
    assert hooks.tick(Look({0: 0, 1: 0})) is None
    watcher.to_say = [verdict(folder)]
    assert hooks.tick(Look({0: 0})).choice is Choice.RESTART  # one of them is still there


def test_survivors_of_a_crash_have_little_time_before_a_restart(start):
    hooks, watcher, folder = start()
    watcher.to_say = [verdict(folder, hang=False)]
    assert hooks.tick(Look({1: -9})).patience_s == agent.CRASH_PATIENCE_S
    hooks, watcher, folder = start(most=0)
    watcher.to_say = [verdict(folder, hang=False)]
    assert hooks.tick(Look({1: -9})).patience_s is None  # nobody waits for them


def test_a_hang_becomes_an_order_to_restart(start, capfd):
    hooks, watcher, folder = start()
    watcher.to_say = [verdict(folder)]
    order = hooks.tick(Look({}))
    assert (order.choice, order.reason, order.stuck) == (Choice.RESTART, "restart 1 of 2", (1,))
    assert order.patience_s == agent.HANG_PATIENCE_S
    shown = capfd.readouterr().err
    assert "rank 1 sleeps at train.py:41" in shown
    assert "incidents/0/report.html" in shown
    hooks.decided(order)
    hooks.ended(End.FAILED)
    assert sorted(path.name for path in folder.incidents.glob("0/boxes/*")) == ["rank0.box", "rank1.box"]
    assert list(folder.boxes.glob("rank*")) == []


def test_a_verdict_about_another_generation_is_not_acted_upon(start):
    hooks, watcher, folder = start(number=1)
    watcher.to_say = [verdict(folder, generation=0)]
    assert hooks.tick(Look({})) is None


def test_a_hang_that_is_only_to_be_reported_leaves_the_job_alone(start, tmp_path, capfd):
    hooks, watcher, folder = start(on_hang=OnHang.REPORT)
    watcher.to_say = [verdict(folder)]
    assert hooks.tick(Look({})) is None
    assert "the job is left as it is" in capfd.readouterr().err
    hooks.close(0)
    assert [each["decision"] for each in json.loads((tmp_path / "report.json").read_text())["incidents"]] == ["report"]


def test_dead_workers_are_judged_before_anything_is_done(start, clock):
    hooks, watcher, folder = start()
    assert hooks.tick(Look({1: -9})) is None
    assert watcher.told[1:] == [{"kind": "exits", "codes": {"1": -9}}, {"kind": "judge"}]
    clock[0] += 1
    assert hooks.tick(Look({1: -9, 0: 1})) is None
    assert watcher.told[3:] == [{"kind": "exits", "codes": {"1": -9, "0": 1}}]
    watcher.to_say = [verdict(folder, hang=False)]
    order = hooks.tick(Look({1: -9, 0: 1}))
    assert (order.choice, order.patience_s) == (Choice.RESTART, agent.CRASH_PATIENCE_S)


def test_a_worker_that_ended_well_is_no_failure(start):
    hooks, watcher, _ = start()
    assert hooks.tick(Look({0: 0})) is None
    assert watcher.told[1:] == [{"kind": "exits", "codes": {"0": 0}}]


def test_a_watcher_that_does_not_judge_is_not_waited_for(start, clock, capfd):
    hooks, _, folder = start()
    hooks.tick(Look({1: -9}))
    clock[0] += agent.JUDGE_LIMIT_S + 0.1
    order = hooks.tick(Look({1: -9}))
    assert order.choice is Choice.RESTART
    assert "rank 1 was ended by SIGKILL; the watcher gave no verdict in time; restart 1 of 2" in capfd.readouterr().err
    hooks.decided(order)
    hooks.ended(End.FAILED)
    assert len(list(folder.incidents.glob("0/boxes/*.box"))) == 2


def test_a_watcher_that_died_is_replaced_and_the_next_one_knows_all(start, capfd):
    hooks, watcher, folder = start()
    hooks.tick(Look({1: -9}))
    watcher.alive = False
    assert hooks.tick(Look({1: -9})) is None
    assert "another one takes its place" in capfd.readouterr().err
    assert [told["kind"] for told in watcher.next.told] == ["start", "exits", "judge"]
    assert watcher.next.told[0] == watcher.told[0]
    watcher.next.to_say = [verdict(folder, hang=False)]
    assert hooks.tick(Look({1: -9})).choice is Choice.RESTART


def test_watchers_that_die_again_and_again_are_done_without(start, capfd):
    hooks, watcher, _ = start()
    for _ in range(agent.WATCHERS):
        watcher.alive = False
        assert hooks.tick(Look({})) is None
        watcher = watcher.next or watcher
    assert "the job goes on without one" in capfd.readouterr().err
    assert hooks.tick(Look({0: 3})).choice is Choice.RESTART


def test_the_last_failure_is_the_last_line_and_the_report_of_scripts(start, tmp_path, capfd):
    hooks, watcher, folder = start(number=2)
    watcher.to_say = [verdict(folder, generation=2)]
    order = hooks.tick(Look({}))
    assert (order.choice, order.reason) == (Choice.STOP, "stop: all 2 restarts are used")
    hooks.decided(order)
    hooks.ended(End.FAILED)
    hooks.close(1)
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("holdfast: the job failed: rank 1 sleeps at train.py:41; ")
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report) == ["schema", "command", "findings", "verdict", "incidents", "status", "restarts", "run_dir"]
    assert report["verdict"] == json.loads(json.dumps(verdict_to_json(VERDICT)))
    assert [claim["code"] for claim in report["findings"]] == ["SYNC002"]
    assert (report["status"], report["restarts"], report["run_dir"]) == (1, 2, str(folder.path))
    assert list(report["incidents"][0]) == ["generation", "verdict", "decision", "html", "folder", "detected_s"]
    assert list((tmp_path / "shm").iterdir()) == []


def test_a_job_in_which_nothing_failed_says_so_to_scripts(start, tmp_path):
    hooks, watcher, folder = start()
    hooks.ended(End.CLEAN)
    assert list(folder.boxes.glob("rank*")) == []
    hooks.close(0)
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["verdict"]["root"], report["incidents"], report["status"]) == (None, [], 0)
    assert watcher.ended == "closed"


def test_boxes_of_a_job_that_was_interrupted_are_kept(start):
    hooks, _, folder = start()
    hooks.ended(End.INTERRUPTED)
    assert len(list(folder.path.glob("interrupted/*.box"))) == 2


def test_nothing_is_left_when_the_process_has_to_end_at_once(start, tmp_path):
    hooks, watcher, _ = start()
    hooks.abandon()
    assert (watcher.ended, list((tmp_path / "shm").iterdir())) == ("killed", [])


# Several nodes


def test_the_leader_passes_on_what_other_nodes_see(start, clock):
    hooks, watcher, _ = start(board=Sheets(summary={1: "seen"}))
    for _ in range(5):
        hooks.tick(Look({}))
    clock[0] += 1.1
    hooks.tick(Look({}))
    assert watcher.told[1:] == [{"kind": "summaries", "blobs": {"1": "seen"}}] * 2


def test_the_leader_judges_when_another_node_calls(start):
    board = Sheets(summary={1: "dead"})
    hooks, watcher, _ = start(board=board)
    hooks.tick(Look({}))
    board.others["call"] = {1: "1"}
    assert hooks.tick(Look({})) is None
    assert [told["kind"] for told in watcher.told][-2:] == ["summaries", "judge"]


def test_the_leader_lets_the_others_report_before_it_judges_its_own_dead(start, clock):
    hooks, watcher, _ = start(board=Sheets())
    hooks.tick(Look({0: 1}))
    assert [told["kind"] for told in watcher.told] == ["start", "exits"]
    clock[0] += agent.SETTLE_S + 0.1
    hooks.tick(Look({0: 1}))
    assert watcher.told[-1] == {"kind": "judge"}


def test_another_node_posts_what_it_sees_and_calls_the_leader(start, clock):
    board = Sheets()
    hooks, watcher, _ = start(node=1, board=board)
    watcher.to_say = [{"kind": "summary", "blob": "seen"}]
    assert hooks.tick(Look({2: -9})) is None
    assert board.posted == {"summary": "seen"}
    clock[0] += agent.SETTLE_S + 0.1
    assert hooks.tick(Look({2: -9})) is None
    assert board.posted["call"] == "1"
    assert {"kind": "judge"} not in watcher.told
    clock[0] += agent.LEADER_LIMIT_S
    assert hooks.tick(Look({2: -9})) is None  # the leader does not answer: its own watcher is asked
    assert watcher.told[-1] == {"kind": "judge"}
    clock[0] += agent.JUDGE_LIMIT_S + 0.1
    assert hooks.tick(Look({2: -9})).choice is Choice.RESTART


def test_all_nodes_know_the_verdict_of_the_leader(start, tmp_path, capfd):
    leader, watcher, folder = start(board=Sheets())
    watcher.to_say = [verdict(folder)]
    order = leader.tick(Look({}))
    other, _, _ = start(node=1, board=Sheets())
    capfd.readouterr()
    other.decided(order)
    assert capfd.readouterr().err == "holdfast: another node decided: rank 1 sleeps at train.py:41; restart 1 of 2\n"
    other.close(0)
    assert json.loads((tmp_path / "report.json").read_text())["verdict"]["root"]["message"] == ROOT.message
