"""Which alerts are sent: level, quiet hours, duplicates, rate."""

import pytest

from holdfast.core.errors import InvalidValue
from holdfast.launcher.alert_filter import (
    MAX_ALERTS,
    Alert,
    AlertFilter,
    AlertLevel,
    QuietHours,
    parse_quiet_hours,
    read_sent_alerts,
    write_sent_alerts,
)

WARNING = Alert(title="w", text="w.", kind="warning", same=("w",))
FAILURE = Alert(title="f", text="f.", kind="failure", same=("f",))
STOP = Alert(title="s", text="s.", kind="failure", same=("f",), last=True)
SUCCESS = Alert(title="ok", text="ok.", kind="success", last=True)


def test_repeated_alerts_are_held_back_and_counted():
    alerts = AlertFilter()
    first, other = (
        Alert(title="a", text="a.", same=("a",)),
        Alert(title="b", text="b.", same=("b",)),
    )
    assert alerts.admit(first, 0.0) == first
    assert [alerts.admit(first, at) for at in (1.0, 2.0, 599.0)] == [None] * 3
    assert alerts.admit(other, 3.0) == other
    repeated = alerts.admit(first, 601.0)
    assert repeated is not None
    assert repeated.text == "a. (3 like it were held back.)"


def test_alerts_per_hour_are_limited_except_the_last_one():
    alerts = AlertFilter()
    sent = [alerts.admit(Alert(title="", text="", same=(number,)), number) for number in range(20)]
    assert sum(each is not None for each in sent) == MAX_ALERTS
    last = alerts.admit(Alert(title="", text="over.", last=True), 30.0)
    assert last is not None
    assert last.text == "over. (8 of the alerts before it were held back.)"
    assert alerts.admit(Alert(title="", text="later", same=(99,)), 3700.0) is not None


@pytest.mark.parametrize(
    ("level", "sent"),
    [
        (AlertLevel.WARNING, [WARNING, FAILURE, STOP, SUCCESS]),
        (AlertLevel.FAILURE, [FAILURE, STOP, SUCCESS]),
        (AlertLevel.STOP, [STOP]),
    ],
)
def test_levels(level, sent):
    alerts = (WARNING, FAILURE, STOP, SUCCESS)
    assert [each for each in alerts if AlertFilter(level).admit(each, 0.0)] == sent


def test_quiet_hours_hold_back_all_but_a_stop():
    alerts = AlertFilter(quiet=QuietHours(22 * 60, 7 * 60))
    assert alerts.admit(FAILURE, 0.0, minute=3 * 60) is None
    stop = alerts.admit(STOP, 1.0, minute=3 * 60)
    assert stop is not None
    assert stop.text == "s. (1 of the alerts before it were held back.)"
    assert alerts.admit(WARNING, 2.0, minute=12 * 60) is not None


@pytest.mark.parametrize(
    ("text", "quiet", "loud"),
    [
        ("22:00-07:00", [0, 22 * 60, 6 * 60 + 59], [7 * 60, 21 * 60 + 59]),
        (" 9:30 - 10:15 ", [9 * 60 + 30, 10 * 60 + 14], [0, 10 * 60 + 15]),
    ],
)
def test_a_time_of_day_may_span_midnight(text, quiet, loud):
    hours = parse_quiet_hours(text)
    assert all(map(hours.contains, quiet))
    assert not any(map(hours.contains, loud))


@pytest.mark.parametrize("text", ["night", "25:00-07:00", "22-7", "22:00"])
def test_another_text_is_no_time_of_day(text):
    with pytest.raises(InvalidValue, match="22:00-07:00, in local time"):
        parse_quiet_hours(text)


def test_a_later_run_holds_back_what_an_earlier_one_sent(tmp_path):
    file, first = tmp_path / "alerts.json", AlertFilter()
    assert first.admit(STOP, 1000.0) is not None
    write_sent_alerts(file, first.sent)
    assert AlertFilter(sent=read_sent_alerts(file)).admit(STOP, 1500.0) is None
    assert AlertFilter(sent=read_sent_alerts(file)).admit(FAILURE, 1500.0) is not None
    assert AlertFilter(sent=read_sent_alerts(file)).admit(STOP, 1700.0) is not None
    assert AlertFilter(sent=read_sent_alerts(file)).admit(SUCCESS, 1500.0) is not None


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": "holdfast/alerts/9", "sent": {}}'])
def test_an_unreadable_file_counts_as_empty(tmp_path, content):
    assert read_sent_alerts(tmp_path / "none") == {}
    (tmp_path / "alerts.json").write_bytes(content)
    assert read_sent_alerts(tmp_path / "alerts.json") == {}
