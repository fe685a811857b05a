"""Limits of calls that name none: by phase, size, bandwidth and history, and what a user's file may say."""

from __future__ import annotations

import math
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import links
from holdfast.errors import BadValue, HoldfastError, MissingFile, UnknownName
from holdfast.measured.fit import Fit
from holdfast.runtime.comm import history, limits
from holdfast.runtime.comm.limits import limit_s


class Group:
    """Something that a weak reference can be held to."""


GROUP = Group()
STATE = SimpleNamespace(
    epoch=1, name="0", group=GROUP, ranks=(0, 1), device=SimpleNamespace(type="cpu"), backend_for=lambda _: "gloo"
)
SMALL, LARGE = 8, 467_019_003 * 4
MINUTE = 60.0


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.delenv("HOLDFAST_TIMEOUTS", raising=False)
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))  # where the user's own measurements are kept
    monkeypatch.delenv("HOLDFAST_HISTORY", raising=False)
    limits.forget()
    history.forget()
    yield
    limits.forget()
    history.forget()


def mine(monkeypatch, tmp_path, text):
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    monkeypatch.setenv("HOLDFAST_TIMEOUTS", str(file))
    limits.forget()
    return file


def test_the_phase_and_the_size_choose():
    assert limit_s(STATE, LARGE) == 10 * MINUTE
    assert limit_s(STATE, SMALL) == 5 * MINUTE
    with holdfast.phase("evaluation of set 2"):
        assert limit_s(STATE, LARGE) == limit_s(STATE, SMALL) == 30 * MINUTE
        with holdfast.phase("checkpoint", budget="40m"):  # within it, the longer budget of another
            assert limit_s(STATE, SMALL) == 40 * MINUTE
        assert limit_s(STATE, SMALL) == 30 * MINUTE
    with holdfast.phase("checkpoint", budget="1s"):
        assert limit_s(STATE, SMALL) == 10 * MINUTE
    assert limit_s(STATE, SMALL) == 5 * MINUTE


def test_a_phase_ends_with_an_exception_and_is_its_threads_own():
    with pytest.raises(KeyError), holdfast.phase("validation"):
        raise KeyError
    assert limit_s(STATE, SMALL) == 5 * MINUTE
    seen = []
    with holdfast.phase("validation"):
        aside = threading.Thread(target=lambda: seen.append(limit_s(STATE, SMALL)))
        aside.start()
        aside.join()
    assert seen == [5 * MINUTE]


def test_a_slow_link_has_longer_and_never_more_than_the_ceiling():
    limits.measured(STATE, 10_000_000, 10.0)  # 1 MB/s
    assert limit_s(STATE, SMALL) == 5 * MINUTE
    assert limit_s(STATE, 50_000_000) == pytest.approx(20 * (1 << 26) / 1e6)
    assert limit_s(STATE, LARGE) == 2 * 60 * MINUTE
    limits.measured(STATE, 10_000_000, 0.01)  # it can do 1 GB/s: the first call waited for somebody
    assert limit_s(STATE, LARGE) == 10 * MINUTE
    limits.measured(STATE, 1000, 10.0)  # tells of no bandwidth
    assert limits.bandwidth(STATE) == pytest.approx(1e9)
    other = SimpleNamespace(epoch=1, name="7", group=None)
    assert limits.bandwidth(other) is None


@given(
    st.integers(0, 1 << 45),
    st.one_of(st.none(), st.floats(1, 1e13)),
    st.sampled_from(["", "eval", "Testing", "save"]),
    st.floats(0, 1e5),
)
def test_never_below_the_floor_nor_above_the_ceiling(nbytes, speed, phase, budget):
    limits.forget()
    if speed is not None:
        limits.measured(STATE, 1 << 40, (1 << 40) / speed)
    rules = limits.policy()
    floor = rules.evaluation if phase in ("eval", "Testing") else rules.training if phase else rules.small
    with holdfast.phase(phase, budget=budget):
        chosen = limit_s(STATE, nbytes)
        assert chosen == limit_s(STATE, nbytes)  # as it is remembered
    assert max(floor, budget) <= chosen <= max(rules.ceiling, budget)


