"""The verdict: every kind of root, consequences, ruled-out causes and missing data."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core.findings import Level, Verdict
from holdfast.core.rank_table import (
    ChildProcess,
    ProcessGroupInfo,
    ProcessState,
    RaisedException,
    RankState,
    RecordedCall,
    ScriptEnd,
    SourceLine,
    ThreadStack,
)
from holdfast.watcher.rules import hang, stall
from holdfast.watcher.rules.rank_findings import describe_exception
from holdfast.watcher.source_context import EnclosingLoop, Guard, SourceContext
from tests.unit.watcher.rank_tables import EVAL, LOADER, TRAIN, call, history, row, world


def judge(ranks: list[RankState], **more: object) -> Verdict:
    """Return the verdict for these ranks."""
    size = max(state.rank for state in ranks) + 1
    return hang.judge_hang(ranks, more.pop("groups", world(size)), world_size=size, **more)  # type: ignore[arg-type]


def waiting(*ranks: int) -> list[RankState]:
    """Return ranks in all_reduce #31."""
    return [row(rank, *history(30), call(31)) for rank in ranks]


def root_of(verdict: Verdict) -> tuple[str, int | None, int | None]:
    """Return cause, rank and line of the root."""
    assert verdict.root is not None
    return verdict.root.cause, verdict.root.subject.rank, verdict.root.subject.line


def test_a_job_without_waiting_ranks_has_no_root() -> None:
    verdict = judge([row(rank, *history(30)) for rank in range(4)])
    assert verdict.root is None
    assert verdict.consequences == ()


def test_the_sleeping_rank_is_named_with_its_line_and_the_waiting_ranks() -> None:
    verdict = judge([*waiting(0, 1, 3), row(2, *history(30), at=LOADER)])
    assert root_of(verdict) == ("rank-missing-collective", 2, 12)
    messages = [item.message for item in verdict.consequences]
    assert messages == [
        "ranks 0-1,3 are blocked in all_reduce #31 at train.py:41, waiting for rank 2"
    ]
    ruled_out = {item.cause for item in verdict.ruled_out}
    assert ruled_out >= {"rank-killed", "rank-stopped", "collective-mismatch", "straggler"}
    assert verdict.root is not None
    assert any("load" in fact.text for fact in verdict.root.evidence)


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        (row(2, *history(30), at=TRAIN, life=ProcessState.STOPPED), "rank-stopped"),
        (row(2, *history(30), at=TRAIN, life=ProcessState.DISK), "rank-uninterruptible-io"),
        (row(2, *history(30), at=LOADER, blocked_on="FIFO /data/samples"), "file-io-blocked"),
        (row(2, *history(30), life=ProcessState.DEAD, exit_code=-9), "rank-killed"),
        (
            row(2, *history(30), life=ProcessState.DEAD, exit_code=-9, out_of_memory=True),
            "host-oom-killed",
        ),
        (row(2, *history(30), life=ProcessState.DEAD, exit_code=-11), "segfault-in-worker"),
        (row(2, *history(30), life=ProcessState.DEAD, exit_code=-15), "signal-sigterm-preempted"),
        (row(2, *history(30), life=ProcessState.DEAD, exit_code=3), "exit-nonzero"),
        (
            row(2, *history(30), life=ProcessState.DEAD, exit_code=138, preempted=138, saved=18),
            "signal-sigterm-preempted",
        ),
        (row(2, *history(30), life=ProcessState.DEAD, exit_code=0), "rank-exits-early"),
        (
            row(
                2,
                *history(30),
                life=ProcessState.DEAD,
                exit_code=0,
                ended=ScriptEnd("sys.exit", EVAL),
            ),
            "rank-exits-early",
        ),
        (
            row(
                2,
                *history(30),
                life=ProcessState.DEAD,
                exit_code=-6,
                ended=ScriptEnd("sys.exit", EVAL),
            ),
            "rank-exits-early",
        ),
        (
            row(
                2,
                *history(30),
                life=ProcessState.DEAD,
                exit_code=0,
                ended=ScriptEnd("end of script"),
            ),
            "uneven-inputs",
        ),
        (
            row(
                2,
                *history(30),
                exit_code=1,
                life=ProcessState.DEAD,
                raised=RaisedException("ValueError", "bad", EVAL),
            ),
            "python-exception-on-one-rank",
        ),
        (
            row(
                2,
                *history(30),
                exit_code=1,
                life=ProcessState.DEAD,
                raised=RaisedException("RuntimeError", "CUDA out of memory.", EVAL),
            ),
            "oom-on-one-rank-then-timeout",
        ),
        (
            row(
                2,
                *history(30),
                exit_code=1,
                life=ProcessState.DEAD,
                raised=RaisedException(
                    "RuntimeError", "DataLoader worker (pid(s) 77) exited unexpectedly", EVAL
                ),
            ),
            "dataloader-worker-died",
        ),
    ],
)
def test_the_process_state_determines_the_cause(state: RankState, cause: str) -> None:
    assert root_of(judge([*waiting(0, 1, 3), state]))[:2] == (cause, 2)


def asleep(at: SourceLine, held: tuple[bool, ...], **more: object) -> RankState:
    """Return two samples of rank 2, with or without the GIL."""
    stacks = tuple(
        ThreadStack((at,), time=100.0 + number, holds_lock=each) for number, each in enumerate(held)
    )
    return row(2, *history(30), at=at, **{"stacks": stacks, **more})


def test_a_rank_asleep_with_the_gil_held_is_named() -> None:
    verdict = judge([*waiting(0, 1, 3), asleep(TRAIN, (True, True))])
    assert root_of(verdict) == ("python-lock-held", 2, TRAIN.line)
    assert verdict.root is not None
    assert any("holds the GIL and does not run" in fact.text for fact in verdict.root.evidence)


