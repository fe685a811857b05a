"""Search for the newest valid checkpoint in all backends, with the same result on all ranks."""

import shutil
from pathlib import Path

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import CheckpointUnreadable
from holdfast.training.checkpoint.manager import CheckpointManager
from holdfast.training.checkpoint.resume import CheckpointSearch
from holdfast.training.checkpoint.storage.backends import FolderBackend, open_backend
from holdfast.training.checkpoint.store_agreement import StoreAgreement
from tests.unit.training.checkpoint.conftest import write_checkpoint
from tests.unit.training.collectives import ranks

LIMIT_S = 60


def search(root, copies=(), memory=None, before=None, name="search"):
    return CheckpointSearch(
        FolderBackend(root),
        [open_backend(each) for each in copies],
        memory,
        StoreAgreement(name, "resuming", LIMIT_S),
        before,
    )


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def test_an_empty_folder_returns_none(tmp_path):
    assert search(tmp_path / "none", [tmp_path / "neither"]).newest() is None


def test_damaged_checkpoints_are_skipped_with_a_reason_each(tmp_path, checkpoint):
    for step in (100, 200, 300, 400, 500):
        checkpoint(step)
    ckpts = tmp_path / "ckpts"
    flip(ckpts / checkpoint_manifest.folder_name(500) / "deep/1.distcp")
    (ckpts / checkpoint_manifest.folder_name(400) / "first.distcp").unlink()
    flip(ckpts / checkpoint_manifest.folder_name(300) / checkpoint_manifest.FILE)
    (ckpts / ".staging-step-0000000600-x").mkdir()

    checkpoint_search = search(ckpts)
    assert checkpoint_search.newest() == ckpts / checkpoint_manifest.folder_name(200)
    reasons = "\n".join(checkpoint_search.skipped)
    assert [sentence.partition(" in ")[0] for sentence in checkpoint_search.skipped] == [
        "step 500",
        "step 400",
        "step 300",
    ]
    assert "deep/1.distcp: its xxh3" in reasons
    assert "first.distcp: no such file" in reasons


def test_if_all_are_damaged_loading_fails(tmp_path, checkpoint):
    for step in (100, 200):
        (checkpoint(step) / "first.distcp").write_bytes(b"")

    with pytest.raises(
        CheckpointUnreadable, match="any of the 2 checkpoints is damaged, the newest of step 200"
    ):
        search(tmp_path / "ckpts").newest()


def test_newest_step_is_chosen_with_memory_before_the_folder(tmp_path, checkpoint):
    copy, memory = tmp_path / "copy", FolderBackend(tmp_path / "memory", durable=False)
    for step in (100, 200):
        checkpoint(step)
    checkpoint(300, root=copy)
    assert search(
        tmp_path / "ckpts", [copy], memory
    ).newest() == copy / checkpoint_manifest.folder_name(300)

    shutil.copytree(
        copy / checkpoint_manifest.folder_name(300),
        tmp_path / "ckpts" / checkpoint_manifest.folder_name(300),
    )
    assert search(
        tmp_path / "ckpts", [copy], memory
    ).newest() == tmp_path / "ckpts" / checkpoint_manifest.folder_name(300)

    shutil.copytree(copy / checkpoint_manifest.folder_name(300), memory.folder(300))
    assert search(tmp_path / "ckpts", [copy], memory).newest() == memory.folder(300)

    flip(memory.folder(300) / "first.distcp")
    flip(tmp_path / "ckpts" / checkpoint_manifest.folder_name(300) / "first.distcp")
    assert search(
        tmp_path / "ckpts", [copy], memory
    ).newest() == copy / checkpoint_manifest.folder_name(300)


def test_search_before_a_step_quarantines_later_checkpoints_in_all_backends(tmp_path, checkpoint):
    for step in (100, 200, 300):
        checkpoint(step)
        checkpoint(step, root=tmp_path / "copy")
    keeper = CheckpointManager(tmp_path / "ckpts", [tmp_path / "copy"])

    chosen, _ = keeper.newest(StoreAgreement("one", "resuming", LIMIT_S), before=200)
    assert chosen == tmp_path / "ckpts" / checkpoint_manifest.folder_name(100)
    assert (
        keeper.newest(StoreAgreement("two", "resuming", LIMIT_S))[0] == chosen
    )  # later ones are no longer found
    assert len(list((tmp_path / "copy").glob(".aside-step-*"))) == 2
    keeper.finish(0)


