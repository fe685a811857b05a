"""Disk failures and damage: the last valid checkpoint survives, with one clear message."""

from __future__ import annotations

import ctypes
import logging
import os
import pickle
import shutil
import threading
import time
from contextlib import suppress

import pytest
import torch

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointFailed, CheckpointUnreadable
from holdfast.training.checkpoint.folder_owner import FILE as OWNER
from holdfast.training.checkpoint.unpickling import read_index
from tests.unit.training.checkpoint.jobs import Job, flipped, small_disk

FILES = ("__0_0.distcp", ".metadata", "rank-00000.state", "manifest.json")


def saved_twice(root):
    job = Job(root)
    for step in (1, 2):
        job.checkpoint.save(step, asynchronous=False)
    return root / checkpoint_manifest.folder_name(2)


DAMAGES = {
    "one bit": flipped,
    "the first byte": lambda path: flipped(path, 0),
    "cut short": lambda path: os.truncate(path, path.stat().st_size - 9),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "missing": lambda path: path.unlink(),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a name of nothing": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "a device without end": lambda path: (path.unlink(), path.symlink_to("/dev/zero")),
}


def test_damage_of_any_file_is_detected_and_the_previous_checkpoint_loads(tmp_path, caplog):
    newest = saved_twice(tmp_path)
    intact = tmp_path / "whole"
    shutil.copytree(newest, intact)
    job = Job(tmp_path, seed=2)
    for name in FILES:
        for kind, damage in DAMAGES.items():
            damage(newest / name)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                assert job.checkpoint.load().step == 1, (name, kind)
            assert "skipped: step 2" in caplog.text, (name, kind)
            shutil.rmtree(newest)
            shutil.copytree(intact, newest)
            assert job.checkpoint.load().step == 2, (name, kind)


def test_a_full_disk_keeps_the_last_checkpoint_and_training_continues(tmp_path, caplog):
    with small_disk(tmp_path / "disk", "512k") as root:
        job = Job(root)
        job.checkpoint.save(1, asynchronous=False)
        filler = root / "filler"
        with suppress(OSError), filler.open("wb", buffering=0) as stream:
            while stream.write(bytes(4096)):
                pass
        with pytest.raises(
            CheckpointFailed,
            match=r"saving step 2 failed: .*[Nn]o space left on device.*earlier checkpoints are unchanged",
        ):
            job.checkpoint.save(2, asynchronous=False)
        job.checkpoint.save(3)
        assert job.train(1)
        while job.checkpoint.busy:
            time.sleep(0.01)
        with caplog.at_level(logging.WARNING):
            filler.unlink()
            job.checkpoint.save(4)  # reports the failed save of step 3
        assert "saving step 3 failed" in caplog.text
        assert job.checkpoint.wait().step == 4
        assert sorted(path.name for path in root.iterdir() if path.name != OWNER) == [
            checkpoint_manifest.folder_name(1),
            checkpoint_manifest.folder_name(4),
        ]
        assert Job(root, seed=2).checkpoint.load().step == 4


@pytest.mark.parametrize("room", range(4, 60, 8))
def test_a_disk_that_fills_up_at_any_point(tmp_path, room):
    with small_disk(tmp_path / "disk", "512k") as root:
        job = Job(root)
        job.checkpoint.save(1, asynchronous=False)
        fill_bytes = shutil.disk_usage(root).free - room * 1024
        (root / "filler").write_bytes(bytes(max(fill_bytes, 0)))
        try:
            job.checkpoint.save(2, asynchronous=False)
        except CheckpointFailed:
            declared = 1
        else:
            declared = 2
        assert Job(root, seed=2).checkpoint.load().step == declared