@pytest.mark.parametrize(
    "state",
    [
        asleep(TRAIN, (True, False)),
        asleep(TRAIN, (False, True)),
        asleep(TRAIN, (True, True), cpu_share=0.4),
    ],
)
def test_a_rank_that_held_the_gil_briefly_or_works_is_not_named_for_it(state: RankState) -> None:
    cause = "rank-missing-collective" if state.cpu_share == 0.0 else "computing-long"
    assert root_of(judge([*waiting(0, 1, 3), state]))[:2] == (cause, 2)


@pytest.mark.parametrize("others", [call(31), call(32)], ids=["still inside", "in the next one"])
def test_a_rank_stopped_inside_a_collective_is_named_instead_of_the_network(
    others: RecordedCall,
) -> None:
    waits = [row(rank, *history(others.sequence - 1), others) for rank in (0, 1, 3)]
    verdict = judge([*waits, row(2, *history(30), call(31), life=ProcessState.STOPPED)])
    assert root_of(verdict)[:2] == ("rank-stopped", 2)
    assert verdict.root is not None
    assert "all_reduce #31" in verdict.root.message


def test_a_stopped_rank_that_waits_for_missing_ranks_is_no_root() -> None:
    stopped = row(2, *history(30), call(31), life=ProcessState.STOPPED)
    assert root_of(judge([*waiting(0, 1), stopped, row(3, *history(30), at=LOADER)])) == (
        "rank-missing-collective",
        3,
        12,
    )


def test_a_crash_after_the_script_end_is_attributed_to_the_open_group() -> None:
    done = [
        row(
            rank,
            *history(30),
            life=ProcessState.DEAD,
            exit_code=0,
            ended=ScriptEnd("end of script"),
        )
        for rank in (0, 1, 3)
    ]
    crashed = row(
        2, *history(30), life=ProcessState.DEAD, exit_code=-6, ended=ScriptEnd("end of script")
    )
    assert root_of(judge([*done, crashed]))[:2] == ("group-left-at-exit", 2)


def test_a_dead_loader_worker_is_distinguished_from_a_slow_one() -> None:
    stack = (
        ThreadStack(
            (SourceLine("/env/torch/utils/data/dataloader.py", 1, "_try_get_data"), LOADER)
        ),
    ) * 2
    dead = row(
        2, *history(30), stacks=stack, children=(ChildProcess(77, "pt_data_worker", alive=False),)
    )
    assert root_of(judge([*waiting(0, 1, 3), dead]))[0] == "dataloader-worker-died"


def test_a_loader_worker_that_left_is_named_at_the_loop_over_the_loader() -> None:
    """torch raises at whatever line the rank runs when its worker dies."""
    text = "DataLoader worker (pid 77) exited unexpectedly with exit code 3."
    raised = RaisedException("RuntimeError", text, TRAIN)
    dead = row(1, *history(30), raised=raised, exit_code=1, life=ProcessState.DEAD)
    loops = (
        EnclosingLoop(30, 50, "for epoch in range(2):", None),
        EnclosingLoop(36, 50, "for step, (x, y) in enumerate(loader):", None),
    )
    source = {TRAIN: SourceContext("main", 20, "", (), loops)}
    assert root_of(judge([dead, *waiting(0, 2)], source=source)) == (
        "dataloader-worker-died",
        1,
        36,
    )


def test_survivors_that_lost_their_peer_are_not_the_root() -> None:
    lost = RaisedException(
        "RuntimeError", "[gloo] Connection closed by peer [127.0.0.1]:1234", TRAIN
    )
    dead = [
        row(rank, *history(30), life=ProcessState.DEAD, exit_code=1, raised=lost) for rank in (0, 1)
    ]
    verdict = judge([*dead, row(2, *history(30), life=ProcessState.DEAD, exit_code=-9)])
    assert root_of(verdict)[:2] == ("rank-killed", 2)
    quiet = judge(
        [
            *dead,
            row(
                2,
                *history(30),
                life=ProcessState.DEAD,
                exit_code=0,
                ended=ScriptEnd("sys.exit", EVAL),
            ),
        ]
    )
    assert root_of(quiet)[:2] == ("rank-exits-early", 2)


@pytest.mark.parametrize(
    ("file", "cause", "rank"),
    [
        ("/usr/lib/python3.11/urllib/request.py", "python-exception-on-one-rank", 1),
        ("/x/site-packages/urllib3/connection.py", "python-exception-on-one-rank", 1),
        ("/x/site-packages/torch/distributed/distributed_c10d.py", "rank-killed", 2),
        ("/job/train.py", "rank-killed", 2),
    ],
)
def test_a_connection_that_a_library_lost_is_no_lost_peer(file: str, cause: str, rank: int) -> None:
    """Unless a collective of the rank failed before, as when its handler reports that."""
    frames = (SourceLine(file, 9), EVAL)
    error = RaisedException("URLError", "[Errno 111] Connection refused", EVAL, frames=frames)
    dead = {"life": ProcessState.DEAD, "exit_code": 1}
    own = row(1, *history(30), **dead, raised=error)
    lost = RaisedException("RuntimeError", "Connection closed by peer", TRAIN)
    others = [row(0, *history(30), **dead, raised=lost)]
    others += [row(2, *history(30), life=ProcessState.DEAD, exit_code=-9)] * (rank == 2)
    assert root_of(judge([*others, own]))[:2] == (cause, rank)
    failed = row(1, *history(30), replace(call(31), failed=True), **dead, raised=error)
    killed = row(2, *history(30), life=ProcessState.DEAD, exit_code=-9)
    assert root_of(judge([others[0], failed, killed]))[:2] == ("rank-killed", 2)


def test_the_same_exception_everywhere_is_one_cause() -> None:
    raised = RaisedException("FileNotFoundError", "config.yaml", EVAL)
    dead = [row(rank, life=ProcessState.DEAD, exit_code=1, raised=raised) for rank in range(4)]
    assert root_of(judge(dead))[0] == "python-exception-all-ranks"


