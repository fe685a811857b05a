"""The watcher's looks at its host."""

import threading
import time

import msgspec
import pytest

from holdfast.actions.health import Health
from holdfast.facts import gpus
from holdfast.facts.checks import Place
from holdfast.facts.node import Summary, combine
from holdfast.findings import Finding, Level, Subject, Verdict
from holdfast.rules.health import WATCHED
from tests.facts.gpus.recorded import gpu, tree

GPUS = ("gpu-health",)


def test_what_is_found_is_told_once_and_stands_beside_the_verdict(tmp_path):
    health = Health(Place(root=tree(tmp_path, gpu(), gpu(bus="2B", hot="Active"))), 30, GPUS)
    health.look()
    (sentence,) = health.news()
    assert "GPU 1 is too hot" in sentence
    assert sentence.endswith("(GPU008 gpu-throttled)")
    health.look()
    assert health.news() == []
    verdict = health.beside(Verdict(question="?"))
    assert [claim.cause for claim in verdict.suspects] == ["gpu-throttled"]
    assert verdict.suspects[0].evidence


def test_what_is_well_again_leaves_the_verdict(tmp_path):
    health = Health(Place(root=tree(tmp_path, gpu(hot="Active"))), 30, GPUS)
    health.look()
    (tmp_path / "sys").rename(tmp_path / "old")
    tree(tmp_path, gpu())
    health.look()
    assert health.findings == ()
    assert health.beside(Verdict(question="?")) == Verdict(question="?")


def test_a_verdict_does_not_say_the_same_twice(tmp_path):
    health = Health(Place(root=tree(tmp_path, gpu(hot="Active"))), 30, GPUS)
    health.look()
    (found,) = health.findings
    verdict = Verdict(question="?", root=found)
    assert health.beside(verdict) == verdict
    other = Finding(code="MEM003", cause="host-oom-killed", level=Level.WARNING, message="x", subject=Subject(host="b"))
    assert health.beside(verdict, [other, other]).suspects == (other, other)


def test_what_other_nodes_found_reaches_the_leader():
    there = Finding(code="MEM003", cause="host-oom-killed", level=Level.WARNING, message="x", subject=Subject(host="b"))
    told = msgspec.msgpack.encode(Summary((), {}, 4, 1.0, 2.0, health=(there,)))
    mine = Summary((), {}, 4, 1.0, 2.0)
    assert combine([mine, msgspec.msgpack.decode(told, type=Summary)], 2.0, 5.0).health == (there,)


def test_it_looks_by_itself_and_stops(tmp_path):
    health = Health(Place(root=tree(tmp_path, gpu(hot="Active"))), 0.05, GPUS)
    assert health.findings == ()
    health.start()
    health.start()
    until = time.monotonic() + 10
    while not health.findings and time.monotonic() < until:
        time.sleep(0.02)
    assert health.findings
    until = time.monotonic() + 10
    while not health.close() and time.monotonic() < until:
        time.sleep(0.02)
    assert health.close()


def test_a_driver_that_is_stuck_is_told_and_asked_ever_more_seldom(tmp_path, monkeypatch):
    asked = []

    def ask(root, limit_s):
        asked.append((root, limit_s))
        return gpus.Stuck("the NVIDIA driver did not answer within 15 s")

    monkeypatch.setattr(gpus, "ask", ask)
    health = Health(Place(root=tree(tmp_path, gpu())), 0.2, GPUS)
    for _ in range(3):
        health.look()
    assert len(asked) == 1
    time.sleep(0.45)
    health.look()
    assert len(asked) == 2
    time.sleep(0.45)  # now it is twice as long
    health.look()
    assert len(asked) == 2
    (found,) = health.findings
    assert (found.cause, found.level) == ("gpu-fell-off-bus-xid-ecc", Level.ERROR)


def test_never(tmp_path):
    before = threading.active_count()
    Health(Place(root=str(tmp_path)), 0, GPUS).start()
    assert threading.active_count() == before


@pytest.mark.parametrize("name", WATCHED)
def test_every_check_that_is_watched_can_be_judged_on_this_host(name):
    health = Health(Place(), 30, (name,))
    health.look()
    assert all(claim.subject.host and claim.level in (Level.WARNING, Level.ERROR) for claim in health.findings)