def test_a_disk_that_becomes_read_only(tmp_path):
    with small_disk(tmp_path / "disk", "512k") as root:
        job = Job(root)
        job.checkpoint.save(1, asynchronous=False)
        libc, remount_read_only = ctypes.CDLL(None), 32 | 1
        assert libc.mount(b"none", str(root).encode(), b"tmpfs", remount_read_only, b"") == 0
        with pytest.raises(CheckpointFailed, match=r"[Rr]ead-only file system"):
            job.checkpoint.save(2, asynchronous=False)
        assert Job(root, seed=2).checkpoint.load().step == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_write_permission(tmp_path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(CheckpointFailed, match=r"[Pp]ermission denied"):
        Job(tmp_path / "closed").checkpoint.save(2, asynchronous=False)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        CheckpointFailed, match=r"saving step 2 failed: .*(File exists|Not a directory)"
    ):
        Job(tmp_path / "file").checkpoint.save(2, asynchronous=False)


def test_a_staging_folder_deleted_during_the_write(tmp_path):
    job = Job(tmp_path)
    job.checkpoint.save(1, asynchronous=False)
    started, resume = threading.Event(), threading.Event()
    take = job.checkpoint._planner.torch_planner.resolve_data

    def slowly(item):
        started.set()
        assert resume.wait(20)
        return take(item)

    job.checkpoint._planner.torch_planner.resolve_data = slowly
    writer = threading.Thread(
        target=lambda: failures.append(failure(lambda: job.checkpoint.save(2, asynchronous=False)))
    )
    failures = []
    writer.start()
    assert started.wait(20)
    for path in tmp_path.glob(".staging-*"):
        shutil.rmtree(path)
    resume.set()
    writer.join(30)
    assert "o such file" in failures[0]
    assert Job(tmp_path, seed=2).checkpoint.load().step == 1


def failure(act):
    try:
        act()
    except CheckpointFailed as error:
        return str(error)
    return ""


# ---- malicious files


class CodeExecutor:
    """A pickle that executes code."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def rewrite_manifest(folder):
    """Rewrite the manifest to match the folder, as any user with write access can."""
    manifest = checkpoint_manifest.read_manifest(folder)
    entries = tuple(
        checkpoint_manifest.ManifestEntry(
            path=each.path,
            size=(folder / each.path).stat().st_size,
            xxh3=checkpoint_manifest.hash_file(folder / each.path),
        )
        for each in manifest.files
    )
    import msgspec

    checkpoint_manifest.write_manifest(folder, msgspec.structs.replace(manifest, files=entries))


@pytest.mark.parametrize("name", [".metadata", "rank-00000.state"])
def test_a_pickle_that_executes_code_is_rejected(tmp_path, name):
    newest = saved_twice(tmp_path / "root")
    ran = tmp_path / "ran"
    if name == ".metadata":
        (newest / name).write_bytes(pickle.dumps(CodeExecutor(ran)))
    else:
        torch.save(CodeExecutor(ran), newest / name)
    rewrite_manifest(newest)
    with pytest.raises((CheckpointUnreadable, CheckpointFailed), match="system"):
        Job(tmp_path / "root", seed=2).checkpoint.load()
    assert not ran.exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x04",
        pickle.dumps({}),
        pickle.dumps(3),
        b"cos\nsystem\n.",
        b"ctorch\nhub\n.",
        b"ctorch\nload\n.",
    ],
)
def test_an_invalid_index(tmp_path, data):
    path = tmp_path / "index"
    path.write_bytes(data)
    with path.open("rb") as stream, pytest.raises(CheckpointUnreadable):
        read_index(stream, path)


def test_an_index_that_names_files_outside_the_manifest_is_rejected(tmp_path):
    newest = saved_twice(tmp_path / "root")
    shutil.copy(newest / "__0_0.distcp", tmp_path / "outside")
    with (newest / ".metadata").open("rb") as stream:
        index = read_index(stream, newest)
    for entry in index.storage_data.values():
        entry.relative_path = "../../outside"
    (newest / ".metadata").write_bytes(pickle.dumps(index))
    rewrite_manifest(newest)
    job = Job(tmp_path / "root", seed=2)
    before = {name: value.clone() for name, value in job.model.state_dict().items()}
    with pytest.raises((CheckpointUnreadable, CheckpointFailed), match="outside"):
        job.checkpoint.load()
    assert all(torch.equal(value, before[name]) for name, value in job.model.state_dict().items())
