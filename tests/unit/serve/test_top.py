"""The terminal view, driven by textual's pilot; its rows; its plain text."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import threading

import pytest
from msgspec.structs import replace
from textual.widgets import DataTable, Static

from holdfast.core.errors import MissingFile
from holdfast.core.live_state import LiveGroup, LiveState
from holdfast.core.trace_file import TraceWriter
from holdfast.serve.live.source import FolderSource, ServerSource, is_address
from holdfast.serve.live.stacks import RankStack, read_stack
from holdfast.serve.terminal import rows
from holdfast.serve.terminal.application import StackScreen, TopApplication
from holdfast.serve.terminal.rows import TopView
from holdfast.watcher.live_columns import build_live_state
from tests.unit.cli.in_process import run_holdfast
from tests.unit.serve.served import RUN, make_run, serving, write_live
from tests.unit.serve.simulated_job import OVERHEATED, simulate

AT = 1_700_000_000.0


def state(world_size: int, stuck: int | None = None) -> LiveState:
    return build_live_state(simulate(world_size, AT, step=7, stuck=stuck), {}, [OVERHEATED])


def test_a_small_job_has_a_row_per_rank_and_the_slow_one_is_first():
    found = rows.build_rows(state(16))
    assert len(found) == 16
    assert found[0].ranks == (3,)
    assert found[0].cells()[:3] == ("3", "node000", "7")


def test_thousands_of_ranks_are_folded_into_what_differs():
    found = rows.build_rows(state(16_384, stuck=7), TopView(sort="ranks"))
    assert len(found) == 4
    assert sum(len(row.ranks) for row in found) == 16_384
    (stuck,) = [row for row in found if 7 in row.ranks]
    assert stuck.ranks == (7,)
    assert stuck.state == "computing, awaited by 16,383 ranks"
    assert "all_reduce #22 of default_pg, waits for 7" in {row.state for row in found}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9", {9}), ("node001", {8, 9, 10, 11, 12, 13, 14, 15}), ("evaluation", {5})],
)
def test_a_filter_keeps_a_rank_a_host_or_a_text(text, expected):
    found = rows.build_rows(state(16), TopView(text=text))
    assert {rank for row in found for rank in row.ranks} == expected


@pytest.mark.parametrize("sort", rows.SORTS)
def test_every_order_sorts_all_rows_and_reverses(sort):
    found = rows.build_rows(state(16, stuck=2), TopView(sort=sort))
    again = rows.build_rows(state(16, stuck=2), TopView(sort=sort, reverse=True))
    assert sorted(row.ranks for row in found) == [(rank,) for rank in range(16)]
    assert [row.ranks for row in found] != [row.ranks for row in again]


def test_waits_groups_and_findings_are_lines():
    lines = rows.group_lines(state(16, stuck=2))
    assert lines[:2] == [
        "0-1,3-15 wait for 2 in all_reduce #22 of default_pg for 4.0 s at /job/train.py:41 in train",
        "default_pg (nccl, 16 ranks): #22, not entered by 1 rank",
    ]
    assert rows.finding_lines(state(16)) == [
        "warning node001: GPU 3 <b>throttled</b>: temperature (GPU010)"
    ]


def test_a_state_without_ranks_is_no_error():
    assert rows.build_rows(LiveState()) == []
    assert (
        rows.head_line(replace(LiveState(), at=1.0, silent_since=1.0))
        == "0 ranks on 0 nodes, generation 0, no steps counted"
    )


async def settle(application, pilot):
    """Wait until what is being read is shown."""
    await application.workers.wait_for_complete()
    await pilot.pause()


def drive(run, steps):
    """Run the application on a folder or a server, and the coroutine ``steps``."""

    async def drive_it():
        source = run if isinstance(run, ServerSource) else FolderSource(run)
        application = TopApplication(source)
        async with application.run_test(size=(140, 40)) as pilot:
            await settle(application, pilot)
            await steps(application, pilot)

    asyncio.run(drive_it())


def shown(application):
    table = application.query_one(DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


def text_of(application, name):
    return str(application.query_one(name, Static).render())


def test_keys_sort_reverse_filter_and_open_a_rank(tmp_path):
    folder = make_run(tmp_path, 16, stuck=2)

    async def steps(application, pilot):
        assert len(shown(application)) == 16
        await pilot.press("s")
        assert "order: step" in text_of(application, "#head")
        for _ in range(len(rows.SORTS) - 3):
            await pilot.press("s")
        await pilot.press("s")
        assert shown(application) == [str(rank) for rank in range(16)]
        await pilot.press("r")
        assert shown(application)[0] == "15"
        await pilot.press("slash", "2", "enter")
        assert shown(application) == ["2"]
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(application.screen, StackScreen)
        await settle(application, pilot)
        lines = str(application.screen.query_one("#stack-lines", Static).render())
        assert "it runs on node000; there: holdfast attach" in lines
        assert "Stack in incident 0" in lines
        assert "/job/train.py:41 in train" in lines
        await pilot.press("escape")
        await pilot.press("escape")
        assert len(shown(application)) == 16

    drive(folder, steps)


def test_it_follows_the_folder_and_survives_its_deletion(tmp_path):
    folder = make_run(tmp_path, 8)

    async def steps(application, pilot):
        write_live(folder, 8, stuck=5)
        application.follow()
        await settle(application, pilot)
        assert "waits for 5" in "".join(
            str(cell) for cell in application.query_one(DataTable).get_row_at(1)
        )
        shutil.rmtree(folder)
        application.follow()
        await settle(application, pilot)
        assert "has no live state yet" in text_of(application, "#problems")
        assert len(shown(application)) == 8

    drive(folder, steps)


def test_a_block_per_process_group_folds_its_ranks_and_leaves_out_unknown_members():
    found = rows.build_rows(state(128, stuck=7), TopView(blocks=True))
    heads = [row for row in found if row.is_head]
    assert heads[0].cells()[0] == "0-127 (128)"
    assert heads[0].state == "group default_pg (nccl, 128 ranks): #22, not entered by 1 rank"
    assert heads[1].ranks == tuple(range(8))
    at = found.index(heads[1])
    assert [row.ranks for row in found[at + 1 : at + 3]] == [(7,), (3,)]
    damaged = replace(
        state(16), groups=(LiveGroup("g", "", 2, 1, 0, ((0, 0, 10**18), (99, 1, 1))),)
    )
    assert found != rows.build_rows(damaged, TopView(blocks=True))


def test_a_key_shows_blocks(tmp_path):
    async def steps(application, pilot):
        await pilot.press("b")
        assert "a block per process group" in text_of(application, "#head")
        assert shown(application)[0] == "0-15 (16)"

    drive(make_run(tmp_path, 16, stuck=2), steps)


def test_a_rank_of_this_host_is_sampled_now(tmp_path):
    """The trace file names the process: here, the test itself."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"traces": str(tmp_path)}))
    TraceWriter(tmp_path / "rank3.trace", rank=3, world_size=4).map.close()
    stack = read_stack(folder, 3)
    assert (stack.origin, stack.why) == ("now", "")
    assert any("test_a_rank_of_this_host_is_sampled_now" in frame for frame in stack.frames)
    gone = read_stack(folder, 2, host="node7")
    assert gone == RankStack(why="it runs on node7; there: holdfast attach")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a folder to another user")
