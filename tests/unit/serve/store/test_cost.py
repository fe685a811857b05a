"""What failures cost: each figure by its definition in docs/history.md."""

import pytest

from holdfast.core.failures import JobState, RecoveryAction
from holdfast.serve.store.cost import PREEMPTION, compute_cost
from holdfast.serve.store.database import HistoryStore
from holdfast.serve.store.index import index_folders
from holdfast.serve.store.page import cost_page, draw_costs
from holdfast.serve.store.queries import read_runs
from tests.unit.serve.store.past_runs import BEGAN, ended, failed, started, write_run

H = 3600.0


@pytest.fixture
def cost_of(tmp_path):
    def compute(*records, since=0.0):
        store = HistoryStore(str(tmp_path / "h"), create=True)
        index_folders(store, [write_run(tmp_path / "r", records)])
        return compute_cost(read_runs(store, since), since, BEGAN + 24 * H)

    return compute


def test_lost_is_the_time_from_the_checkpoint_to_the_next_start(cost_of):
    cost = cost_of(started(0), failed(1000), started(1100, 1), ended(3600))
    (row,) = cost.causes
    assert (row.code, row.cause, row.incidents) == ("PROC006", "rank-killed", 1)
    assert row.repeated_gpu_hours == pytest.approx(150 * 8 / H)  # from 800 to 950
    assert row.silent_gpu_hours == pytest.approx(50 * 8 / H)
    assert row.down_gpu_hours == pytest.approx(100 * 8 / H)
    assert cost.lost_gpu_hours == row.gpu_hours == pytest.approx(300 * 8 / H)
    assert (cost.run_hours, cost.gpu_hours) == (1.0, 8.0)
    assert cost.goodput == pytest.approx(1 - 300 / 3600)
    assert cost.mean_hours_between_failures == 1.0
    assert cost.mean_gpu_hours_between_failures == 8.0


def test_without_a_checkpoint_everything_since_the_start_is_lost(cost_of):
    state = JobState(progressed=BEGAN + 950)
    cost = cost_of(started(100), failed(1000, state=state), started(1100, 1), ended(3600))
    assert cost.lost_gpu_hours == pytest.approx(1000 * 8 / H)


def test_an_unknown_progress_is_that_of_the_decision(cost_of):
    cost = cost_of(started(0), failed(1000, state=JobState()), started(1100, 1), ended(3600))
    assert cost.causes[0].repeated_gpu_hours == pytest.approx(1000 * 8 / H)
    assert cost.causes[0].silent_gpu_hours == 0.0


def test_a_job_that_stops_is_down_until_its_end(cost_of):
    cost = cost_of(started(0), failed(1000, action=RecoveryAction.STOP), ended(1060, 1))
    assert cost.causes[0].down_gpu_hours == pytest.approx(60 * 8 / H)


def test_two_failures_lose_no_second_twice(cost_of):
    stale = JobState(saved_at=BEGAN + 100, progressed=BEGAN + 100)
    cost = cost_of(
        started(0),
        failed(1000),
        started(1100, 1),
        failed(1200, 1, state=stale),
        started(1300, 2),
        ended(2000),
    )
    assert cost.lost_gpu_hours == pytest.approx((300 + 200) * 8 / H)


def test_reports_are_no_failures_and_preemptions_are_counted_apart(cost_of):
    preempted = JobState(saved_at=BEGAN + 990, progressed=BEGAN + 995, preempted=143)
    cost = cost_of(
        started(0),
        failed(500, action=RecoveryAction.REPORT, cause=("PERF001", "slow-rank")),
        failed(1000, action=RecoveryAction.STOP, state=preempted),
        ended(1005, 143),
    )
    assert (cost.failures, cost.preemptions) == (0, 1)
    assert [row.cause for row in cost.causes] == [PREEMPTION]
    assert cost.lost_gpu_hours == pytest.approx(15 * 8 / H)
    assert cost.mean_hours_between_failures is None


def test_ranks_are_counted_start_by_start(cost_of):
    cost = cost_of(started(0), failed(1800), started(1800, 1, world_size=4), ended(3600))
    assert cost.gpu_hours == pytest.approx(0.5 * 8 + 0.5 * 4)


def test_the_window_cuts_runs_and_losses(cost_of):
    cost = cost_of(
        started(0), failed(1000), started(1100, 1), failed(3400, 1, state=JobState()), ended(3600),
        since=BEGAN + 2600,
    )  # fmt: skip
    assert cost.run_hours == pytest.approx(1000 / H)
    assert (cost.failures, cost.lost_gpu_hours) == (1, pytest.approx(1000 * 8 / H))
    assert cost.goodput == pytest.approx(0.0)


def test_no_runs_have_no_figures():
    cost = compute_cost([], 0.0, BEGAN)
    assert (cost.goodput, cost.mean_hours_between_failures, cost.causes) == (None, None, [])
    assert "No run in this period" in cost_page(cost, [], "h")


def test_the_plot_has_one_stack_per_bar_and_the_page_requests_nothing(cost_of):
    cost = cost_of(
        started(0),
        failed(1000),
        started(1100, 1),
        failed(8 * H, 1, cause=("GPU001", "<b>")),
        ended(9 * H, 1),
    )
    plot = draw_costs(cost)
    assert plot.legend == ("<b>", "rank-killed")
    assert [part.colour for part in plot.parts] == [1, 0]
    page = cost_page(cost, [], "h")
    assert "&lt;b&gt;" in page
    assert "<b>:" not in page
    assert "http" not in page.replace("http-equiv", "")