def guarded(place: SourceLine) -> dict[SourceLine, SourceContext]:
    """Return source in which the line has a rank guard."""
    return {
        place: SourceContext(
            "evaluate", 70, "", (Guard(75, "if rank == 0", "body", rank_dependent=True),)
        )
    }


def test_a_rank_guarded_collective_is_named() -> None:
    odd = row(0, *history(30), call(31, "broadcast", site=EVAL))
    verdict = judge([odd, *waiting(1, 2, 3)], source=guarded(EVAL))
    assert root_of(verdict) == ("rank-guarded-collective", 0, EVAL.line)
    assert verdict.root is not None
    assert "if rank == 0" in verdict.root.message
    assert [each.message for each in verdict.consequences] == [
        f"ranks 1-3 are blocked in all_reduce #31 at train.py:{TRAIN.line}"
    ]


def test_a_call_of_another_dtype_that_was_made_before_is_another_place_in_the_program() -> None:
    logged = tuple(call(number, dtype="int64", done=True) for number in range(5, 40, 10))
    calls = tuple(sorted((*history(44), *logged), key=lambda each: each.entered))
    usual = [row(rank, *calls, call(45)) for rank in (0, 1)]
    odd = row(2, *calls, call(45, dtype="int64"))
    verdict = judge([*usual, odd])
    assert root_of(verdict)[:2] == ("collective-mismatch", 2)
    assert verdict.root is not None
    assert "elsewhere in the program" in verdict.root.message


def test_a_tie_goes_to_the_side_with_a_rank_guard() -> None:
    for odd in (0, 1):
        ranks = [
            row(rank, call(1, "broadcast", site=EVAL) if rank == odd else call(1))
            for rank in (0, 1)
        ]
        assert root_of(judge(ranks, source=guarded(EVAL)))[:2] == ("rank-guarded-collective", odd)


def test_an_unexplained_tie_is_reported_as_a_tie() -> None:
    verdict = judge([row(0, call(1, elements=4)), row(1, call(1, elements=5))])
    assert verdict.root is not None
    assert "a tie" in verdict.root.message


def test_a_rank_that_left_a_loop_early_is_named() -> None:
    source = {
        TRAIN: SourceContext(
            "main", 30, "", (), (EnclosingLoop(38, 50, "for batch in loader:", None),)
        ),
        EVAL: SourceContext("main", 30, ""),
    }
    odd = row(3, *history(30), call(31, "barrier", site=EVAL))
    assert root_of(judge([*waiting(0, 1, 2), odd], source=source))[:2] == ("uneven-inputs", 3)


def test_a_mismatch_explains_the_deaths_after_it() -> None:
    """gloo aborts every rank when the dtypes of an all-reduce differ."""
    states = [
        row(
            rank,
            *history(30),
            call(31, dtype="float16" if rank == 1 else "float32"),
            life=ProcessState.DEAD,
            exit_code=-6,
        )
        for rank in range(4)
    ]
    assert root_of(judge(states))[:2] == ("mismatched-dtype", 1)


def test_a_wait_cycle_is_named_with_both_calls() -> None:
    groups = world(4) | {
        "a": ProcessGroupInfo("a", (0, 1, 2, 3)),
        "b": ProcessGroupInfo("b", (0, 1, 2, 3)),
    }
    inverted = row(1, call(9, group="b", site=EVAL))
    ranks = [
        inverted if rank == 1 else row(rank, call(9, group="a", site=TRAIN)) for rank in range(4)
    ]
    verdict = judge(ranks, groups=groups)
    assert root_of(verdict) == ("collective-order-inversion", 1, EVAL.line)


@pytest.mark.parametrize(
    ("guarded", "cause"),
    [((EVAL,), "rank-guarded-collective"), ((EVAL, TRAIN), "collective-order-inversion")],
)
def test_a_wait_cycle_by_one_call_under_a_test_of_the_rank_is_no_inversion(guarded, cause) -> None:  # type: ignore[no-untyped-def]
    """Rank 0 alone saves, with a barrier; the others train in a group of their own."""
    groups = world(3) | {"data": ProcessGroupInfo("data", (0, 1, 2))}
    ranks = [
        row(0, call(9, "barrier", site=EVAL)),
        *(row(rank, call(44, group="data", site=TRAIN)) for rank in (1, 2)),
    ]
    source = {
        line: SourceContext(
            "main", 1, "", (Guard(line.line - 1, "if rank == 0", branch, rank_dependent=True),)
        )
        for line, branch in zip(guarded, ("body", "orelse"), strict=False)
    }
    assert root_of(judge(ranks, groups=groups, source=source)) == (cause, 0, EVAL.line)


@pytest.mark.parametrize(
    ("last", "expected"),
    [(60, ("uneven-inputs", 0, 40)), (90, ("collective-order-inversion", 0, EVAL.line))],
)
def test_a_wait_cycle_with_a_call_behind_the_loop_of_the_other_is_no_inversion(
    last, expected
) -> None:  # type: ignore[no-untyped-def]
    """Rank 0 has left the loop in which the others train in a group of their own."""
    groups = world(3) | {"data": ProcessGroupInfo("data", (0, 1, 2))}
    ranks = [
        row(0, call(9, "barrier", site=EVAL)),
        *(row(rank, call(44, group="data", site=TRAIN)) for rank in (1, 2)),
    ]
    loops = (EnclosingLoop(40, last, "for batch in loader", None),)
    source = {
        TRAIN: SourceContext("main", 1, "", loops=loops),
        EVAL: SourceContext("main", 1, "", loops=loops if last > EVAL.line else ()),
    }
    assert root_of(judge(ranks, groups=groups, source=source)) == expected


