"""Default timeouts: by phase, size, bandwidth and history, and the user's file."""

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
from holdfast.core import link_measurements
from holdfast.core.errors import HoldfastError, InvalidValue, MissingFile, UnknownName
from holdfast.core.measurements.fit import AlphaBetaFit
from holdfast.training.collectives import timeout_history
from holdfast.training.collectives import timeouts as collectives_timeouts
from holdfast.training.collectives.timeouts import choose_limit


class Group:
    """Supports weak references."""


GROUP = Group()
STATE = SimpleNamespace(
    epoch=1,
    name="0",
    group=GROUP,
    ranks=(0, 1),
    device=SimpleNamespace(type="cpu"),
    backend_for=lambda _: "gloo",
)
SMALL, LARGE = 8, 467_019_003 * 4
MINUTE = 60.0


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.delenv("HOLDFAST_TIMEOUTS", raising=False)
    # The user's own measurements are stored there.
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HOLDFAST_HISTORY", raising=False)
    collectives_timeouts.reset()
    timeout_history.reset()
    yield
    collectives_timeouts.reset()
    timeout_history.reset()


def write_policy(monkeypatch, tmp_path, text):
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    monkeypatch.setenv("HOLDFAST_TIMEOUTS", str(file))
    collectives_timeouts.reset()
    return file


def test_phase_and_size_choose_the_timeout():
    assert choose_limit(STATE, LARGE) == 10 * MINUTE
    assert choose_limit(STATE, SMALL) == 5 * MINUTE
    with holdfast.phase("evaluation of set 2"):
        assert choose_limit(STATE, LARGE) == choose_limit(STATE, SMALL) == 30 * MINUTE
        with holdfast.phase("checkpoint", budget="40m"):  # the longer budget of an inner phase
            assert choose_limit(STATE, SMALL) == 40 * MINUTE
        assert choose_limit(STATE, SMALL) == 30 * MINUTE
    with holdfast.phase("checkpoint", budget="1s"):
        assert choose_limit(STATE, SMALL) == 10 * MINUTE
    assert choose_limit(STATE, SMALL) == 5 * MINUTE


def test_phase_ends_with_an_exception_and_is_per_thread():
    with pytest.raises(KeyError), holdfast.phase("validation"):
        raise KeyError
    assert choose_limit(STATE, SMALL) == 5 * MINUTE
    limits = []
    with holdfast.phase("validation"):
        thread = threading.Thread(target=lambda: limits.append(choose_limit(STATE, SMALL)))
        thread.start()
        thread.join()
    assert limits == [5 * MINUTE]


def test_slow_link_extends_the_timeout_up_to_the_ceiling():
    collectives_timeouts.record_bandwidth(STATE, 10_000_000, 10.0)  # 1 MB/s
    assert choose_limit(STATE, SMALL) == 5 * MINUTE
    assert choose_limit(STATE, 50_000_000) == pytest.approx(20 * (1 << 26) / 1e6)
    assert choose_limit(STATE, LARGE) == 2 * 60 * MINUTE
    # The link reaches 1 GB/s: the first call was slow because it waited for a rank.
    collectives_timeouts.record_bandwidth(STATE, 10_000_000, 0.01)
    assert choose_limit(STATE, LARGE) == 10 * MINUTE
    collectives_timeouts.record_bandwidth(STATE, 1000, 10.0)  # too small to measure bandwidth
    assert collectives_timeouts._measured_bandwidth(STATE.epoch, STATE.name) == pytest.approx(1e9)
    other = SimpleNamespace(epoch=1, name="7", group=None)
    assert collectives_timeouts._measured_bandwidth(other.epoch, other.name) is None


@given(
    st.integers(0, 1 << 45),
    st.one_of(st.none(), st.floats(1, 1e13)),
    st.sampled_from(["", "eval", "Testing", "save"]),
    st.floats(0, 1e5),
)
def test_timeout_is_between_minimum_and_ceiling(nbytes, speed, phase, budget):
    collectives_timeouts.reset()
    if speed is not None:
        collectives_timeouts.record_bandwidth(STATE, 1 << 40, (1 << 40) / speed)
    rules = collectives_timeouts.load_policy()
    minimum = (
        rules.evaluation
        if phase in ("eval", "Testing")
        else rules.training
        if phase
        else rules.small
    )
    with holdfast.phase(phase, budget=budget):
        chosen = choose_limit(STATE, nbytes)
        assert chosen == choose_limit(STATE, nbytes)  # from the cache
    assert max(minimum, budget) <= chosen <= max(rules.ceiling, budget)


