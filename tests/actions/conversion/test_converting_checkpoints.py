"""A conversion from end to end: proven, resumed, refused in one sentence, and never half done under its own name."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from safetensors.torch import load_file
from torch import nn

from holdfast.actions.conversion import converting, proving, staging
from holdfast.actions.conversion.converting import Wish, convert
from holdfast.actions.conversion.files import File, Written, whole
from holdfast.actions.conversion.names import parsed
from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import torch as torch_writer
from holdfast.errors import BadValue, CheckpointFailed, CheckpointUnreadable, MissingFile, PlaceUnusable
from holdfast.facts.checkpoints import formats
from holdfast.facts.checkpoints.contents import Format
from holdfast.facts.checkpoints.pieces import Reader


@pytest.fixture
def source(tmp_path):
    """What a job under DistributedDataParallel saves by torch.save."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 7))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 30)).sum().backward()
    optimizer.step()
    state = {f"module.{name}": each for name, each in model.state_dict().items()}
    torch.save({"model": state, "optimizer": optimizer.state_dict(), "step": 1}, tmp_path / "source.pt")
    return tmp_path / "source.pt"


def wish(source, to, name="target", **more):
    options = {key: more.pop(key) for key in list(more) if key in Options.__struct_fields__}
    maps = tuple(each for text in more.pop("maps", ()) for each in parsed(text))
    return Wish(
        source=source, target=source.parent / name, to=to, options=Options(**{"ranks": 0, **options}), maps=maps, **more
    )


def left_there(source):
    """What else lies beside the source."""
    return sorted(each.name for each in source.parent.iterdir() if each != source)


def weights_of(source):
    return torch.load(source, weights_only=True)["model"]


def test_weights_and_state_arrive_bit_by_bit(source):
    before = (source.read_bytes(), source.stat().st_mtime_ns)
    found = convert(wish(source, Format.TORCH))
    assert (found.source_format, found.tensors, found.states, found.resumed) == ("torch", 9, 12, False)
    assert found.proof is not None
    assert (found.proof.tensors, found.proof.states) == (9, 12)
    assert (found.losses, found.left_out, found.left_out_states) == ((), (), ())
    one, two = torch.load(source, weights_only=True), torch.load(source.parent / "target", weights_only=True)
    for name, each in one["model"].items():
        assert torch.equal(two["model"][name.removeprefix("module.")], each)
    for at, state in one["optimizer"]["state"].items():
        assert all(torch.equal(two["optimizer"]["state"][at][key], each) for key, each in state.items())
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before
    assert left_there(source) == ["target"]


def test_what_a_format_cannot_hold_is_said(source):
    found = convert(wish(source, Format.SAFETENSORS))
    assert (found.tensors, found.states, len(found.left_out_states)) == (9, 0, 12)
    assert any("optimizer" in each for each in found.losses)
    without = convert(wish(source, Format.SAFETENSORS, "other", optimizer=False))
    assert (without.states, without.left_out_states) == (0, ())


def test_there_and_back_is_the_same(source):
    before = torch.load(source, weights_only=True)
    convert(wish(source, Format.ZERO2, "zero2", ranks=3))
    zero2 = source.parent / "zero2"
    convert(wish(zero2, Format.ZERO3, "zero3", ranks=2))
    convert(wish(source.parent / "zero3", Format.TORCH, "back.pt"))
    after = torch.load(source.parent / "back.pt", weights_only=True)
    for name, each in before["model"].items():
        assert torch.equal(after["model"][name.removeprefix("module.")], each)
    for at, state in before["optimizer"]["state"].items():
        assert all(torch.equal(after["optimizer"]["state"][at][key], each) for key, each in state.items())


def test_as_many_ranks_as_wrote_the_source(source):
    convert(wish(source, Format.ZERO2, "zero2", ranks=3))
    convert(wish(source.parent / "zero2", Format.ZERO1, "zero1"))
    assert formats.read(source.parent / "zero1").world_size == 3


