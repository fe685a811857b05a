"""Folders, S3 and other places: what is put there is what was written, or it is no checkpoint there."""

import itertools
import shutil

import pytest

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, MissingExtra, PlaceUnusable
from holdfast.runtime.checkpoint.places import Folder, Remote, place_of

_numbers = itertools.count()


@pytest.fixture(params=["folder", "memory://", "s3"])
def place(request, tmp_path):
    if request.param == "s3":
        return place_of(request.getfixturevalue("s3").url)
    if request.param == "folder":
        return place_of(tmp_path / "copies" / "deep")
    return place_of(f"memory://test{next(_numbers)}/run")


def fetched(place, step, into):
    found = place.manifest(step)
    for entry in found.files:
        place.fetch(found, entry, into)
    return {path.relative_to(into).as_posix(): path.read_bytes() for path in into.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_what_is_put_is_found_fetched_set_aside_and_removed(place, checkpoint, tmp_path):
    assert place.steps() == []
    for step in (100, 200, 300):
        folder = checkpoint(step)
        place.put(folder, manifest.read(folder))

    assert place.steps() == [300, 200, 100]
    assert place.manifest(200) == manifest.read(tmp_path / "ckpts" / manifest.name_of(200))
    assert fetched(place, 200, tmp_path / "back") == {
        entry.path: (tmp_path / "ckpts" / manifest.name_of(200) / entry.path).read_bytes()
        for entry in place.manifest(200).files
    }

    place.remove(100)
    assert place.steps() == [300, 200]
    place.set_aside(300)
    with pytest.raises((CheckpointUnreadable, PlaceUnusable)):
        place.manifest(300)


@pytest.mark.slow
def test_another_checkpoint_of_the_same_step_takes_its_place(place, checkpoint, tmp_path):
    first, second = checkpoint(7), checkpoint(7, root=tmp_path / "again", values={"loss": 1.5}, size=99)
    place.put(first, manifest.read(first))
    place.put(first, manifest.read(first))  # is there already
    place.put(second, manifest.read(second))

    assert place.manifest(7).values == {"loss": 1.5}
    assert fetched(place, 7, tmp_path / "back")["first.distcp"] == (second / "first.distcp").read_bytes()


@pytest.mark.slow
def test_a_damaged_source_is_not_copied(place, checkpoint):
    folder = checkpoint(5)
    what = manifest.read(folder)
    data = bytearray((folder / "deep/2.distcp").read_bytes())
    data[77] ^= 1
    (folder / "deep/2.distcp").write_bytes(data)

    with pytest.raises(CheckpointUnreadable, match=r"2\.distcp.*xxh3"):
        place.put(folder, what)
    assert not [step for step in place.steps() if readable(place, step)]


def readable(place, step):
    try:
        return bool(place.manifest(step))
    except CheckpointUnreadable:
        return False


def test_a_changed_copy_is_not_fetched(tmp_path, checkpoint):
    place, folder = Folder(tmp_path / "copies"), checkpoint(5)
    place.put(folder, manifest.read(folder))
    (place.folder(5) / "first.distcp").write_bytes(b"other")

    with pytest.raises(CheckpointUnreadable, match="5 bytes"):
        fetched(place, 5, tmp_path / "back")


def test_a_copy_that_is_cut_off_leaves_no_checkpoint_and_the_next_one_clears_up(tmp_path, checkpoint):
    place, folder = Folder(tmp_path / "copies"), checkpoint(5)
    what = manifest.read(folder)
    (tmp_path / "copies" / ".staging-copy-step-0000000005-dead").mkdir(parents=True)
    shutil.rmtree(folder / "deep")

    with pytest.raises(PlaceUnusable, match="no such file"):
        place.put(folder, what)
    assert [path.name for path in (tmp_path / "copies").iterdir()] == []


def test_a_place_too_small_says_so_before_it_is_full(tmp_path, checkpoint):
    folder = checkpoint(5)
    what = manifest.read(folder)
    huge = manifest.Manifest(step=5, files=(manifest.Entry(path="x", size=1 << 60, xxh3="0" * 32),))

    with pytest.raises(PlaceUnusable, match="GB are free"):
        Folder(tmp_path / "copies").put(folder, huge)
    Folder(tmp_path / "copies").put(folder, what)


@pytest.mark.parametrize(
    ("url", "kind", "words"),
    [
        ("nosuch://bucket/x", PlaceUnusable, "nosuch"),
        ("gs://bucket/x", MissingExtra, "gs://"),
    ],
)
def test_a_url_that_cannot_be_is_one_sentence(url, kind, words):
    with pytest.raises(kind, match=words):
        place_of(url)


def test_no_secret_of_a_url_is_shown():
    assert Remote("memory://key:secret@bucket/x?token=abc").name == "memory://bucket/x"
