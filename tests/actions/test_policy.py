"""What is done after a verdict: the budget of restarts, --on-hang, and what happened before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.actions.policy import Budget, Course, OnHang, decide
from holdfast.findings import Finding, Level, Subject, Verdict


def verdict(rank=2, line=41):
    subject = Subject(rank=rank, file="train.py", line=line)
    return Verdict(
        question="?", root=Finding(code="SYNC002", cause="c", level=Level.ERROR, message="m", subject=subject)
    )


@pytest.mark.parametrize(
    ("hang", "on_hang", "used", "course", "reason"),
    [
        (True, OnHang.RESTART, 0, Course.RESTART, "restart 1 of 2"),
        (True, OnHang.RESTART, 2, Course.STOP, "stop: all 2 restarts are used"),
        (True, OnHang.STOP, 0, Course.STOP, "stop, as --on-hang stop says"),
        (True, OnHang.REPORT, 0, Course.REPORT, "none, as --on-hang report says: the job is left as it is"),
        (True, OnHang.REPORT, 2, Course.REPORT, "none, as --on-hang report says: the job is left as it is"),
        (False, OnHang.REPORT, 1, Course.RESTART, "restart 2 of 2"),
        (False, OnHang.STOP, 1, Course.RESTART, "restart 2 of 2"),
        (False, OnHang.STOP, 2, Course.STOP, "stop: all 2 restarts are used"),
    ],
)
def test_a_hang_is_the_users_choice_and_a_death_is_the_budgets(hang, on_hang, used, course, reason):
    decision = decide(verdict(), hang=hang, on_hang=on_hang, budget=Budget(used, 2))
    assert (decision.course, decision.reason) == (course, reason)


def test_without_a_budget_the_reason_names_the_option():
    assert decide(None, hang=False, on_hang=OnHang.RESTART, budget=Budget(0, 0)).reason == (
        "stop: --max-restarts allows no restart"
    )


def test_what_happened_before_at_the_same_place_is_said():
    history = [verdict(), verdict(line=7), verdict()]
    restart = decide(verdict(), hang=True, on_hang=OnHang.RESTART, budget=Budget(1, 3), history=history)
    assert restart.reason == "restart 2 of 3; the same happened 2 times before"
    assert decide(verdict(rank=1), hang=True, on_hang=OnHang.RESTART, budget=Budget(1, 3), history=history).reason == (
        "restart 2 of 3"
    )


@given(st.booleans(), st.sampled_from(OnHang), st.integers(0, 9), st.integers(0, 9), st.booleans())
def test_never_more_restarts_than_allowed(hang, on_hang, used, most, judged):
    decision = decide(verdict() if judged else None, hang=hang, on_hang=on_hang, budget=Budget(used, most))
    assert decision.course is not Course.RESTART or used < most
    assert decision.course is not Course.REPORT or hang