def test_another_dtype(source):
    convert(wish(source, Format.SAFETENSORS, dtype="bfloat16"))
    found = load_file(source.parent / "target")
    for name, each in weights_of(source).items():
        wanted = each.bfloat16() if each.is_floating_point() else each
        assert torch.equal(found[name.removeprefix("module.")], wanted)


def test_numbers_that_a_dtype_does_not_reach_are_counted(tmp_path):
    torch.save({"a": torch.tensor([1.0, 7e4, -1e30, float("inf")])}, tmp_path / "source.pt")
    found = convert(wish(tmp_path / "source.pt", Format.SAFETENSORS, dtype="float16"))
    assert found.proof is not None
    assert found.proof.beyond == {"a": 2}
    assert load_file(tmp_path / "target")["a"].tolist() == [1.0, float("inf"), float("-inf"), float("inf")]


def test_names(source):
    convert(wish(source, Format.SAFETENSORS, maps=["0=embed", "s/^2/head/"]))
    assert {"embed.weight", "1.running_mean", "head.bias"} < set(load_file(source.parent / "target"))
    convert(wish(source, Format.SAFETENSORS, "kept", keep_wrappers=True))
    assert "module.0.weight" in load_file(source.parent / "kept")
    with pytest.raises(BadValue, match=r"0.weight and module.2.weight would both be called 2.weight|would both be"):
        convert(wish(source, Format.SAFETENSORS, "none", maps=["0.weight=2.weight"]))
    assert left_there(source) == ["kept", "target"]


@pytest.mark.parametrize(
    ("name", "said"),
    [("source.pt", "is the source"), ("there", "is there already"), ("source.pt/in", "its folder does not exist")],
)
def test_where_no_target_may_be(source, name, said):
    (source.parent / "there").mkdir()
    with pytest.raises((BadValue, MissingFile), match=said):
        convert(wish(source, Format.TORCH, name))


def test_a_folder_is_not_converted_into_itself_nor_away(source):
    convert(wish(source, Format.ZERO2, "zero2"))
    zero2 = source.parent / "zero2"
    with pytest.raises(BadValue, match="inside of the source"):
        convert(Wish(source=zero2, target=zero2 / "in", to=Format.TORCH))
    tag = next(each for each in zero2.iterdir() if each.is_dir())
    with pytest.raises(BadValue, match="the source is inside of"):
        convert(Wish(source=tag, target=zero2, to=Format.TORCH, overwrite=True))
    assert zero2.is_dir()


def test_a_link_to_the_source_is_the_source(source):
    (source.parent / "link").symlink_to(source)
    with pytest.raises(BadValue, match="is the source"):
        convert(wish(source, Format.TORCH, "link", overwrite=True))


def test_what_is_there_is_replaced_when_the_new_one_is_whole(source):
    old = source.parent / "target"
    old.mkdir()
    (old / "mine").write_text("old")
    convert(wish(source, Format.SAFETENSORS, overwrite=True))
    assert old.is_file()
    assert left_there(source) == ["target"]


def test_no_room(tmp_path):
    """A file with a hole, of more bytes than any disk here has."""
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    source = tmp_path / "source.safetensors"
    source.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(source, 8 + len(header) + 4398046511104)
    with pytest.raises(PlaceUnusable, match=r"4\.0 TiB have to be written there and .* are free"):
        convert(wish(source, Format.TORCH))
    assert left_there(source) == []


def test_a_source_that_is_not_whole(source):
    os.truncate(source, 3000)
    with pytest.raises(CheckpointUnreadable):
        convert(wish(source, Format.TORCH))
    assert left_there(source) == []


def test_a_missing_shard_is_named_with_its_rank(source):
    convert(wish(source, Format.ZERO2, "zero2", ranks=3))
    next((source.parent / "zero2").rglob("*rank_1_mp*optim*")).unlink()
    with pytest.raises(CheckpointUnreadable, match=r"rank 1|rank_1"):
        convert(wish(source.parent / "zero2", Format.TORCH))
    assert left_there(source) == ["zero2"]


