"""The fuzz targets accept their seeds and hypothesis's mutations of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
@settings(deadline=None)  # the first example compiles the patterns
@given(data=st.data())
def test_a_target_accepts_any_bytes(name: str, data: st.DataObject) -> None:
    target, seeds = TARGETS[name]
    seed = data.draw(st.sampled_from(seeds))
    at, until = sorted(data.draw(st.tuples(st.integers(0, len(seed)), st.integers(0, len(seed)))))
    target(seed)
    target(seed[:at] + data.draw(st.binary(max_size=20)) + seed[until:])
