"""What is done after a failure: what the user allows, what was tried before, and whether the job got any further."""

import pytest

from holdfast.actions.policy import Course, Failure, OnHang, Terms, decide


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
    failure = Failure(at=100.0, generation=used, hang=hang, cause="c", rank=2, file="train.py", line=41)
    decision = decide(failure, Terms(on_hang=on_hang, restarts=2))
    assert (decision.course, decision.reason) == (course, reason)