@pytest.mark.parametrize("to", [Format.TORCH, Format.ACCELERATE])
@pytest.mark.parametrize(
    ("made", "torn", "damage"),
    [
        (Format.ACCELERATE, "random_states_1.pkl", "unlink"),
        (Format.ACCELERATE, "optimizer.bin", "truncate"),
        (Format.UNIVERSAL, "exp_avg.pt", "unlink"),
        (Format.UNIVERSAL, "optimizer_state.pt", "truncate"),
    ],
)
def test_of_one_that_is_torn_beside_its_model_the_model_is_taken_on_request(source, made, torn, damage, to):
    convert(wish(source, made, "torn", ranks=3))
    file = min((source.parent / "torn").rglob(torn))
    file.unlink() if damage == "unlink" else os.truncate(file, 100)
    before = left_there(source)
    with pytest.raises(CheckpointUnreadable, match=rf"{torn}.*--no-optimizer takes them alone") as refused:
        convert(wish(source.parent / "torn", to))
    assert left_there(source) == before, refused
    found = convert(wish(source.parent / "torn", to, optimizer=False))
    assert any(each.startswith("left out, not being whole") and torn in each for each in found.notes)
    target = formats.read(source.parent / "target")
    wanted = weights_of(source)
    with Reader(Path(target.root)) as reader:
        for name, each in target.tensors.items():
            assert np.array_equal(reader.whole(each), wanted[f"module.{name}"].numpy())


class Wrong:
    """A writer with a bug."""

    def __init__(self, change):
        self.change = change

    def write(self, contents, options):
        return self.change(contents, torch_writer.write(contents, options))


def swapped(contents, written):
    """Two tensors in each other's place."""
    a, b = contents.tensors["1.weight"], contents.tensors["1.bias"]
    there = {id(a): whole(b), id(b): whole(a)}
    return _with(written, lambda part: there.get(id(getattr(part, "tensor", None)), part))


def _with(written, change):
    def record(found):
        return replace(found, parts=tuple(change(part) for part in found.parts))

    (file,) = written.files
    (archive,) = file.parts
    archive = replace(archive, records=tuple(record(each) for each in archive.records))
    return replace(written, files=(replace(file, parts=(archive,)),))


def nothing(_contents, _written):
    return Written((File("", (b"nothing",)),))


@pytest.mark.parametrize(
    ("change", "said"),
    [(swapped, "element 0 of 1.weight is not that of the source"), (nothing, "read back, it was not whole: cannot")],
)
def test_what_a_writer_does_wrong_never_gets_a_name(source, monkeypatch, change, said):
    monkeypatch.setattr(converting.targets, "writer", lambda *_: Wrong(change))
    with pytest.raises(CheckpointFailed, match=said):
        convert(wish(source, Format.TORCH))
    assert left_there(source) == []


def test_what_is_changed_after_writing_is_found(source, monkeypatch):
    """One bit of the staged file, flipped before it is read back."""
    read = formats.read

    def flipped(path, *hints):
        if staging.PREFIX in str(path):
            found = read(path, *hints)
            with path.open("r+b") as stream:
                stream.seek(found.tensors["2.weight"].pieces[0].offset + 41)
                byte = stream.read(1)
                stream.seek(-1, os.SEEK_CUR)
                stream.write(bytes([byte[0] ^ 1]))
        return read(path, *hints)

    monkeypatch.setattr(converting.formats, "read", flipped)
    with pytest.raises(CheckpointFailed, match=r"element 10 of 2\.weight is not that of the source"):
        convert(wish(source, Format.TORCH))
    assert left_there(source) == []


def test_a_source_that_changes_meanwhile(source):
    def touch(what, _done, _total):
        if what == "writing":
            os.utime(source)

    with pytest.raises(CheckpointFailed, match="was changed while it was read"):
        convert(wish(source, Format.TORCH), touch)
    assert left_there(source) == []