@pytest.mark.parametrize(("given", "seconds"), [(90, 90), ("90s", 90), ("10m", 600), (0.25, 0.25), ("1500ms", 1.5)])
def test_the_users_own_wins(given, seconds):
    assert limit_s(STATE, LARGE, timeout=given) == seconds


@pytest.mark.parametrize("given", [0, -1, "0s", math.nan, math.inf, -math.inf, "soon", "", "-5s", "nan"])
def test_what_is_no_positive_time_is_one_sentence(given):
    with pytest.raises(BadValue) as caught:
        limit_s(STATE, LARGE, timeout=given)
    assert "\n" not in str(caught.value)


# The user's file


def test_a_file_overrides_key_by_key(monkeypatch, tmp_path):
    mine(monkeypatch, tmp_path, 'training = "20m"\nsmall = 7\nevaluation_words = ["prüfung"]\n')
    assert limit_s(STATE, LARGE) == 20 * MINUTE
    assert limit_s(STATE, SMALL) == 7
    with holdfast.phase("evaluation"):
        assert limit_s(STATE, SMALL) == 20 * MINUTE
    with holdfast.phase("Prüfung"):
        assert limit_s(STATE, SMALL) == 30 * MINUTE  # ours


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ('# mine\ntrainig = "20m"\n', UnknownName, ["line 2", "'trainig'", "did you mean training?"]),
        ('small = "5m"\ntraining = "soon"\n', BadValue, ["line 2", "training", "'soon'"]),
        ("training = 0\n", BadValue, ["line 1", "0 is not a positive time"]),
        ("training = nan\n", BadValue, ["line 1", "nan"]),
        ("training = true\n", BadValue, ["line 1", "True"]),
        ("training = 1979-05-27\n", BadValue, ["line 1"]),
        ("bandwidth_factor = -1\n", BadValue, ["line 1", "-1"]),
        ("small_bytes = 1.5\n", BadValue, ["line 1", "1.5"]),
        ('evaluation_words = "eval"\n', BadValue, ["line 1", "list of words"]),
        ("[training]\nlimit = 3\n", BadValue, ["line 1", "training"]),
        ("a = 1\na = 2\n", BadValue, ["line 2"]),
        ("training = \n", BadValue, ["line 1"]),
        (b"\xff\xfe\x00", BadValue, ["no TOML"]),
        ("x = " + "[" * 100_000, BadValue, ["no TOML"]),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(monkeypatch, tmp_path, text, kind, said):
    file = mine(monkeypatch, tmp_path, text)
    with pytest.raises(kind) as caught:
        limit_s(STATE, LARGE)
    assert [word for word in (str(file), *said) if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["nowhere.toml", "."])
