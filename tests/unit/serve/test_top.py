"""The terminal view, driven by textual's pilot; its rows; its plain text."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from msgspec.structs import replace
from textual.widgets import DataTable, Static

from holdfast.core.live_state import LiveState
from holdfast.serve.terminal import rows
from holdfast.serve.terminal.application import StackScreen, TopApplication
from holdfast.watcher.live_columns import build_live_state
from tests.unit.cli.in_process import run_holdfast
from tests.unit.serve.served import make_run, write_live
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
    found = rows.build_rows(state(16_384, stuck=7), sort="ranks")
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
    found = rows.build_rows(state(16), text=text)
    assert {rank for row in found for rank in row.ranks} == expected


@pytest.mark.parametrize("sort", rows.SORTS)
def test_every_order_sorts_all_rows_and_reverses(sort):
    found = rows.build_rows(state(16, stuck=2), sort=sort)
    again = rows.build_rows(state(16, stuck=2), sort=sort, reverse=True)
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


def drive(folder, steps):
    """Run the application and the coroutine ``steps(application, pilot)``."""

    async def run():
        application = TopApplication(folder)
        async with application.run_test(size=(140, 40)) as pilot:
            await pilot.pause()
            await steps(application, pilot)

    asyncio.run(run())


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
        lines = str(application.screen.query_one("#stack-lines", Static).render())
        assert "/job/train.py:41 in train" in lines
        await pilot.press("escape")
        await pilot.press("escape")
        assert len(shown(application)) == 16

    drive(folder, steps)


def test_it_follows_the_folder_and_survives_its_deletion(tmp_path):
    folder = make_run(tmp_path, 8)

    async def steps(application, pilot):
        write_live(folder, 8, stuck=5)
        application._follow()
        await pilot.pause()
        assert "waits for 5" in "".join(
            str(cell) for cell in application.query_one(DataTable).get_row_at(1)
        )
        shutil.rmtree(folder)
        application._follow()
        await pilot.pause()
        assert "has no live state yet" in text_of(application, "#problems")
        assert len(shown(application)) == 8

    drive(folder, steps)


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