CUT_OFF = """
import os, sys, time
from pathlib import Path
from holdfast.actions.conversion import journal, layout
layout.STRETCH = journal.SYNCED_TOGETHER = 4 << 20
from holdfast.actions.conversion.converting import Wish, convert
from holdfast.facts.checkpoints.contents import Format
layout.lay_out.__defaults__ = (layout.STRETCH,)

def tell(what, done, total):
    if done > total * float(sys.argv[3]):
        book = Path(sys.argv[2]).with_name(f".converting-{Path(sys.argv[2]).name}") / "journal"
        while book.read_bytes().count(b"\\n") < 3:  # a slow disk may have synced nothing yet
            time.sleep(0.01)
        os.kill(os.getpid(), 9)

found = convert(Wish(source=Path(sys.argv[1]), target=Path(sys.argv[2]), to=Format(sys.argv[4])), tell)
print(found.resumed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("to", ["safetensors", "torch", "zero2"])
def test_one_that_was_killed_is_gone_on_with(tmp_path, to):
    torch.save({f"w{at}": torch.randn(1000, 1000) for at in range(12)}, tmp_path / "source.pt")

    def run(share):
        arguments = [tmp_path / "source.pt", tmp_path / "target", share, to]
        return subprocess.run(
            [sys.executable, "-c", CUT_OFF, *map(str, arguments)], capture_output=True, text=True, timeout=100,
            check=False, cwd=Path(__file__).parents[3],
        )  # fmt: skip

    assert run(0.8).returncode == -9
    assert left_there(tmp_path / "source.pt") == [".converting-target"]
    journal = tmp_path / ".converting-target" / "journal"
    assert len(journal.read_text().splitlines()) > 2, "nothing to go on from"
    with pytest.raises(CheckpointUnreadable):
        formats.read(tmp_path / ".converting-target")
    last = run(2)
    assert (last.returncode, last.stdout.strip()) == (0, "True"), last.stderr
    wanted = torch.load(tmp_path / "source.pt", weights_only=True)
    found = formats.read(tmp_path / "target")
    with Reader(Path(found.root)) as reader:
        for name, each in found.tensors.items():
            assert np.array_equal(reader.whole(each), wanted[name].numpy())
    assert left_there(tmp_path / "source.pt") == ["target"]


@pytest.mark.slow
def test_a_disk_that_fails_meanwhile(tmp_path):
    """A limit on the size of files, which the system calls keep to as they do to a full disk."""
    torch.save({"a": torch.randn(3000, 1000)}, tmp_path / "source.pt")
    script = 'ulimit -f 4000; exec "$0" -m holdfast ckpt convert source.pt target --to safetensors'
    result = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {script}", sys.executable], cwd=tmp_path, capture_output=True, text=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 3
    assert "the conversion to target failed: file too large; the source is as it was; the same" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "target").exists()
    result = subprocess.run(
        [sys.executable, "-m", "holdfast", "ckpt", "convert", "source.pt", "target", "--to", "safetensors"],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert left_there(tmp_path / "source.pt") == ["target"]


def test_one_target_at_a_time(source):
    waiting, go_on = threading.Event(), threading.Event()

    def hold(_what, _done, _total):
        waiting.set()
        go_on.wait(30)

    one = threading.Thread(target=convert, args=(wish(source, Format.TORCH), hold))
    one.start()
    try:
        assert waiting.wait(30)
        with pytest.raises(CheckpointFailed, match="another process is writing it"):
            convert(wish(source, Format.TORCH))
    finally:
        go_on.set()
        one.join(30)
    assert left_there(source) == ["target"]


def test_blocks_of_two_readings_are_aligned():
    def blocks(*sizes):
        at = 0
        for size in sizes:
            yield np.arange(at, at + size)
            at += size

    pairs = list(proving.aligned(blocks(3, 4, 3), blocks(5, 5)))
    assert [len(one) for one, _ in pairs] == [3, 2, 2, 3]
    assert all(np.array_equal(one, two) for one, two in pairs)
    assert sum(len(one) for one, _ in proving.aligned(blocks(3), blocks(5))) == 3
