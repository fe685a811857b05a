"""The newest valid checkpoint over all places, the same for all ranks, and what was passed over."""

import shutil
from pathlib import Path

import pytest

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable
from holdfast.runtime.checkpoint.keeper import Keeper
from holdfast.runtime.checkpoint.places import Folder, place_of
from holdfast.runtime.checkpoint.resume import Search
from holdfast.runtime.checkpoint.rounds import Round
from tests.runtime.checkpoint.conftest import write_checkpoint
from tests.runtime.comm import ranks

LIMIT_S = 60


def search(root, copies=(), memory=None, before=None, name="search"):
    return Search(Folder(root), [place_of(each) for each in copies], memory, Round(name, "resuming", LIMIT_S), before)


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_nothing_is_none(tmp_path):
    assert search(tmp_path / "none", [tmp_path / "neither"]).newest() is None


def test_what_is_damaged_is_passed_over_with_a_sentence_each(tmp_path, checkpoint):
    for step in (100, 200, 300, 400, 500):
        checkpoint(step)
    ckpts = tmp_path / "ckpts"
    flip(ckpts / manifest.name_of(500) / "deep/1.distcp")
    (ckpts / manifest.name_of(400) / "first.distcp").unlink()
    flip(ckpts / manifest.name_of(300) / manifest.FILE)
    (ckpts / ".staging-step-0000000600-x").mkdir()

    looked = search(ckpts)
    assert looked.newest() == ckpts / manifest.name_of(200)
    said = "\n".join(looked.skipped)
    assert [sentence.partition(" in ")[0] for sentence in looked.skipped] == ["step 500", "step 400", "step 300"]
    assert "deep/1.distcp: its xxh3" in said
    assert "first.distcp: it is not there" in said


def test_where_all_are_damaged_nobody_begins_anew_unasked(tmp_path, checkpoint):
    for step in (100, 200):
        (checkpoint(step) / "first.distcp").write_bytes(b"")

    with pytest.raises(CheckpointUnreadable, match="any of the 2 checkpoints is damaged, the newest of step 200"):
        search(tmp_path / "ckpts").newest()


def test_a_newer_copy_wins_and_of_one_step_memory_then_the_folder(tmp_path, checkpoint):
    copy, memory = tmp_path / "copy", Folder(tmp_path / "memory", durable=False)
    for step in (100, 200):
        checkpoint(step)
    checkpoint(300, root=copy)
    assert search(tmp_path / "ckpts", [copy], memory).newest() == copy / manifest.name_of(300)

    shutil.copytree(copy / manifest.name_of(300), tmp_path / "ckpts" / manifest.name_of(300))
    assert search(tmp_path / "ckpts", [copy], memory).newest() == tmp_path / "ckpts" / manifest.name_of(300)

    shutil.copytree(copy / manifest.name_of(300), memory.folder(300))
    assert search(tmp_path / "ckpts", [copy], memory).newest() == memory.folder(300)

    flip(memory.folder(300) / "first.distcp")
    flip(tmp_path / "ckpts" / manifest.name_of(300) / "first.distcp")
    assert search(tmp_path / "ckpts", [copy], memory).newest() == copy / manifest.name_of(300)


def test_before_a_step_the_later_ones_are_set_aside_everywhere(tmp_path, checkpoint):
    for step in (100, 200, 300):
        checkpoint(step)
        checkpoint(step, root=tmp_path / "copy")
    keeper = Keeper(tmp_path / "ckpts", [tmp_path / "copy"])

    chosen, _ = keeper.newest(Round("one", "resuming", LIMIT_S), before=200)
    assert chosen == tmp_path / "ckpts" / manifest.name_of(100)
    assert keeper.newest(Round("two", "resuming", LIMIT_S))[0] == chosen  # the later ones are found no more
    assert len(list((tmp_path / "copy").glob(".aside-step-*"))) == 2
    keeper.finish(0)


@pytest.mark.slow
def test_what_lies_in_s3_alone_comes_back_and_unfinished_uploads_do_not(tmp_path, checkpoint, s3):
    place = place_of(s3.url)
    for step in (100, 200):
        folder = checkpoint(step, size=100_000)
        place.put(folder, manifest.read(folder))
    place._take_manifest(200)  # as if the upload had been cut off before its end
    shutil.rmtree(tmp_path / "ckpts")

    looked = search(tmp_path / "ckpts", [s3.url])
    found = looked.newest()
    assert found == tmp_path / "ckpts" / manifest.name_of(100)
    assert not any(manifest.damages(found, manifest.read(found)))
    assert [path.name for path in (tmp_path / "ckpts").iterdir()] == [manifest.name_of(100)]
    assert looked.skipped == [f"step 200 in {s3.url}: it has no manifest, so that nobody finished it"]


@pytest.mark.slow
def test_a_bucket_that_is_away_is_passed_over(tmp_path, checkpoint, s3):
    checkpoint(100)
    s3.end()
    looked = search(tmp_path / "ckpts", [s3.url])
    assert looked.newest() == tmp_path / "ckpts" / manifest.name_of(100)
    assert "EndpointConnectionError" in looked.skipped[0]


def _three(rank, folder):
    folder = Path(folder)
    memory = Folder(folder / f"memory{'A' if rank < 2 else 'B'}", durable=False)  # as of two hosts
    found = []
    for number in range(4):
        if number == 1 and rank == 2:
            flip(memory.folder(400) / "first.distcp")  # in the memory of one host
        if number == 2 and rank == 0:
            flip(folder / "ckpts" / manifest.name_of(400) / "deep/1.distcp")
        if number == 3 and rank == 0:
            flip(folder / "copy" / manifest.name_of(400) / "deep/2.distcp")
        if number == 2 and rank == 0:
            flip(folder / "memoryA" / manifest.name_of(400) / "first.distcp")  # in that of the other, too
        looked = search(folder / "ckpts", [folder / "copy", f"file://{folder}/far"], memory, name=f"search{number}")
        chosen = looked.newest()
        if rank == 2 and number == 1:
            assert not list(manifest.damages(chosen, manifest.read(chosen)))
        found.append((str(chosen), looked.skipped if rank == 0 else []))
    return found


@pytest.mark.slow
def test_three_ranks_of_two_hosts_take_the_same_one(tmp_path):
    for place in ("memoryA", "memoryB", "ckpts", "copy", "far"):
        write_checkpoint(tmp_path / place, 400, values={"from": "training"})
    results = ranks.run(3, _three, tmp_path, str(tmp_path))

    name = manifest.name_of(400)
    taken = [("memoryA", "memoryA", "memoryB/.gathered"), ("copy",) * 3, ("ckpts",) * 3]
    assert [result[0][0] for result in results] == [
        str(tmp_path / place / name) for place in ("memoryA", "memoryA", "memoryB")
    ]
    for number, places in enumerate(taken, start=1):
        for result, place in zip(results, places, strict=True):
            assert result[number][0].startswith(str(tmp_path / place)), number
            assert result[number][0].endswith(name)
    assert "memory" in results[0][2][1][0]
    assert len(results[0][3][1]) == 3  # memory, folder and copy; fetched from afar into the folder