@pytest.mark.parametrize(
    ("given", "seconds"), [(90, 90), ("90s", 90), ("10m", 600), (0.25, 0.25), ("1500ms", 1.5)]
)
def test_explicit_timeout_wins(given, seconds):
    assert choose_limit(STATE, LARGE, timeout=given) == seconds


@pytest.mark.parametrize(
    "given", [0, -1, "0s", math.nan, math.inf, -math.inf, "soon", "", "-5s", "nan"]
)
def test_invalid_timeout_is_a_one_line_error(given):
    with pytest.raises(InvalidValue) as caught:
        choose_limit(STATE, LARGE, timeout=given)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("invalid value for timeout: ")


# The user's file


def test_file_overrides_key_by_key(monkeypatch, tmp_path):
    write_policy(
        monkeypatch, tmp_path, 'training = "20m"\nsmall = 7\nevaluation_words = ["prüfung"]\n'
    )
    assert choose_limit(STATE, LARGE) == 20 * MINUTE
    assert choose_limit(STATE, SMALL) == 7
    with holdfast.phase("evaluation"):
        assert choose_limit(STATE, SMALL) == 20 * MINUTE
    with holdfast.phase("Prüfung"):
        assert choose_limit(STATE, SMALL) == 30 * MINUTE  # the default


def test_file_wins_over_the_default_budget_of_a_phase_but_not_over_one_that_is_set(
    monkeypatch, tmp_path
):
    write_policy(monkeypatch, tmp_path, 'evaluation = "6s"\ntraining = "7s"\n')
    with holdfast.phase("evaluation"):
        assert choose_limit(STATE, SMALL) == 6
    with holdfast.phase("export"):
        assert choose_limit(STATE, LARGE) == 7
    with holdfast.phase("evaluation", budget="40s"):
        assert choose_limit(STATE, SMALL) == 40


