"""Copies are made in the background, retried after outages, and reported if incomplete."""

import logging
import threading
import time

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.training.checkpoint.storage import replication as copies_module
from holdfast.training.checkpoint.storage.backends import FolderBackend, open_backend
from holdfast.training.checkpoint.storage.replication import Replicator
from holdfast.training.checkpoint.storage.retention import RetentionPolicy

LIMIT_S = 30


def wait_until(condition):
    end = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def root(tmp_path):
    return FolderBackend(tmp_path / "ckpts")


def test_each_backend_gets_every_checkpoint_and_applies_retention(tmp_path, root, checkpoint):
    first, second = open_backend(tmp_path / "one"), open_backend(tmp_path / "two")
    copies = Replicator(
        root,
        [first, second],
        lambda backend: RetentionPolicy(last=1) if backend is second else RetentionPolicy(),
    )
    for step in (100, 200):
        checkpoint(step)
        copies.offer(step)
        wait_until(lambda step=step: first.steps()[:1] == second.steps()[:1] == [step])

    assert copies.finish(LIMIT_S) == []
    assert first.steps() == [200, 100]
    assert second.steps() == [200]
    assert not any(checkpoint_manifest.find_damage(second.folder(200), second.manifest(200)))
    assert copies.busy() == frozenset()


@pytest.mark.slow
def test_an_unreachable_bucket_is_logged_once_and_retried(
    root, checkpoint, s3, caplog, monkeypatch
):
    monkeypatch.setattr(copies_module, "RETRY_S", 0.2)
    caplog.set_level(logging.WARNING, "holdfast.checkpoint")
    backend = open_backend(s3.url)
    s3.end()
    copies = Replicator(root, [backend], lambda _: RetentionPolicy())
    for step in (100, 200):
        checkpoint(step)
        begun = time.monotonic()
        copies.offer(step)
        assert time.monotonic() - begun < 0.1
    wait_until(lambda: caplog.records)
    time.sleep(0.5)  # several attempts
    s3.start()
    wait_until(lambda: backend.steps() == [200, 100])

    assert copies.finish(LIMIT_S) == []
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2, texts
    assert "could not be copied to s3://bucket" in texts[0]
    assert "training continues" in texts[0]
    assert "accepts copies again" in texts[1]


def test_incomplete_copies_are_reported_at_the_end(tmp_path, root, checkpoint):
    (tmp_path / "file").write_text("")
    copies = Replicator(
        root, [open_backend(tmp_path / "file" / "copies")], lambda _: RetentionPolicy()
    )
    checkpoint(100)
    copies.offer(100)

    (report,) = copies.finish(LIMIT_S)
    assert "1 checkpoint (the newest of step 100) not copied" in report
    assert "not a directory" in report


class Slow(FolderBackend):
    """A slow backend."""

    def __init__(self, path):
        super().__init__(path)
        self.may, self.entered, self.puts = threading.Event(), threading.Event(), []

    def put(self, source, what):
        self.entered.set()
        assert self.may.wait(LIMIT_S)
        self.puts.append(what.step)
        super().put(source, what)


def test_a_copied_step_is_busy_and_a_deleted_one_is_dropped(tmp_path, root, checkpoint):
    slow = Slow(tmp_path / "slow")
    copies = Replicator(root, [slow], lambda _: RetentionPolicy())
    for step in (100, 200, 300):
        checkpoint(step)
        copies.offer(step)
        assert slow.entered.wait(LIMIT_S)
    assert copies.busy() == {100}
    root.remove(200)
    slow.may.set()

    assert copies.finish(LIMIT_S) == []
    assert slow.puts == [100, 300]


def test_finish_does_not_wait_for_a_hanging_backend(tmp_path, root, checkpoint):
    slow = Slow(tmp_path / "slow")
    copies = Replicator(root, [slow], lambda _: RetentionPolicy())
    checkpoint(100)
    copies.offer(100)
    assert slow.entered.wait(LIMIT_S)
    begun = time.monotonic()

    assert "not copied" in copies.finish(0.3)[0]
    assert time.monotonic() - begun < 5
    slow.may.set()


def test_staging_folders_of_interrupted_copies_are_removed(tmp_path, checkpoint):
    copy = FolderBackend(tmp_path / "copy")
    for name in (".staging-copy-step-0000000100-dead", ".staging-step-0000000100-other"):
        (tmp_path / "copy" / name).mkdir(parents=True)
    folder = checkpoint(200)
    copy.put(folder, checkpoint_manifest.read_manifest(folder))
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        ".staging-step-0000000100-other",
        "step-0000000200",
    ]
