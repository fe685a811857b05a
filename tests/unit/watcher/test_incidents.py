"""What the page of an incident shows of each rank."""

from __future__ import annotations

import pytest

from holdfast.watcher.incidents import _describe_end


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [(None, "ended"), (0, "ended (0)"), (3, "ended (3)"), (-6, "ended by SIGABRT")],
)
def test_the_end_of_a_rank_is_described_by_its_signal_or_status(exit_code, text):
    assert _describe_end(exit_code) == text