def test_a_folder_of_another_user_cannot_name_a_process(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps({"traces": str(tmp_path)}))
    TraceWriter(tmp_path / "rank3.trace", rank=3, world_size=4).map.close()
    os.chown(folder, 12345, -1)
    assert read_stack(folder, 3).why == "its process is of another user than the run folder"


@pytest.mark.parametrize("path", ["", f"/run/{RUN}", "/?token=secret"])
def test_it_follows_a_server_and_keeps_the_last_state_when_it_ends(tmp_path, path):
    make_run(tmp_path, 8, stuck=2)
    with serving(tmp_path, "secret") as address:
        source = ServerSource(address.removeprefix("http://") + path, "secret")
        assert source.name == f"{address}/run/{RUN}"
        assert "/job/train.py:41 in train" in source.stack(2, "").frames

    async def steps(application, _):
        assert "it cannot be reached" in text_of(application, "#problems")
        assert "no live state" in text_of(application, "#problems")

    drive(source, steps)
    assert "it cannot be reached" in source.stack(2, "").why


def test_the_table_of_a_server_is_printed_and_a_wrong_token_is_one_line(tmp_path):
    make_run(tmp_path, 8, stuck=2)
    with serving(tmp_path, "secret") as address:
        done = run_holdfast("top", f"{address}/?token=secret")
        assert "wait for 2 in all_reduce" in done.stdout
        refused = run_holdfast("top", address)
    assert refused.returncode == 2
    assert "token required" in refused.stderr
    with serving(tmp_path) as address:
        missing = run_holdfast("top", f"{address}/run/none")
    assert missing.returncode == 2
    assert "there is no run 'none'" in missing.stderr


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n<p>", "its answer is not that of"),
        (b"HTTP/1.0 303 x\r\nLocation: http://127.0.0.1:1/\r\n\r\n", "status 303"),
    ],
)
def test_what_is_no_holdfast_serve_is_one_line(answer, problem):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def reply():
            client = server.accept()[0]
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        with pytest.raises(MissingFile, match=problem):
            ServerSource(f"127.0.0.1:{server.getsockname()[1]}", None)
        thread.join()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("node0:8765", True), ("http://node0", True), ("runs/a", False), ("node0", False), ("a:b", False), (":80", False)],
)  # fmt: skip
def test_an_address_is_a_url_or_host_and_port(text, expected):
    assert is_address(text) is expected


def test_without_a_terminal_it_prints_the_table_once(tmp_path):
    make_run(tmp_path, 16, stuck=2)
    done = run_holdfast("top", tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("16 ranks on 2 nodes, generation 1, step 107, ")
    assert "wait for 2 in all_reduce" in done.stdout


def test_a_folder_without_runs_is_one_sentence(tmp_path):
    done = run_holdfast("top", tmp_path)
    assert done.returncode == 2
    assert "it contains no run" in done.stderr