def test_an_abort_by_unequal_sizes_is_no_crash_of_native_code() -> None:
    """Splits of an all-to-all are each rank's own, so the calls do not show the difference."""
    text = (
        "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1408 vs 1152. Received data "
        "size doesn't match expected size. Is there a distributed collective mismatch in your code?"
    )
    aborted = row(
        1,
        *history(30),
        call(31, "all_to_all", site=TRAIN),
        life=ProcessState.DEAD,
        exit_code=-6,
        raised=RaisedException("gloo::EnforceNotMet", text),
    )
    states = [row(rank, *history(30), call(31, "all_to_all", site=TRAIN)) for rank in (0, 2)]
    assert root_of(judge([states[0], aborted, states[1]]))[:2] == ("mismatched-shape", 1)


def test_a_send_without_a_receive_is_named() -> None:
    ranks = [row(0, *history(30), call(1, "send", peer=1, site=EVAL)), *waiting(1, 2)]
    assert root_of(judge(ranks)) == ("p2p-without-partner", 0, EVAL.line)


def test_new_group_called_by_some_ranks_is_named() -> None:
    ranks = [
        row(0, *history(30), call(1, "new_group", group="new_group", site=EVAL)),
        *waiting(1, 2, 3),
    ]
    assert root_of(judge(ranks)) == ("new-group-by-some-ranks", 0, EVAL.line)


def test_a_rank_missing_at_the_rendezvous_is_named() -> None:
    entered = [
        row(rank, call(1, "init_process_group", group="init_process_group")) for rank in (0, 1)
    ]
    assert root_of(judge([*entered, row(2, at=LOADER)]))[:2] == ("store-wait", 2)


def on_two_hosts(*ranks: RankState) -> list[RankState]:
    """Return the ranks with every second one on another host."""
    return [replace(state, host="ab"[state.rank % 2]) for state in ranks]


def test_a_call_that_all_ranks_entered_points_to_the_network_between_hosts_only() -> None:
    assert root_of(judge(on_two_hosts(*waiting(0, 1, 2, 3))))[0] == "network-fabric-fault"
    nodes = [replace(state, node=str(state.rank % 2)) for state in waiting(0, 1, 2, 3)]
    assert root_of(judge(nodes))[0] == "network-fabric-fault"  # containers of one name
    verdict = judge(waiting(0, 1, 2, 3))
    assert root_of(verdict) == ("collective-incomplete", None, TRAIN.line)
    assert "network-fabric-fault" in {entry.cause for entry in verdict.ruled_out}


def test_ranks_still_inside_a_completed_call_point_to_the_network() -> None:
    rows = [*waiting(0, 2), row(1, *history(31)), row(3, *history(31))]
    root = judge(on_two_hosts(*rows)).root
    assert root is not None
    assert root.cause == "network-fabric-fault"
    assert "ranks 0,2 are still in all_reduce #31" in root.message


def test_a_blocked_rank_that_no_rank_waits_for_is_named() -> None:
    gone = [row(rank, *history(9), life=ProcessState.DEAD, exit_code=0) for rank in (0, 2)]
    root = judge([*gone, row(1, *history(9), at=LOADER)]).root
    assert root is not None
    assert (root.cause, root.subject.rank, root.subject.line) == (
        "stalled-outside-collectives",
        1,
        LOADER.line,
    )
    assert "ranks 0,2 have ended" in root.message


def test_a_process_that_outlives_its_script_is_named() -> None:
    state = row(1, *history(9), at=LOADER, ended=ScriptEnd("end of script", time=50.0))
    root = judge([row(0, *history(9), life=ProcessState.DEAD, exit_code=0), state]).root
    assert root is not None
    assert root.message.startswith("the script of rank 1 ended but its process still runs")


def test_ranks_that_ended_during_the_observation_are_not_named() -> None:
    end = ScriptEnd("end of script", time=50.0)
    gone = [
        row(rank, *history(9), life=ProcessState.DEAD, exit_code=code, at=LOADER, ended=end)
        for rank, code in ((0, 0), (1, None))
    ]
    assert judge(gone).root is None


def test_missing_observations_are_listed() -> None:
    verdict = hang.judge_hang(
        [*waiting(0, 1), row(2, *history(30), unseen=("ptrace was refused",))],
        world(5),
        world_size=5,
    )
    assert any("ptrace was refused" in text and "2" in text for text in verdict.unseen)
    assert any("3-4" in text for text in verdict.unseen)
    assert not any(item.cause == "rank-killed" for item in verdict.ruled_out)


def test_an_unobserved_rank_is_named() -> None:
    verdict = hang.judge_hang(waiting(0, 1, 3), world(4), world_size=4)
    assert verdict.root is not None
    assert verdict.root.subject.rank == 2
    assert verdict.root.confidence <= 0.5


def test_a_world_size_beyond_the_started_ranks_is_named_at_its_line() -> None:
    init = "init_process_group"
    groups = world(2) | {init: ProcessGroupInfo(init, (0, 1, 2))}
    verdict = judge(
        [row(rank, call(1, init, group=init, site=EVAL)) for rank in (0, 1)], groups=groups
    )
    assert root_of(verdict) == ("launch-arguments-differ", 0, EVAL.line)
    assert verdict.root is not None
    assert "with world_size=3 at train.py:77, but the job has 2 ranks" in verdict.root.message
    assert verdict.suspects == ()