@pytest.mark.slow
def test_a_checkpoint_only_in_s3_is_restored_and_incomplete_uploads_are_not(
    tmp_path, checkpoint, s3
):
    backend = open_backend(s3.url)
    for step in (100, 200):
        folder = checkpoint(step, size=100_000)
        backend.put(folder, checkpoint_manifest.read_manifest(folder))
    backend._delete_manifest(200)  # emulates an interrupted upload
    shutil.rmtree(tmp_path / "ckpts")

    checkpoint_search = search(tmp_path / "ckpts", [s3.url])
    found = checkpoint_search.newest()
    assert found == tmp_path / "ckpts" / checkpoint_manifest.folder_name(100)
    assert not any(checkpoint_manifest.find_damage(found, checkpoint_manifest.read_manifest(found)))
    assert [path.name for path in (tmp_path / "ckpts").iterdir()] == [
        checkpoint_manifest.folder_name(100)
    ]
    assert checkpoint_search.skipped == [
        f"step 200 in {s3.url}: no manifest: it was never completed"
    ]


@pytest.mark.slow
def test_an_unreachable_bucket_is_skipped(tmp_path, checkpoint, s3):
    checkpoint(100)
    s3.end()
    checkpoint_search = search(tmp_path / "ckpts", [s3.url])
    assert checkpoint_search.newest() == tmp_path / "ckpts" / checkpoint_manifest.folder_name(100)
    assert "EndpointConnectionError" in checkpoint_search.skipped[0]


def _three(rank, folder):
    folder = Path(folder)
    memory = FolderBackend(
        folder / f"memory{'A' if rank < 2 else 'B'}", durable=False
    )  # emulates two hosts
    found = []
    for number in range(4):
        if number == 1 and rank == 2:
            flip(memory.folder(400) / "first.distcp")  # in the memory of one host
        if number == 2 and rank == 0:
            flip(folder / "ckpts" / checkpoint_manifest.folder_name(400) / "deep/1.distcp")
        if number == 3 and rank == 0:
            flip(folder / "copy" / checkpoint_manifest.folder_name(400) / "deep/2.distcp")
        if number == 2 and rank == 0:
            flip(
                folder / "memoryA" / checkpoint_manifest.folder_name(400) / "first.distcp"
            )  # and in the other host's memory
        checkpoint_search = search(
            folder / "ckpts",
            [folder / "copy", f"file://{folder}/far"],
            memory,
            name=f"search{number}",
        )
        chosen = checkpoint_search.newest()
        if rank == 2 and number == 1:
            assert not list(
                checkpoint_manifest.find_damage(chosen, checkpoint_manifest.read_manifest(chosen))
            )
        found.append((str(chosen), checkpoint_search.skipped if rank == 0 else []))
    return found


@pytest.mark.slow
def test_three_ranks_on_two_hosts_choose_the_same_checkpoint(tmp_path):
    for backend in ("memoryA", "memoryB", "ckpts", "copy", "far"):
        write_checkpoint(tmp_path / backend, 400, values={"from": "training"})
    results = ranks.run(3, _three, tmp_path, str(tmp_path))

    name = checkpoint_manifest.folder_name(400)
    expected_sources = [("memoryA", "memoryA", "memoryB/.gathered"), ("copy",) * 3, ("ckpts",) * 3]
    assert [result[0][0] for result in results] == [
        str(tmp_path / backend / name) for backend in ("memoryA", "memoryA", "memoryB")
    ]
    for number, sources in enumerate(expected_sources, start=1):
        for result, backend in zip(results, sources, strict=True):
            assert result[number][0].startswith(str(tmp_path / backend)), number
            assert result[number][0].endswith(name)
    assert "memory" in results[0][2][1][0]
    assert (
        len(results[0][3][1]) == 3
    )  # memory, folder and copy; fetched from the copy into the folder
