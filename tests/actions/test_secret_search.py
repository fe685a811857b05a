"""What Hyperscan passes over, the expressions would not have found either."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.actions import redact, secret_search
from holdfast.actions.redact import Redactor
from tests.actions.secrets_made_up import LINES, PEM
from tests.actions.test_redact import ORDINARY

ORDINARY_LINES = ORDINARY.splitlines()
SECRET_LINES = [line for line, _ in LINES.values()]

pytestmark = pytest.mark.skipif(
    secret_search.by_hyperscan(redact._PATTERNS) is None, reason="Hyperscan is not installed, or cannot serve here"
)


def cleaned(data, smallest):
    """What a redactor makes of it, with all texts shorter than ``smallest`` looked through as a whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redact, "_SMALL_BYTES", smallest)
        redactor = Redactor(hosts=["node1"])
        return redactor.data(data), redactor.counts


TEXTS = st.one_of(
    st.sampled_from(
        [
            *ORDINARY_LINES,
            *SECRET_LINES,
            *PEM[0].split("\n"),
            "",
            "key:",
            "password",
            "name: X_TOKEN",
            "host : gpu-7",
            "gpu-7",
            "n-1:5:9 [0] NCCL INFO eth0:10.1.2.3<0>",
            "fe80::1:2%eth0",
            "1.2.3.4",
        ]
    ),
    st.tuples(st.sampled_from(SECRET_LINES), st.integers(0, 200), st.integers(0, 200)).map(
        lambda cut: cut[0][min(cut[1:]) : max(cut[1:])]
    ),
    st.text(max_size=20),
)


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(TEXTS, st.sampled_from(["\n", "\r\n", "\n", " ", "\r"])), max_size=14))
def test_both_ways_give_the_same(parts):
    data = "".join(text + end for text, end in parts).encode()
    assert cleaned(data, 0) == cleaned(data, 1 << 30)


def test_both_ways_give_the_same_of_a_long_text():
    rng = random.Random(7)
    lines = [*SECRET_LINES, *ORDINARY_LINES * 20]
    data = "\n".join(rng.choice(lines) for _ in range(6000)).encode()
    quick, counts = cleaned(data, 0)
    assert (quick, counts) == cleaned(data, 1 << 30)
    assert len(counts) >= 30


def test_lines_in_which_nothing_can_stand_are_passed_over():
    search = secret_search.searcher(redact._PATTERNS)
    block = b"[rank0]: step 1 loss 2.5\n" * 1000
    assert list(search(block)) == []
    planted = block + b"password = swordfish\n" + block
    (begin, end, _), *others = search(planted)
    assert planted[begin:end] == b"password = swordfish\n[rank0]: step 1 loss 2.5\n"
    assert not others


def test_without_hyperscan_everything_is_looked_through(monkeypatch):
    monkeypatch.setattr(secret_search, "by_hyperscan", lambda _: None)
    assert list(secret_search.searcher(redact._PATTERNS)(b"abc")) == [(0, 3, range(len(redact._PATTERNS)))]
