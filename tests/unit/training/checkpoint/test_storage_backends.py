"""Folders, S3 and other backends: a stored checkpoint equals its source or is invalid."""

import itertools
import shutil

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointUnreadable, MissingExtra, StorageUnusable
from holdfast.training.checkpoint.storage.backends import FolderBackend, RemoteBackend, open_backend

_numbers = itertools.count()


@pytest.fixture(params=["folder", "memory://", "s3"])
def backend(request, tmp_path):
    if request.param == "s3":
        return open_backend(request.getfixturevalue("s3").url)
    if request.param == "folder":
        return open_backend(tmp_path / "copies" / "deep")
    return open_backend(f"memory://test{next(_numbers)}/run")


def fetch_all(backend, step, into):
    manifest = backend.manifest(step)
    for entry in manifest.files:
        backend.fetch(manifest, entry, into)
    return {
        path.relative_to(into).as_posix(): path.read_bytes()
        for path in into.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_put_list_fetch_quarantine_and_remove(backend, checkpoint, tmp_path):
    assert backend.steps() == []
    for step in (100, 200, 300):
        folder = checkpoint(step)
        backend.put(folder, checkpoint_manifest.read_manifest(folder))

    assert backend.steps() == [300, 200, 100]
    assert backend.manifest(200) == checkpoint_manifest.read_manifest(
        tmp_path / "ckpts" / checkpoint_manifest.folder_name(200)
    )
    assert fetch_all(backend, 200, tmp_path / "back") == {
        entry.path: (
            tmp_path / "ckpts" / checkpoint_manifest.folder_name(200) / entry.path
        ).read_bytes()
        for entry in backend.manifest(200).files
    }

    backend.remove(100)
    assert backend.steps() == [300, 200]
    backend.quarantine(300)
    with pytest.raises((CheckpointUnreadable, StorageUnusable)):
        backend.manifest(300)


@pytest.mark.slow
def test_another_checkpoint_of_the_same_step_replaces_it(backend, checkpoint, tmp_path):
    first, second = (
        checkpoint(7),
        checkpoint(7, root=tmp_path / "again", values={"loss": 1.5}, size=99),
    )
    backend.put(first, checkpoint_manifest.read_manifest(first))
    backend.put(first, checkpoint_manifest.read_manifest(first))  # already stored
    backend.put(second, checkpoint_manifest.read_manifest(second))

    assert backend.manifest(7).values == {"loss": 1.5}
    assert (
        fetch_all(backend, 7, tmp_path / "back")["first.distcp"]
        == (second / "first.distcp").read_bytes()
    )


@pytest.mark.slow
def test_a_damaged_source_is_not_copied(backend, checkpoint):
    folder = checkpoint(5)
    what = checkpoint_manifest.read_manifest(folder)
    data = bytearray((folder / "deep/2.distcp").read_bytes())
    data[77] ^= 1
    (folder / "deep/2.distcp").write_bytes(data)

    with pytest.raises(CheckpointUnreadable, match=r"2\.distcp.*xxh3"):
        backend.put(folder, what)
    assert not [step for step in backend.steps() if readable(backend, step)]


def readable(backend, step):
    try:
        return bool(backend.manifest(step))
    except CheckpointUnreadable:
        return False


def test_a_changed_copy_is_not_fetched(tmp_path, checkpoint):
    backend, folder = FolderBackend(tmp_path / "copies"), checkpoint(5)
    backend.put(folder, checkpoint_manifest.read_manifest(folder))
    (backend.folder(5) / "first.distcp").write_bytes(b"other")

    with pytest.raises(CheckpointUnreadable, match="5 bytes"):
        fetch_all(backend, 5, tmp_path / "back")


def test_an_interrupted_copy_is_invalid_and_the_next_copy_cleans_up(tmp_path, checkpoint):
    backend, folder = FolderBackend(tmp_path / "copies"), checkpoint(5)
    what = checkpoint_manifest.read_manifest(folder)
    (tmp_path / "copies" / ".staging-copy-step-0000000005-dead").mkdir(parents=True)
    shutil.rmtree(folder / "deep")

    with pytest.raises(StorageUnusable, match="no such file"):
        backend.put(folder, what)
    assert [path.name for path in (tmp_path / "copies").iterdir()] == []


def test_too_little_space_is_reported_before_copying(tmp_path, checkpoint):
    folder = checkpoint(5)
    what = checkpoint_manifest.read_manifest(folder)
    huge = checkpoint_manifest.Manifest(
        step=5, files=(checkpoint_manifest.ManifestEntry(path="x", size=1 << 60, xxh3="0" * 32),)
    )

    with pytest.raises(StorageUnusable, match="GB free"):
        FolderBackend(tmp_path / "copies").put(folder, huge)
    FolderBackend(tmp_path / "copies").put(folder, what)


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("nosuch://bucket/x", StorageUnusable, "nosuch"),
        ("gs://bucket/x", MissingExtra, "gs://"),
    ],
)
def test_an_invalid_url_raises_one_sentence(url, kind, words):
    with pytest.raises(kind, match=words):
        open_backend(url)


def test_secrets_in_urls_are_redacted():
    assert RemoteBackend("memory://key:secret@bucket/x?token=abc").name == "memory://bucket/x"


def test_a_missing_bucket_is_not_empty(s3):
    assert open_backend(s3.url).steps() == []  # no objects in this folder of the bucket
    with pytest.raises(StorageUnusable, match="there is no bucket no-such-bucket"):
        open_backend("s3://no-such-bucket/run").steps()