@pytest.mark.parametrize(
    ("connecting", "who", "first"),
    [((0, 1, 2), "ranks 0-2", 0), ((2,), "rank 2", 2), ((0, 2), "rank 2", 2)],
)
def test_a_script_that_changes_the_address_of_the_store_is_named(
    connecting: tuple[int, ...], who: str, first: int
) -> None:
    """As in torch's tutorial: MASTER_PORT=12355, where no launcher listens."""
    init = "init_process_group"
    rendezvous = SourceLine(
        "/x/site-packages/torch/distributed/rendezvous.py", 190, "_create_c10d_store"
    )
    ranks = []
    for rank in range(3):
        frames = (rendezvous, EVAL) if rank in connecting else (EVAL,)
        entered = call(1, init, group=init, site=EVAL)
        ranks.append(row(rank, entered, step=None, stacks=(ThreadStack(frames),) * 2))
    verdict = judge(ranks)
    assert root_of(verdict) == ("master-unreachable", first, EVAL.line)
    assert verdict.root is not None
    assert verdict.root.message.startswith(f"{who} cannot connect to the rendezvous store")
    late = judge([*ranks[:2], row(2, at=TRAIN, step=None)])
    assert root_of(late)[:2] == ("store-wait", 2)


def test_a_size_error_of_the_backend_names_the_sizes() -> None:
    """gloo: all_gather of 31 against 30 elements, which may differ on other backends."""
    error = RaisedException("RuntimeError", "op.preamble.length <= op.nbytes. 124 vs 120", TRAIN)
    dead = {"life": ProcessState.DEAD, "exit_code": 1}
    calls = [
        replace(call(31, "all_gather", elements=30 + (rank == 2)), failed=True) for rank in range(4)
    ]
    rows = [
        row(rank, *history(30), each, **dead, raised=error if rank == 0 else None)
        for rank, each in enumerate(calls)
    ]
    verdict = judge(rows)
    assert root_of(verdict) == ("mismatched-shape", 2, TRAIN.line)
    assert verdict.root is not None
    assert "31 elements [31] where the others send 30 elements [30]" in verdict.root.message
    assert any("124 vs 120" in fact.text for fact in verdict.root.evidence)


def test_an_exit_in_the_handler_of_a_lost_connection_is_no_root() -> None:
    """SIGKILL on one host; a rank on another host exits with status 3 after its call failed."""
    killed = row(3, *history(30), life=ProcessState.DEAD, exit_code=-9, exited=100.4)
    failed = replace(call(31), failed=True, completed=31.4)
    exited = row(0, *history(30), failed, life=ProcessState.DEAD, exit_code=3, exited=100.1)
    assert root_of(judge([exited, *waiting(1, 2), killed]))[:2] == ("rank-killed", 3)


def test_a_signal_precedes_an_exit_at_about_the_same_time() -> None:
    killed = row(3, *history(30), life=ProcessState.DEAD, exit_code=-9, exited=101.0)
    exited = row(0, *history(30), life=ProcessState.DEAD, exit_code=3, exited=100.0)
    assert root_of(judge([exited, *waiting(1, 2), killed]))[:2] == ("rank-killed", 3)
    later = replace(killed, exited=110.0)
    assert root_of(judge([exited, *waiting(1, 2), later]))[:2] == ("exit-nonzero", 0)


def test_exceptions_with_other_texts_are_quoted_separately() -> None:
    rows = [
        row(
            rank,
            *history(30),
            life=ProcessState.DEAD,
            exit_code=1,
            raised=RaisedException("KeyError", f"'{key}'", EVAL),
        )
        for rank, key in enumerate(("a", "b"))
    ]
    root = judge(rows).root
    assert root is not None
    assert (
        "KeyError: 'a' at train.py:77 (rank 0); KeyError: 'b' at train.py:77 (rank 1)"
        in root.message
    )
    assert [fact.text for fact in root.evidence] == ["KeyError: 'a'", "KeyError: 'b'"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("[Errno 28] No space left on device", "checkpoint-folder-unusable"),
        (
            "[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0",
            "checkpoint-folder-unusable",
        ),
        ("The server socket has failed to listen: EADDRINUSE", "port-in-use"),
        (
            "The client socket has timed out after 20000ms while trying to connect to (localhost, 12355).",
            "master-unreachable",
        ),
        ("DataLoader timed out after 5 seconds", "dataloader-worker-died"),
        ("bad value", "python-exception-on-one-rank"),
        ("No module named 'yaml'", "python-exception-on-one-rank"),
    ],
)
def test_the_message_of_an_exception_may_state_its_cause(text: str, cause: str) -> None:
    state = row(
        2,
        *history(30),
        life=ProcessState.DEAD,
        exit_code=1,
        raised=RaisedException("RuntimeError", text, EVAL),
    )
    assert root_of(judge([*waiting(0, 1, 3), state])) == (cause, 2, EVAL.line)


def test_a_receive_from_the_wrong_rank_is_named_and_not_the_cycle() -> None:
    """Rank 3 receives from rank 1; rank 2 sends to rank 3, and rank 1 to rank 2."""
    rows = [
        row(0, call(1, "send", peer=1, site=TRAIN)),
        row(1, call(1, "send", peer=2, done=True), call(2, "send", peer=2, site=TRAIN)),
        row(2, call(1, "send", peer=3, site=TRAIN)),
        row(3, call(1, "recv", peer=1, site=EVAL)),
    ]
    verdict = judge(rows)
    assert root_of(verdict) == ("p2p-without-partner", 3, EVAL.line)
    assert verdict.root is not None
    assert "the peer should be rank 2" in verdict.root.message


def test_a_node_that_stopped_reporting_is_named_with_its_host() -> None:
    lost = {"life": ProcessState.UNKNOWN, "host": "b", "node_silent_s": 9.5}
    verdict = judge([*waiting(0, 1), row(2, *history(30), **lost), row(3, *history(31), **lost)])
    assert root_of(verdict)[:2] == ("peer-lost", 2)
    assert verdict.root is not None
    assert verdict.root.subject.host == "b"
    assert verdict.root.level is Level.UNKNOWN  # b may be the side that works
    assert verdict.root.message == (
        "host b (ranks 2-3) has not answered for 10 s: it is down, or the network between it and "
        "host a is interrupted"
    )
    facts = [fact.text for fact in verdict.root.evidence]
    assert facts == ["no answer for 9.5 s", "2 ranks alive: ranks 0-1"]
    commands = " ".join(remedy.command or "" for remedy in verdict.root.remedies)
    assert "ping -c 3 b" in commands
    assert "state=drain" not in commands
    ranks = [row(2, *history(30), **lost)]
    assert stall.act_after_s("peer-lost", ranks, stall.StallLimits()) == 0.0
    assert stall.act_after_s("peer-lost", [row(2)], stall.StallLimits()) == 60.0


