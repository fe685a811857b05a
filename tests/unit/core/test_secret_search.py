"""The search with Hyperscan never excludes text that the expressions would match."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.redaction import redact, secret_search
from holdfast.core.redaction.redact import Redactor
from tests.hypothesis_profiles import examples
from tests.unit.core.fake_secrets import LINES, PEM
from tests.unit.core.test_redact import ORDINARY

ORDINARY_LINES = ORDINARY.splitlines()
SECRET_LINES = [line for line, _ in LINES.values()]

_PSEUDONYM = re.compile(rb"\b(host|ip|user|[hiu])[0-9]+_*")


@pytest.fixture(autouse=True, scope="module")
def _needs_hyperscan():
    if secret_search.make_hyperscan_search(redact._PATTERNS) is None:
        pytest.skip("Hyperscan is not installed or not supported here")


def redacted(data, min_bytes):
    """Redact ``data``; the candidate search is skipped for texts shorter than ``min_bytes``.

    Pseudonyms (``host2``, ``ip1``) are replaced by a mark: each is numbered when it is found, and
    the two searches divide the text into different pieces.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(redact, "_MIN_SEARCH_BYTES", min_bytes)
        redactor = Redactor(hosts=["node1"])
        text = redactor.redact_bytes(data)
        return _PSEUDONYM.sub(b"<name>", text), redactor.counts


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


@settings(max_examples=examples(400))
@given(st.lists(st.tuples(TEXTS, st.sampled_from(["\n", "\r\n", "\n", " ", "\r"])), max_size=14))
def test_hyperscan_yields_the_same_redactions(parts):
    data = "".join(text + end for text, end in parts).encode()
    assert redacted(data, 0) == redacted(data, 1 << 30)


def test_hyperscan_yields_the_same_redactions_in_long_text():
    rng = random.Random(7)
    lines = [*SECRET_LINES, *ORDINARY_LINES * 20]
    data = "\n".join(rng.choice(lines) for _ in range(6000)).encode()
    quick, counts = redacted(data, 0)
    assert (quick, counts) == redacted(data, 1 << 30)
    assert len(counts) >= 30


def test_lines_without_candidates_are_skipped():
    search = secret_search.make_search(redact._PATTERNS)
    block = b"[rank0]: step 1 loss 2.5\n" * 1000
    assert list(search(block)) == []
    planted = block + b"password = swordfish\n" + block
    (begin, end, _), *others = search(planted)
    assert planted[begin:end] == b"password = swordfish\n[rank0]: step 1 loss 2.5\n"
    assert not others


def test_without_hyperscan_the_whole_block_is_searched(monkeypatch):
    monkeypatch.setattr(secret_search, "make_hyperscan_search", lambda _: None)
    assert list(secret_search.make_search(redact._PATTERNS)(b"abc")) == [
        (0, 3, range(len(redact._PATTERNS)))
    ]
