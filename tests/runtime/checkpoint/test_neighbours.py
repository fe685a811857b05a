"""Pieces of a checkpoint in the memories of several hosts: two parts in N each, and one host less loses nothing."""

import shutil
import socket
from pathlib import Path

import pytest

from holdfast import manifest
from holdfast.errors import CheckpointUnreadable, PlaceUnusable
from holdfast.manifest import Entry, Manifest
from holdfast.runtime.checkpoint import neighbours
from holdfast.runtime.checkpoint.neighbours import Memory, holders
from holdfast.runtime.checkpoint.places import Folder
from holdfast.runtime.checkpoint.resume import Search
from holdfast.runtime.checkpoint.rounds import Round
from tests.runtime.comm import ranks

LIMIT_S = 60
HOSTS = 4


def written(root, step, world):
    """A checkpoint as so many ranks write it."""
    folder = root / manifest.name_of(step)
    folder.mkdir(parents=True)
    entries = []
    own = [name for rank in range(world) for name in (f"__{rank}_0.distcp", f"rank-{rank:05d}.state")]
    for name in (".metadata", *own):
        (folder / name).write_bytes(name.encode() * (2000 if "distcp" in name else 10))
        entries.append(Entry(path=name, size=(folder / name).stat().st_size, xxh3=manifest.hash_of(folder / name)))
    manifest.write(folder, Manifest(step=step, ranks=world, files=tuple(entries)))
    return folder


def held(memory, step):
    return {path.name for path in memory.folder(step).iterdir()} - {manifest.FILE, neighbours.WHOLE}


def test_each_host_holds_its_own_pieces_and_its_neighbours(tmp_path):
    folder = written(tmp_path / "ckpts", 100, world=8)
    what = manifest.read(folder)
    memories = [Memory(tmp_path / f"host{number}", number, HOSTS) for number in range(HOSTS)]
    for memory in memories:
        memory.put(folder, what)
        memory.put(folder, what)  # is there already
    for number, memory in enumerate(memories):
        ours = {*range(2 * number, 2 * number + 2), *((rank - 2) % 8 for rank in range(2 * number, 2 * number + 2))}
        assert held(memory, 100) - {".metadata"} == {
            name for rank in ours for name in (f"__{rank}_0.distcp", f"rank-{rank:05d}.state")
        }
        part = memory.manifest(100)
        assert part.size <= what.size * 2 / HOSTS * 1.1
        assert not list(manifest.damages(memory.folder(100), part))
        assert neighbours.whole(memory.folder(100)) == what
    for gone in range(HOSTS):
        assert set().union(*(held(each, 100) for number, each in enumerate(memories) if number != gone)) == {
            entry.path for entry in what.files
        }


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_every_file_has_two_holders_where_there_are_two(nodes):
    for path in (".metadata", "__0_0.distcp", "__13_2.distcp", "engine/rank-00005.bin", "rank-99999.state"):
        found = holders(Entry(path=path, size=0, xxh3="0" * 32), 14, nodes)
        assert len(set(found)) == min(nodes, 2)
        assert all(0 <= node < nodes for node in found)


def _loaded(rank, folder, gone, damaged):
    """Each rank is a host of its own; ``gone`` ones have lost their memory, ``damaged`` ones a byte of each file."""
    folder = Path(folder)
    memory = Memory(folder / f"host{rank}", rank, HOSTS)
    if rank in gone:
        shutil.rmtree(memory.path)
    elif rank in damaged:
        for name in held(memory, 100):
            path = memory.folder(100) / name
            path.write_bytes(b"?" + path.read_bytes()[1:])
    looked = Search(Folder(folder / "ckpts"), [], memory, Round("one", "resuming", LIMIT_S))
    try:
        chosen = looked.newest()
    except CheckpointUnreadable as error:
        return str(error)
    if chosen is None:
        return None
    found = manifest.read(chosen)
    return len(found.files), list(manifest.damages(chosen, found)), chosen.is_relative_to(memory.path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gone", "damaged", "whole"),
    [((2,), (), True), ((), (1,), True), ((0,), (2,), True), ((1, 2), (), False)],
    ids=["host-lost", "damaged", "both", "two-neighbours-lost"],
)
def test_hosts_bring_together_what_is_left(tmp_path, gone, damaged, whole):
    folder = written(tmp_path / "ckpts", 100, world=8)
    for number in range(HOSTS):
        Memory(tmp_path / f"host{number}", number, HOSTS).put(folder, manifest.read(folder))
    shutil.rmtree(tmp_path / "ckpts")  # there is no disk

    results = ranks.run(HOSTS, _loaded, tmp_path, str(tmp_path), gone, damaged)
    assert results == [(17, [], True) if whole else None] * HOSTS


def test_only_who_knows_the_secret_gets_what_the_manifest_names(tmp_path):
    folder = written(tmp_path / "ckpts", 100, world=1)
    (tmp_path / "ckpts" / "other").write_text("not yours")
    entry = next(each for each in manifest.read(folder).files if each.path == "__0_0.distcp")
    with neighbours.handing_out(folder, "secret") as address:
        neighbours.fetch(["127.0.0.1 1", address], "secret", entry, tmp_path / "got")  # nobody is at the first
        assert (tmp_path / "got").read_bytes() == (folder / entry.path).read_bytes()
        for secret, path in (("wrong", entry.path), ("secret", "../other"), ("secret", manifest.FILE)):
            asked = Entry(path=path, size=9, xxh3=manifest.hash_of(tmp_path / "ckpts" / "other"))
            with pytest.raises(PlaceUnusable, match="not what was written"):
                neighbours.fetch([address], secret, asked, tmp_path / "no")
        host, port = address.split()
        with socket.create_connection((host, int(port))) as line:
            line.sendall(b"\xff" * 100 + b"\n")
            assert line.recv(1) == b""
    with pytest.raises(PlaceUnusable, match="refused"):
        neighbours.fetch([address], "secret", entry, tmp_path / "got")
