"""Copies are made beside training; a place that is away costs a line and is tried again; what is not copied is said."""

import logging
import threading
import time

import pytest

from holdfast import manifest
from holdfast.runtime.checkpoint import copies as copies_module
from holdfast.runtime.checkpoint.copies import Copies
from holdfast.runtime.checkpoint.places import Folder, place_of
from holdfast.runtime.checkpoint.retention import Keep

LIMIT_S = 30


def until(true):
    end = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def root(tmp_path):
    return Folder(tmp_path / "ckpts")


def test_each_place_gets_what_is_offered_and_keeps_what_it_should(tmp_path, root, checkpoint):
    one, two = place_of(tmp_path / "one"), place_of(tmp_path / "two")
    copies = Copies(root, [one, two], lambda place: Keep(last=1) if place is two else Keep())
    for step in (100, 200):
        checkpoint(step)
        copies.offer(step)
        until(lambda step=step: one.steps()[:1] == two.steps()[:1] == [step])

    assert copies.finish(LIMIT_S) == []
    assert one.steps() == [200, 100]
    assert two.steps() == [200]
    assert not any(manifest.damages(two.folder(200), two.manifest(200)))
    assert copies.busy() == frozenset()


@pytest.mark.slow
def test_a_bucket_that_is_away_is_told_once_and_tried_again(root, checkpoint, s3, caplog, monkeypatch):
    monkeypatch.setattr(copies_module, "RETRY_S", 0.2)
    caplog.set_level(logging.WARNING, "holdfast.checkpoint")
    place = place_of(s3.url)
    s3.end()
    copies = Copies(root, [place], lambda _: Keep())
    for step in (100, 200):
        checkpoint(step)
        begun = time.monotonic()
        copies.offer(step)
        assert time.monotonic() - begun < 0.1
    until(lambda: caplog.records)
    time.sleep(1.0)  # several attempts
    s3.start()
    until(lambda: place.steps() == [200, 100])

    assert copies.finish(LIMIT_S) == []
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2, texts
    assert "could not be copied to s3://bucket" in texts[0]
    assert "training goes on" in texts[0]
    assert "takes copies of checkpoints again" in texts[1]


def test_what_could_not_be_copied_until_the_end_is_said(tmp_path, root, checkpoint):
    (tmp_path / "file").write_text("")
    copies = Copies(root, [place_of(tmp_path / "file" / "copies")], lambda _: Keep())
    checkpoint(100)
    copies.offer(100)

    (said,) = copies.finish(LIMIT_S)
    assert "1 checkpoint (the newest of step 100) not copied" in said
    assert "not a directory" in said


class Slow(Folder):
    """A place that takes its time."""

    def __init__(self, path):
        super().__init__(path)
        self.may, self.entered, self.puts = threading.Event(), threading.Event(), []

    def put(self, source, what):
        self.entered.set()
        assert self.may.wait(LIMIT_S)
        self.puts.append(what.step)
        super().put(source, what)


def test_what_is_being_copied_is_busy_and_what_was_removed_meanwhile_is_forgotten(tmp_path, root, checkpoint):
    slow = Slow(tmp_path / "slow")
    copies = Copies(root, [slow], lambda _: Keep())
    for step in (100, 200, 300):
        checkpoint(step)
        copies.offer(step)
        assert slow.entered.wait(LIMIT_S)
    assert copies.busy() == {100}
    root.remove(200)
    slow.may.set()

    assert copies.finish(LIMIT_S) == []
    assert slow.puts == [100, 300]


def test_the_end_does_not_wait_for_a_place_that_hangs(tmp_path, root, checkpoint):
    slow = Slow(tmp_path / "slow")
    copies = Copies(root, [slow], lambda _: Keep())
    checkpoint(100)
    copies.offer(100)
    assert slow.entered.wait(LIMIT_S)
    begun = time.monotonic()

    assert "not copied" in copies.finish(0.3)[0]
    assert time.monotonic() - begun < 5
    slow.may.set()
