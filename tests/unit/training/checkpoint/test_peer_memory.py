"""Checkpoints distributed over host memories: each host holds 2/N, and losing one host loses no data."""

import shutil
import socket
from pathlib import Path

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from holdfast.core.errors import CheckpointUnreadable, StorageUnusable
from holdfast.training.checkpoint.resume import CheckpointSearch
from holdfast.training.checkpoint.storage import peer_memory
from holdfast.training.checkpoint.storage.backends import FolderBackend
from holdfast.training.checkpoint.storage.peer_memory import PeerMemory, shard_holders
from holdfast.training.checkpoint.store_agreement import StoreAgreement
from tests.unit.training.collectives import ranks

LIMIT_S = 60
HOSTS = 4


def write_ranks_checkpoint(root, step, world):
    """Write a checkpoint with the files of ``world`` ranks."""
    folder = root / checkpoint_manifest.folder_name(step)
    folder.mkdir(parents=True)
    entries = []
    own = [
        name for rank in range(world) for name in (f"__{rank}_0.distcp", f"rank-{rank:05d}.state")
    ]
    for name in (".metadata", *own):
        (folder / name).write_bytes(name.encode() * (2000 if "distcp" in name else 10))
        entries.append(
            ManifestEntry(
                path=name,
                size=(folder / name).stat().st_size,
                xxh3=checkpoint_manifest.hash_file(folder / name),
            )
        )
    checkpoint_manifest.write_manifest(
        folder, Manifest(step=step, ranks=world, files=tuple(entries))
    )
    return folder


def held_files(memory, step):
    return {path.name for path in memory.folder(step).iterdir()} - {
        checkpoint_manifest.FILE,
        peer_memory.FULL_MANIFEST,
    }


def test_each_host_holds_its_own_files_and_its_neighbors(tmp_path):
    folder = write_ranks_checkpoint(tmp_path / "ckpts", 100, world=8)
    manifest = checkpoint_manifest.read_manifest(folder)
    memories = [PeerMemory(tmp_path / f"host{number}", number, HOSTS) for number in range(HOSTS)]
    for memory in memories:
        memory.put(folder, manifest)
        memory.put(folder, manifest)  # already stored
    for number, memory in enumerate(memories):
        expected_ranks = {
            *range(2 * number, 2 * number + 2),
            *((rank - 2) % 8 for rank in range(2 * number, 2 * number + 2)),
        }
        assert held_files(memory, 100) - {".metadata"} == {
            name
            for rank in expected_ranks
            for name in (f"__{rank}_0.distcp", f"rank-{rank:05d}.state")
        }
        part = memory.manifest(100)
        assert part.size <= manifest.size * 2 / HOSTS * 1.1
        assert not list(checkpoint_manifest.find_damage(memory.folder(100), part))
        assert peer_memory.read_full_manifest(memory.folder(100)) == manifest
    for lost in range(HOSTS):
        assert set().union(
            *(held_files(each, 100) for number, each in enumerate(memories) if number != lost)
        ) == {entry.path for entry in manifest.files}


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_every_file_has_two_holders_if_there_are_two_hosts(nodes):
    for path in (
        ".metadata",
        "__0_0.distcp",
        "__13_2.distcp",
        "engine/rank-00005.bin",
        "rank-99999.state",
    ):
        found = shard_holders(ManifestEntry(path=path, size=0, xxh3="0" * 32), 14, nodes)
        assert len(set(found)) == min(nodes, 2)
        assert all(0 <= node < nodes for node in found)


def _search_and_load(rank, folder, lost, damaged):
    """Search on one host per rank; ``lost`` hosts have no memory, ``damaged`` hosts have one wrong byte per file."""
    folder = Path(folder)
    memory = PeerMemory(folder / f"host{rank}", rank, HOSTS)
    if rank in lost:
        shutil.rmtree(memory.path)
    elif rank in damaged:
        for name in held_files(memory, 100):
            path = memory.folder(100) / name
            path.write_bytes(b"?" + path.read_bytes()[1:])
    search = CheckpointSearch(
        FolderBackend(folder / "ckpts"), [], memory, StoreAgreement("one", "resuming", LIMIT_S)
    )
    try:
        chosen = search.newest()
    except CheckpointUnreadable as error:
        return str(error)
    if chosen is None:
        return None
    found = checkpoint_manifest.read_manifest(chosen)
    return (
        len(found.files),
        list(checkpoint_manifest.find_damage(chosen, found)),
        chosen.is_relative_to(memory.path),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "damaged", "whole"),
    [((2,), (), True), ((), (1,), True), ((0,), (2,), True), ((1, 2), (), False)],
    ids=["host-lost", "damaged", "both", "two-neighbours-lost"],
)
def test_hosts_assemble_the_remaining_files(tmp_path, lost, damaged, whole):
    folder = write_ranks_checkpoint(tmp_path / "ckpts", 100, world=8)
    for number in range(HOSTS):
        PeerMemory(tmp_path / f"host{number}", number, HOSTS).put(
            folder, checkpoint_manifest.read_manifest(folder)
        )
    shutil.rmtree(tmp_path / "ckpts")  # no checkpoint on disk

    results = ranks.run(HOSTS, _search_and_load, tmp_path, str(tmp_path), lost, damaged)
    assert results == [(17, [], True) if whole else None] * HOSTS


def test_files_of_the_manifest_are_served_only_with_the_secret(tmp_path):
    folder = write_ranks_checkpoint(tmp_path / "ckpts", 100, world=1)
    (tmp_path / "ckpts" / "other").write_text("not yours")
    entry = next(
        each
        for each in checkpoint_manifest.read_manifest(folder).files
        if each.path == "__0_0.distcp"
    )
    with peer_memory.serve_files(folder, "secret") as address:
        peer_memory.fetch_file(
            ["127.0.0.1 1", address], "secret", entry, tmp_path / "got"
        )  # the first address does not respond
        assert (tmp_path / "got").read_bytes() == (folder / entry.path).read_bytes()
        for secret, path in (
            ("wrong", entry.path),
            ("secret", "../other"),
            ("secret", checkpoint_manifest.FILE),
        ):
            requested = ManifestEntry(
                path=path, size=9, xxh3=checkpoint_manifest.hash_file(tmp_path / "ckpts" / "other")
            )
            with pytest.raises(StorageUnusable, match="does not match the manifest"):
                peer_memory.fetch_file([address], secret, requested, tmp_path / "no")
        host, port = address.split()
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"\xff" * 100 + b"\n")
            assert line.recv(1) == b""
    with pytest.raises(StorageUnusable, match="refused"):
        peer_memory.fetch_file([address], "secret", entry, tmp_path / "got")
