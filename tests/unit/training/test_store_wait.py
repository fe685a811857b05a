"""wait_until: growing pauses, a limit that may shrink, and aborts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from holdfast.training import store_wait
from holdfast.training.store_wait import wait_until


class Clock:
    """A clock that only sleeping advances."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(store_wait, "time", clock)
    return clock


def ready_after(polls: int) -> Callable[[], bool]:
    remaining = iter([False] * polls)
    return lambda: next(remaining, True)


def test_pauses_double_up_to_the_maximum(clock: Clock) -> None:
    assert wait_until(ready_after(5), 60, min_pause_s=1, max_pause_s=4)
    assert clock.pauses == [1, 2, 4, 4, 4]


def test_no_pause_if_ready_at_once(clock: Clock) -> None:
    assert wait_until(lambda: True, 0)
    assert clock.pauses == []


def test_last_pause_ends_at_the_limit(clock: Clock) -> None:
    assert not wait_until(lambda: False, 5, min_pause_s=2, max_pause_s=4)
    assert clock.pauses == [2, 3]


def test_limit_may_shrink_during_the_wait(clock: Clock) -> None:
    def limit_s() -> float:
        return 60 if clock.now < 103 else 4

    assert not wait_until(lambda: False, limit_s, min_pause_s=2, max_pause_s=2)
    assert sum(clock.pauses) == 4


def test_abort_ends_the_wait(clock: Clock) -> None:
    def check_abort() -> None:
        if clock.now > 100:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        wait_until(lambda: False, 60, check_abort=check_abort)
    assert clock.pauses == [store_wait.MIN_POLL_S]