def test_a_node_that_is_cut_off_from_several_others_is_at_fault() -> None:
    lost = row(2, *history(30), life=ProcessState.UNKNOWN, host="c", node_silent_s=9.5)
    first, second = waiting(0, 1)
    verdict = judge([first, replace(second, host="b"), lost])
    assert verdict.root is not None
    assert verdict.root.level is Level.ERROR
    assert "the network between it and 2 other hosts is" in verdict.root.message
    assert any("nodename=c state=drain" in (each.command or "") for each in verdict.root.remedies)


def test_a_silent_node_that_no_rank_waits_for_is_not_reported() -> None:
    lost = row(1, *history(30), life=ProcessState.UNKNOWN, host="b", node_silent_s=20.0)
    assert judge([row(0, *history(30)), lost]).root is None


def test_a_crash_is_the_root_even_if_another_node_stopped_reporting() -> None:
    lost = row(1, *history(30), life=ProcessState.UNKNOWN, host="b", node_silent_s=20.0)
    raised = RaisedException("ValueError", "bad", EVAL)
    dead = row(0, *history(30), life=ProcessState.DEAD, exit_code=1, raised=raised)
    assert root_of(judge([dead, lost]))[:2] == ("python-exception-on-one-rank", 0)


def test_a_rank_that_loads_its_own_data_does_not_wait_for_workers() -> None:
    loader = "/env/torch/utils/data/dataloader.py"
    stack = ThreadStack((LOADER, SourceLine(loader, 790, "_next_data"), TRAIN))
    state = row(2, *history(30), stacks=(stack, stack), cpu_share=1.0)
    assert root_of(judge([*waiting(0, 1, 3), state])) == ("computing-long", 2, LOADER.line)


def test_an_endless_loop_is_named_where_it_calls() -> None:
    inner = SourceLine("/job/train.py", 23, "rollout")
    state = row(2, *history(30), at=inner, cpu_share=1.0, steady=(EVAL, inner))
    rows = [*waiting(0, 1, 3), state]
    loop = EnclosingLoop(76, 80, "while True:", None)
    source = {EVAL: SourceContext("evaluate", 70, "", loops=(loop,))}
    assert root_of(judge(rows, source=source)) == ("computing-long", 2, EVAL.line)
    assert root_of(judge(rows)) == ("computing-long", 2, inner.line)
    test = Guard(22, "if too_long", "body", rank_dependent=False)
    source = {inner: SourceContext("rollout", 20, "continue", guards=(test,))}
    assert root_of(judge(rows, source=source)) == ("computing-long", 2, 22)


def test_a_rank_that_waits_for_a_processor_computes() -> None:
    state = row(2, *history(30), at=LOADER, cpu_share=0.1, runnable=True)
    assert root_of(judge([*waiting(0, 1, 3), state]))[:2] == ("computing-long", 2)


def test_a_port_in_use_is_no_lost_connection() -> None:
    error = RaisedException("DistNetworkError", "failed to listen, name: EADDRINUSE", EVAL)
    dead = row(0, *history(30), life=ProcessState.DEAD, exit_code=1, raised=error)
    assert root_of(judge([dead, *waiting(1, 2, 3)])) == ("port-in-use", 0, EVAL.line)


def test_the_exception_of_a_thread_is_quoted_for_the_rank_that_waits_for_it() -> None:
    printed = RaisedException("IndexError", "list index out of range", EVAL, "stderr.log")
    state = row(2, *history(30), at=LOADER, printed=printed)
    root = judge([*waiting(0, 1, 3), state]).root
    assert root is not None
    assert (root.cause, root.subject.line) == ("rank-missing-collective", LOADER.line)
    assert root.message.endswith(
        "; its stderr ends with IndexError: list index out of range at train.py:77 in evaluate()"
    )


@pytest.mark.parametrize("is_observed", [True, False])
def test_a_living_rank_is_named_if_the_others_timed_out(*, is_observed: bool) -> None:
    """A script's short timeout ends the others before the job counts as silent."""
    text = "Timed out waiting 3000ms for recv operation to complete"
    dead = [
        row(
            rank,
            *history(30),
            replace(call(31, done=True), failed=True),
            life=ProcessState.DEAD,
            exit_code=1,
            raised=RaisedException("RuntimeError", text, TRAIN),
        )
        for rank in (0, 2)
    ]
    late = row(1, *history(30), at=LOADER if is_observed else None)
    verdict = judge([*dead, late])
    assert root_of(verdict)[:2] == ("rank-missing-collective", 1)
    assert verdict.root is not None
    assert "never entered all_reduce #31" in verdict.root.message


def test_the_message_of_an_exception_is_not_cut_within_a_word() -> None:
    text = "[/torch/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:4711."
    dead = {"life": ProcessState.DEAD, "exit_code": 1, "raised": RaisedException("Error", text)}
    verdict = judge([row(0, *history(30), **dead), row(1, life=ProcessState.DEAD, exit_code=-9)])
    assert [each.message for each in verdict.consequences] == [
        "rank 0 then failed: Error: Connection closed by peer [10.0.0.2]:4711."
    ]
    longer = RaisedException("Error", f"{text} {'Check the logs. ' * 20}")
    assert describe_exception(longer).endswith("Check the logs. Check the…")


