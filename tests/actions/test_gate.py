"""The gate of one host: held against how it was at the beginning, looked at twice, never for long."""

import pytest

from holdfast.actions.gate import AGAIN_S, Gate
from holdfast.facts.checks import Place
from tests.facts.gpus.recorded import answer, gpu, tree


@pytest.fixture
def host(tmp_path):
    """A gate over a recorded host, what its driver says from now on, and the pauses that were made."""
    pauses = []
    gate = Gate(Place(root=tree(tmp_path, gpu())), pauses.append)
    return gate, lambda **fault: (tmp_path / "nvidia-smi.xml").write_bytes(answer(gpu(**fault))), pauses


def test_a_sound_host_passes_in_one_look(host):
    gate, _, pauses = host
    assert gate.look().refused == ()
    assert pauses == []


def test_what_became_worse_is_looked_at_twice(host):
    gate, say, pauses = host
    gate.look()
    say(errors=2)
    (claim,) = gate.look().refused
    assert "2 uncorrectable memory errors since the job began" in claim.message
    assert pauses == [AGAIN_S]


def test_what_passes_by_itself_keeps_nobody_out(tmp_path):
    gate = Gate(Place(root=tree(tmp_path, gpu(recovery="Reset"))),
                lambda _: (tmp_path / "nvidia-smi.xml").write_bytes(answer(gpu())))  # fmt: skip
    assert gate.look().refused == ()


def test_a_look_that_was_begun_early_is_used(host):
    gate, say, _ = host
    gate.look()
    say(failed="Yes")
    gate.begin()
    assert [claim.cause for claim in gate.look().refused] == ["gpu-memory-worn"]


def test_a_check_that_breaks_lets_the_host_in(host):
    gate, _, _ = host
    gate.look()
    (gate._place.path("/nvidia-smi.xml")).write_bytes(b"<no xml")
    assert gate.look().refused == ()
