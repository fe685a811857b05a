"""The address at which a leader serves its page; a real server is in tests/process."""

from __future__ import annotations

import pytest

from holdfast.core.errors import InvalidValue
from holdfast.watcher.live_port import LivePort, parse_address


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8765", ("127.0.0.1", 8765)), ("0.0.0.0:0", ("0.0.0.0", 0)), ("[::]:80", ("::", 80))],
)
def test_an_address_is_a_port_with_or_without_host(text, expected):
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", "node0", "node0:", "node0:http", "70000", "-1"])
def test_another_text_is_one_sentence(text):
    with pytest.raises(InvalidValue, match="HOST"):
        parse_address(text)


def test_without_an_address_nothing_is_served():
    port = LivePort(None)
    port.start("/nowhere")
    port.close()
    assert list(port.new_sentences()) == []