@pytest.mark.parametrize("died", [(0,), (0, 1)])
def test_the_headline_has_the_whole_exception(died: tuple[int, ...]) -> None:
    text = f"saving step 3 failed: {'the disk of /data is full; ' * 9}delete old checkpoints"
    dead = {
        "life": ProcessState.DEAD,
        "exit_code": 1,
        "raised": RaisedException("CheckpointFailed", text),
    }
    verdict = judge([row(rank, *history(30), **(dead if rank in died else {})) for rank in (0, 1)])
    assert verdict.root is not None
    assert text in verdict.root.message


def test_different_messages_of_one_exception_are_quoted_with_their_ranks() -> None:
    def raises(rank: int, text: str) -> RankState:
        error = RaisedException("ValueError", text, EVAL)
        return row(rank, *history(30), life=ProcessState.DEAD, exit_code=1, raised=error)

    verdict = judge([raises(0, "sample 7"), raises(1, "label"), raises(2, "label")])
    assert verdict.root is not None
    assert verdict.root.message == (
        "all ranks raised ValueError: sample 7 at train.py:77 (rank 0); ValueError: label at "
        "train.py:77 (ranks 1-2)"
    )
    verdict = judge([raises(rank, f"sample {rank}") for rank in range(6)])
    assert verdict.root is not None
    assert verdict.root.message.endswith("sample 3 at train.py:77 (rank 3); and 2 more")
    verdict = judge([*waiting(0, 3), raises(1, "sample 7"), raises(2, "label")])
    assert verdict.root is not None
    assert "rank 1 raised ValueError: sample 7" in verdict.root.message
    assert "rank 2 then failed: ValueError: label" in [
        each.message for each in verdict.consequences
    ]


def test_different_tags_are_named() -> None:
    sends = row(0, call(1, "send", peer=1, tag=2, site=EVAL))
    verdict = judge([sends, row(1, call(1, "recv", peer=0, tag=1, site=TRAIN))])
    assert verdict.root is not None
    assert verdict.root.message == (
        "rank 1 never posted the recv for rank 0's send at train.py:77: that at train.py:41 has "
        "tag 1, not 2"
    )


@pytest.mark.parametrize(("earlier", "rank"), [(120, 0), (124, 1)])
def test_a_send_larger_than_its_receive_is_named(earlier: int, rank: int) -> None:
    """The last micro-batch of rank 0 is larger, or rank 1 prepares a smaller tensor."""
    error = RaisedException("RuntimeError", "op.preamble.length <= op.nbytes. 496 vs 480", TRAIN)
    dead = {"life": ProcessState.DEAD, "exit_code": 1}
    received = [
        call(1, "recv", peer=0, elements=earlier, done=True),
        replace(call(2, "recv", peer=0, elements=120), failed=True),
    ]
    sent = [
        call(number, "send", peer=1, elements=size, site=EVAL, done=True)
        for number, size in ((1, earlier), (2, 124))
    ]
    verdict = judge([row(0, *sent, call(1)), row(1, *received, raised=error, **dead)])
    assert root_of(verdict)[:2] == ("mismatched-shape", rank)
    assert verdict.root is not None
    assert verdict.root.message == (
        "rank 0 sends 124 elements [124] at train.py:77 to rank 1, which receives 120 [120] at "
        "train.py:41"
    )
    assert "496 vs 480" in verdict.root.evidence[0].text


def test_a_rank_that_goes_on_without_its_send_is_named_and_not_the_next_one_in_turn() -> None:
    """Rank 0 receives from ranks 1, 2 and 3 at one line; rank 2 has nothing to send."""
    sends = [call(1, "send", peer=0, site=EVAL, done=rank == 1) for rank in (1, 3)]
    rows = [
        row(
            0,
            *history(6),
            call(1, "recv", peer=1, site=LOADER, done=True),
            call(1, "recv", peer=2, site=LOADER),
        ),
        row(1, *history(6), sends[0], call(7)),
        row(2, *history(6), call(7)),
        row(3, *history(6), sends[1]),
    ]
    verdict = judge(rows)
    assert root_of(verdict) == ("p2p-without-partner", 2, EVAL.line)
    assert verdict.root is not None
    assert verdict.root.message == (
        "rank 2 is in all_reduce #7 at train.py:41 without the send for rank 0's recv at data.py:12; "
        "that send is usually made at train.py:77"
    )


def test_the_new_group_of_some_ranks_is_named_and_not_the_next_one_of_all_ranks() -> None:
    """Rank 0 waits in the group that all ranks create, the others in the same one, as number 2."""
    own = call(1, "new_group", group="new_group", site=EVAL, done=True)
    second = call(2, "new_group", group="new_group", site=TRAIN)
    rows = [
        row(0, call(1, "new_group", group="new_group", site=TRAIN)),
        *(row(rank, own, second) for rank in (1, 2)),
    ]
    verdict = judge(rows)
    assert root_of(verdict) == ("new-group-by-some-ranks", 0, EVAL.line)
    assert verdict.root is not None
    assert verdict.root.message == "ranks 1-2 call new_group at train.py:77; rank 0 never does"


def test_groups_that_ranks_create_with_other_members_are_named_without_the_source() -> None:
    """Each pair of ranks creates its own group: both are torch's group 1."""
    names = {pair: f"1 of {pair}" for pair in ((0, 1), (2, 3))}
    groups = world(4) | {name: ProcessGroupInfo(name, pair) for pair, name in names.items()}
    created = call(1, "new_group", group="new_group", site=EVAL, done=True)
    rows = [
        row(0, created, call(1, group=names[0, 1], site=TRAIN)),
        row(1, created, call(1, group=names[0, 1], site=TRAIN, done=True)),
        *(row(rank, created, call(1, group=names[2, 3], site=TRAIN)) for rank in (2, 3)),
    ]
    verdict = judge(rows, groups=groups)
    assert root_of(verdict) == ("new-group-by-some-ranks", 0, EVAL.line)
    assert verdict.root is not None
    assert "with different members ([0, 1] and [2, 3])" in verdict.root.message
    rows[1] = row(1, created, at=LOADER)  # in a pause, for which rank 0 waits
    rows[2:] = (row(rank, created) for rank in (2, 3))
    assert root_of(judge(rows, groups=groups))[:2] == ("rank-missing-collective", 1)