@pytest.mark.parametrize(
    ("text", "kind", "parts"),
    [
        (
            '# mine\ntrainig = "20m"\n',
            UnknownName,
            ["line 2", "'trainig'", "did you mean training?"],
        ),
        ('small = "5m"\ntraining = "soon"\n', InvalidValue, ["line 2", "training", "'soon'"]),
        ("training = 0\n", InvalidValue, ["line 1", "0 is not a positive duration"]),
        ("training = nan\n", InvalidValue, ["line 1", "nan"]),
        ("training = true\n", InvalidValue, ["line 1", "True"]),
        ("training = 1979-05-27\n", InvalidValue, ["line 1"]),
        ("bandwidth_factor = -1\n", InvalidValue, ["line 1", "-1"]),
        ("small_bytes = 1.5\n", InvalidValue, ["line 1", "1.5"]),
        ('evaluation_words = "eval"\n', InvalidValue, ["line 1", "list of words"]),
        ("[training]\nlimit = 3\n", InvalidValue, ["line 1", "training"]),
        ("a = 1\na = 2\n", InvalidValue, ["line 2"]),
        ("training = \n", InvalidValue, ["line 1"]),
        (b"\xff\xfe\x00", InvalidValue, ["not valid TOML"]),
        ("x = " + "[" * 100_000, InvalidValue, ["not valid TOML"]),
    ],
)
def test_invalid_file_is_a_one_line_error(monkeypatch, tmp_path, text, kind, parts):
    file = write_policy(monkeypatch, tmp_path, text)
    with pytest.raises(kind) as caught:
        choose_limit(STATE, LARGE)
    assert [word for word in (str(file), *parts) if word not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("place", ["nowhere.toml", "."])
def test_missing_file_is_a_one_line_error(monkeypatch, tmp_path, place):
    monkeypatch.setenv("HOLDFAST_TIMEOUTS", str(tmp_path / place))
    with pytest.raises(MissingFile, match="HOLDFAST_TIMEOUTS"):
        choose_limit(STATE, LARGE)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_policy_or_an_error(tmp_path_factory, data):
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(data)
    with suppress(HoldfastError):
        assert set(collectives_timeouts.read_policy_file(file)) <= set(
            collectives_timeouts.TimeoutPolicy.__struct_fields__
        )


# The history


def slow_call(**changes):
    call = SimpleNamespace(
        signature="all_reduce of 467,019,003 float32",
        state=STATE,
        limit_s=600.0,
        number=3,
        nbytes=LARGE,
    )
    call.__dict__.update(changes)
    return call


def record(call, seconds=600.0):
    collectives_timeouts.record_call(call, seconds, "timeout")


def test_two_timeouts_at_a_call_site_double_its_limit_and_log_the_reason(monkeypatch, caplog):
    monkeypatch.setattr(timeout_history.rank_hosts, "known_host_layout", lambda _: None)
    monkeypatch.setattr(timeout_history, "find_call_site", lambda: "train.py:41")
    monkeypatch.setattr(collectives_timeouts, "find_call_site", lambda: "train.py:41")
    collectives_timeouts.record_bandwidth(STATE, 800_000_000, 1.0)
    assert choose_limit(STATE, LARGE) == 600
    record(slow_call(number=3))
    assert choose_limit(STATE, LARGE) == 600
    record(slow_call(number=9))
    assert choose_limit(STATE, LARGE) == 1200
    assert choose_limit(STATE, SMALL) == 300  # another size
    text = (
        "timeout of all_reduce of 467,019,003 float32 at train.py:41 "
        "raised from 10 min 00 s to 20 min 00 s: "
    )
    assert (
        text + "2 timeouts in 1 run took 10 min 00 s or more while bandwidth was 0.8 GB/s"
        in caplog.text
    )
    assert choose_limit(STATE, LARGE) == 1200
    assert caplog.text.count(text) == 1
    monkeypatch.setattr(collectives_timeouts, "find_call_site", lambda: "train.py:99")
    assert choose_limit(STATE, LARGE) == 600  # another call site


def test_shorter_explicit_timeouts_are_not_extended(monkeypatch):
    monkeypatch.setattr(timeout_history.rank_hosts, "known_host_layout", lambda _: None)
    monkeypatch.setattr(
        collectives_timeouts,
        "find_call_site",
        lambda: timeout_history.current_history().troubles[0].site,
    )
    for number in range(4):
        record(slow_call(number=number, limit_s=5.0), seconds=5.0)
    (kept,) = timeout_history.current_history().troubles
    assert (kept.timeouts, kept.at_limit) == (4, 0)
    assert choose_limit(STATE, LARGE) == 600


def test_extended_limit_stays_below_the_ceiling(monkeypatch):
    monkeypatch.setattr(timeout_history.rank_hosts, "known_host_layout", lambda _: None)
    monkeypatch.setattr(
        collectives_timeouts,
        "find_call_site",
        lambda: timeout_history.current_history().troubles[0].site,
    )
    limits = []
    for number in range(20):
        record(slow_call(number=number, limit_s=600.0 * 2 ** (number // 2)))
        limits.append(choose_limit(STATE, LARGE))
    assert limits[:5] == [600, 1200, 1200, 2400, 2400]
    assert set(limits[8:]) == {2 * 60 * MINUTE}
    (kept,) = timeout_history.current_history().troubles
    assert kept.site.partition(":")[0] == Path(__file__).name


def save_fit(ranks, bandwidth, latency_s=0.0, hosts=1):
    link_measurements.save_fits(
        [
            AlphaBetaFit(
                collective="all_reduce",
                way="torch",
                backend="gloo",
                dtype="float32",
                ranks=ranks,
                hosts=hosts,
                latency_s=latency_s,
                latency_interval_s=(latency_s, latency_s),
                bandwidth=bandwidth,
                bandwidth_interval=(bandwidth, None),
                worst_error=0.0,
            ),
        ]
    )
    collectives_timeouts.reset()


def test_earlier_measurements_apply_until_the_group_has_its_own():
    save_fit(ranks=2, bandwidth=10e6)
    # The size is rounded to a power of two: over an hour at 10 MB/s.
    assert choose_limit(STATE, LARGE) == pytest.approx(20 * (1 << 31) / 10e6)
    assert choose_limit(STATE, SMALL) == 5 * MINUTE
    # The group's own measurement takes precedence.
    collectives_timeouts.record_bandwidth(STATE, LARGE, LARGE / 1e9)
    assert choose_limit(STATE, LARGE) == 10 * MINUTE


def test_measurements_of_other_sizes_or_invalid_ones_are_ignored():
    save_fit(ranks=3, bandwidth=10e6)
    assert choose_limit(STATE, LARGE) == 10 * MINUTE
    link_measurements.fits_file().write_bytes(
        b'{"schema": "holdfast/links/1", "fits": [{"bandwidth": -1}]}'
    )
    collectives_timeouts.reset()
    assert choose_limit(STATE, LARGE) == 10 * MINUTE


def test_earlier_measurements_stay_below_the_ceiling():
    save_fit(ranks=2, bandwidth=1.0, latency_s=1e6)
    assert choose_limit(STATE, SMALL) == choose_limit(STATE, LARGE) == 120 * MINUTE