def test_a_file_that_is_not_there_is_one_sentence(monkeypatch, tmp_path, place):
    monkeypatch.setenv("HOLDFAST_TIMEOUTS", str(tmp_path / place))
    with pytest.raises(MissingFile, match="HOLDFAST_TIMEOUTS"):
        limit_s(STATE, LARGE)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_policy_or_a_sentence(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(data)
    with suppress(HoldfastError):
        assert set(limits.read(file)) <= set(limits.Policy.__struct_fields__)


# What was learnt


def trouble(**different):
    call = SimpleNamespace(words="all_reduce of 467,019,003 float32", state=STATE, limit_s=600.0, number=3)
    call.__dict__.update(different)
    return call


def noted(call, nbytes=LARGE, seconds=600.0, outcome="timeout", *, absent=False):
    limits.note(call, seconds, nbytes, outcome, absent=absent)


def test_two_time_outs_of_a_line_double_its_limit_and_the_log_says_why(monkeypatch, caplog):
    monkeypatch.setattr(history.hosts, "known_layout", lambda _: None)
    monkeypatch.setattr(history, "site", lambda: "train.py:41")
    monkeypatch.setattr(limits, "site", lambda: "train.py:41")
    limits.measured(STATE, 800_000_000, 1.0)
    assert limit_s(STATE, LARGE) == 600
    noted(trouble(number=3))
    assert limit_s(STATE, LARGE) == 600
    noted(trouble(number=9))
    assert limit_s(STATE, LARGE) == 1200
    assert limit_s(STATE, SMALL) == 300  # of another size
    said = "limit of all_reduce of 467,019,003 float32 at train.py:41 raised from 10 min 00 s to 20 min 00 s: "
    assert said + "2 time-outs in 1 run took 10 min 00 s or more while bandwidth was 0.8 GB/s" in caplog.text
    assert limit_s(STATE, LARGE) == 1200
    assert caplog.text.count(said) == 1
    monkeypatch.setattr(limits, "site", lambda: "train.py:99")
    assert limit_s(STATE, LARGE) == 600  # of another line


def test_a_limit_of_the_users_own_teaches_the_policy_nothing(monkeypatch):
    monkeypatch.setattr(history.hosts, "known_layout", lambda _: None)
    monkeypatch.setattr(limits, "site", lambda: history.known().troubles[0].site)
    for number in range(4):
        noted(trouble(number=number, limit_s=5.0), seconds=5.0)
    (kept,) = history.known().troubles
    assert (kept.timeouts, kept.at_limit) == (4, 0)
    assert limit_s(STATE, LARGE) == 600


def test_a_limit_that_is_learnt_stays_below_the_ceiling(monkeypatch):
    monkeypatch.setattr(history.hosts, "known_layout", lambda _: None)
    monkeypatch.setattr(limits, "site", lambda: history.known().troubles[0].site)
    seen = []
    for number in range(20):
        noted(trouble(number=number, limit_s=600.0 * 2 ** (number // 2)))
        seen.append(limit_s(STATE, LARGE))
    assert seen[:5] == [600, 1200, 1200, 2400, 2400]
    assert set(seen[8:]) == {2 * 60 * MINUTE}
    (kept,) = history.known().troubles
    assert kept.site.partition(":")[0] == Path(__file__).name


def measured_before(ranks, bandwidth, latency_s=0.0, hosts=1):
    links.keep([
        Fit(collective="all_reduce", way="torch", backend="gloo", dtype="float32", ranks=ranks, hosts=hosts,
            latency_s=latency_s, latency_interval_s=(latency_s, latency_s), bandwidth=bandwidth,
            bandwidth_interval=(bandwidth, None), worst_error=0.0),
    ])  # fmt: skip
    limits.forget()


def test_what_was_measured_before_stands_for_a_group_that_has_moved_nothing_yet():
    measured_before(ranks=2, bandwidth=10e6)
    assert limit_s(STATE, LARGE) == pytest.approx(20 * (1 << 31) / 10e6)  # of the power of two: an hour at 10 MB/s
    assert limit_s(STATE, SMALL) == 5 * MINUTE
    limits.measured(STATE, LARGE, LARGE / 1e9)  # what the group itself does counts more
    assert limit_s(STATE, LARGE) == 10 * MINUTE


def test_what_was_measured_over_other_ranks_or_cannot_be_read_changes_nothing():
    measured_before(ranks=3, bandwidth=10e6)
    assert limit_s(STATE, LARGE) == 10 * MINUTE
    links.place().write_bytes(b'{"schema": "holdfast/links/1", "fits": [{"bandwidth": -1}]}')
    limits.forget()
    assert limit_s(STATE, LARGE) == 10 * MINUTE


def test_a_fit_never_makes_a_limit_longer_than_the_ceiling():
    measured_before(ranks=2, bandwidth=1.0, latency_s=1e6)
    assert limit_s(STATE, SMALL) == limit_s(STATE, LARGE) == 120 * MINUTE