def skipping(rank: int, calls: tuple[SourceLine, ...], skips: int) -> RankState:
    """Return a rank that makes these calls in each of nine steps; in the next one, not the first."""
    sites = [site for _ in range(9) for site in calls] + [*calls[skips:]]
    made = [
        call(number, site=site, done=True, name="all_gather" if site == EVAL else "all_reduce")
        for number, site in enumerate(sites[: 9 * len(calls)], 1)
    ]
    last = sites[9 * len(calls)]
    name = "all_gather" if last == EVAL else "all_reduce"
    return row(rank, *made, call(len(made) + 1, site=last, name=name))


@pytest.mark.parametrize(("branch", "line"), [("after", 70), ("raise", EVAL.line)])
def test_a_skipped_call_is_named_at_the_test_that_returns_before_it(branch: str, line: int) -> None:
    """A batch without boxes returns before the exchange of their number."""
    rows = [skipping(rank, (EVAL, TRAIN), skips=int(rank == 2)) for rank in range(4)]
    guards = (
        Guard(70, "if empty", branch, rank_dependent=False),
        Guard(72, "if step % 10", "after", rank_dependent=False),
    )
    source = {EVAL: SourceContext("evaluate", 60, "", guards=guards)}
    verdict = judge(rows, source=source)
    assert root_of(verdict) == ("rank-skips-collective", 2, line)
    assert verdict.root is not None
    assert ("after 'if empty' at train.py:70" in verdict.root.message) == (branch == "after")


def test_a_new_call_of_half_of_the_ranks_was_left_out_by_the_others() -> None:
    """Rank 1 kept no prediction and returns before the exchange at the end of the first epoch."""
    rows = [row(0, *history(30), call(31, "all_gather", site=EVAL)), *waiting(1)]
    left = Guard(75, "if not predictions", "after", rank_dependent=False)
    source = {EVAL: SourceContext("on_epoch_end", 74, "", guards=(left,))}
    assert root_of(judge(rows, source=source)) == ("rank-skips-collective", 1, 75)


def test_a_call_of_some_ranks_is_named_at_the_test_around_it() -> None:
    rows = [*waiting(0, 1, 2), row(3, *history(30), call(31, "all_gather", site=EVAL))]
    around = Guard(76, "if step % 20 == 0", "body", rank_dependent=False)
    source = {EVAL: SourceContext("main", 70, "", guards=(around,))}
    assert root_of(judge(rows, source=source)) == ("mismatched-operation", 3, 76)


@pytest.mark.parametrize(
    ("loops", "cause", "line"),
    [(True, "rank-skips-collective", 39), (False, "uneven-inputs", 37)],
)
def test_a_loop_that_each_step_repeats_is_not_left_early(
    *, loops: bool, cause: str, line: int
) -> None:
    """A loop over layers reduces only the layers with gradients."""
    step = SourceLine("/job/train.py", 90, "main")
    inside = [replace(call(31), caller=step) for _ in range(2)]
    after = replace(call(31, "all_gather", site=SourceLine("/job/train.py", 45)), caller=step)
    rows = [row(rank, *history(30), inside[0]) for rank in (0, 2)]
    rows.append(row(1, *history(30), after))
    layers = EnclosingLoop(37, 43, "for block in blocks:", None)
    steps = (EnclosingLoop(85, 95, "for step in range(200):", None),) if loops else ()
    left = Guard(39, "if not grads", "after", rank_dependent=False)
    source = {
        TRAIN: SourceContext("reduce", 36, "", guards=(left,), loops=(layers,)),
        SourceLine("/job/train.py", 45): SourceContext("reduce", 36, ""),
        step: SourceContext("main", 80, "", loops=steps),
    }
    assert root_of(judge(rows, source=source)) == (cause, 1, line)


def test_of_two_ranks_the_one_that_is_a_step_ahead_skipped_the_calls_of_the_other() -> None:
    """Every fifth call is a log; rank 1 logs two calls early, a step ahead of rank 0."""
    pattern = (*((("all_reduce", TRAIN),) * 4), ("all_gather", EVAL))
    before = history(17, *pattern)
    usual = row(0, *before, call(18), step=8)
    early = call(18, "all_gather", site=EVAL)
    verdict = judge([usual, row(1, *before, early, step=9)])
    assert root_of(verdict) == ("rank-skips-collective", 1, TRAIN.line)
    assert verdict.root is not None
    assert "rank 1 finished a step without all_reduce at train.py:41" in verdict.root.message
    same_step = judge([usual, row(1, *before, early, step=8)])
    assert root_of(same_step) == ("mismatched-operation", 1, EVAL.line)


@pytest.mark.parametrize("life", [ProcessState.DEAD, ProcessState.RUNNING])
def test_a_rank_whose_script_has_ended_is_the_root_even_if_its_process_still_runs(
    life: ProcessState,
) -> None:
    lost = RaisedException("RuntimeError", "Connection closed by peer [127.0.0.1]:17062", TRAIN)
    failed = replace(call(31), failed=True, completed=31.5)
    ended = ScriptEnd("end of script", None, 31.0)
    rows = [
        *(row(rank, *history(30), failed, raised=lost, exit_code=1) for rank in (0, 1)),
        row(2, *history(30), ended=ended, life=life),
    ]
    assert root_of(judge(rows)) == ("uneven-inputs", 2, TRAIN.line)
