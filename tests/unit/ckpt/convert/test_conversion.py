"""Conversions end to end: verified, resumable, clear errors, and no partial targets."""

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

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert import pipeline, staging, verification
from holdfast.ckpt.convert.files import TargetFile, TargetFiles, whole_tensor
from holdfast.ckpt.convert.names import parse_name_maps
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.pipeline import ConversionRequest, convert_checkpoint
from holdfast.ckpt.convert.writers import torch as torch_writer
from holdfast.ckpt.formats import registry
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.core.errors import (
    CheckpointFailed,
    CheckpointUnreadable,
    InvalidValue,
    MissingFile,
    StorageUnusable,
)


@pytest.fixture
def source(tmp_path):
    """Return a torch.save file of a DistributedDataParallel job."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(30, 40), nn.BatchNorm1d(40), nn.Linear(40, 7))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 30)).sum().backward()
    optimizer.step()
    state = {f"module.{name}": each for name, each in model.state_dict().items()}
    torch.save(
        {"model": state, "optimizer": optimizer.state_dict(), "step": 1}, tmp_path / "source.pt"
    )
    return tmp_path / "source.pt"


def request_for(source, to, name="target", **more):
    options = {key: more.pop(key) for key in list(more) if key in ConvertOptions.__struct_fields__}
    maps = tuple(each for text in more.pop("maps", ()) for each in parse_name_maps(text))
    return ConversionRequest(
        source=source,
        target=source.parent / name,
        to=to,
        options=ConvertOptions(**{"ranks": 0, **options}),
        maps=maps,
        **more,
    )


def left_there(source):
    """Return the other entries next to the source."""
    return sorted(each.name for each in source.parent.iterdir() if each != source)


def weights_of(source):
    return torch.load(source, weights_only=True)["model"]


def test_weights_and_state_are_bit_identical(source):
    before = (source.read_bytes(), source.stat().st_mtime_ns)
    found = convert_checkpoint(request_for(source, CheckpointFormat.TORCH))
    assert (found.source_format, found.tensors, found.states, found.resumed) == (
        "torch",
        9,
        12,
        False,
    )
    assert found.proof is not None
    assert (found.proof.tensors, found.proof.states) == (9, 12)
    assert (found.losses, found.left_out, found.left_out_states) == ((), (), ())
    one, two = (
        torch.load(source, weights_only=True),
        torch.load(source.parent / "target", weights_only=True),
    )
    for name, each in one["model"].items():
        assert torch.equal(two["model"][name.removeprefix("module.")], each)
    for at, state in one["optimizer"]["state"].items():
        assert all(
            torch.equal(two["optimizer"]["state"][at][key], each) for key, each in state.items()
        )
    assert (source.read_bytes(), source.stat().st_mtime_ns) == before
    assert left_there(source) == ["target"]


def test_losses_are_reported(source):
    found = convert_checkpoint(request_for(source, CheckpointFormat.SAFETENSORS))
    assert (found.tensors, found.states, len(found.left_out_states)) == (9, 0, 12)
    assert any("optimizer" in each for each in found.losses)
    without = convert_checkpoint(
        request_for(source, CheckpointFormat.SAFETENSORS, "other", optimizer=False)
    )
    assert (without.states, without.left_out_states) == (0, ())


def test_round_trip(source):
    before = torch.load(source, weights_only=True)
    convert_checkpoint(request_for(source, CheckpointFormat.ZERO2, "zero2", ranks=3))
    zero2 = source.parent / "zero2"
    convert_checkpoint(request_for(zero2, CheckpointFormat.ZERO3, "zero3", ranks=2))
    convert_checkpoint(request_for(source.parent / "zero3", CheckpointFormat.TORCH, "back.pt"))
    after = torch.load(source.parent / "back.pt", weights_only=True)
    for name, each in before["model"].items():
        assert torch.equal(after["model"][name.removeprefix("module.")], each)
    for at, state in before["optimizer"]["state"].items():
        assert all(
            torch.equal(after["optimizer"]["state"][at][key], each) for key, each in state.items()
        )


def test_default_rank_count(source):
    convert_checkpoint(request_for(source, CheckpointFormat.ZERO2, "zero2", ranks=3))
    convert_checkpoint(request_for(source.parent / "zero2", CheckpointFormat.ZERO1, "zero1"))
    assert registry.read_checkpoint(source.parent / "zero1").world_size == 3


def test_another_dtype(source):
    convert_checkpoint(request_for(source, CheckpointFormat.SAFETENSORS, dtype="bfloat16"))
    found = load_file(source.parent / "target")
    for name, each in weights_of(source).items():
        expected = each.bfloat16() if each.is_floating_point() else each
        assert torch.equal(found[name.removeprefix("module.")], expected)


def test_values_out_of_dtype_range_are_counted(tmp_path):
    torch.save({"a": torch.tensor([1.0, 7e4, -1e30, float("inf")])}, tmp_path / "source.pt")
    found = convert_checkpoint(
        request_for(tmp_path / "source.pt", CheckpointFormat.SAFETENSORS, dtype="float16")
    )
    assert found.proof is not None
    assert found.proof.beyond == {"a": 2}
    assert load_file(tmp_path / "target")["a"].tolist() == [
        1.0,
        float("inf"),
        float("-inf"),
        float("inf"),
    ]


def test_names(source):
    convert_checkpoint(
        request_for(source, CheckpointFormat.SAFETENSORS, maps=["0=embed", "s/^2/head/"])
    )
    assert {"embed.weight", "1.running_mean", "head.bias"} < set(
        load_file(source.parent / "target")
    )
    convert_checkpoint(
        request_for(source, CheckpointFormat.SAFETENSORS, "kept", keep_wrappers=True)
    )
    assert "module.0.weight" in load_file(source.parent / "kept")
    with pytest.raises(
        InvalidValue,
        match=r"0.weight and module.2.weight would both be called 2.weight|would both be",
    ):
        convert_checkpoint(
            request_for(source, CheckpointFormat.SAFETENSORS, "none", maps=["0.weight=2.weight"])
        )
    assert left_there(source) == ["kept", "target"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("source.pt", "is the source"),
        ("there", "already exists"),
        ("source.pt/in", "its folder does not exist"),
    ],
)
def test_invalid_targets(source, name, message):
    (source.parent / "there").mkdir()
    with pytest.raises((InvalidValue, MissingFile), match=message):
        convert_checkpoint(request_for(source, CheckpointFormat.TORCH, name))


def test_target_overlapping_the_source(source):
    convert_checkpoint(request_for(source, CheckpointFormat.ZERO2, "zero2"))
    zero2 = source.parent / "zero2"
    with pytest.raises(InvalidValue, match="inside the source"):
        convert_checkpoint(
            ConversionRequest(source=zero2, target=zero2 / "in", to=CheckpointFormat.TORCH)
        )
    tag = next(each for each in zero2.iterdir() if each.is_dir())
    with pytest.raises(InvalidValue, match="the source is inside"):
        convert_checkpoint(
            ConversionRequest(source=tag, target=zero2, to=CheckpointFormat.TORCH, overwrite=True)
        )
    assert zero2.is_dir()


def test_symlink_to_the_source_is_refused(source):
    (source.parent / "link").symlink_to(source)
    with pytest.raises(InvalidValue, match="is the source"):
        convert_checkpoint(request_for(source, CheckpointFormat.TORCH, "link", overwrite=True))


def test_overwrite_replaces_after_completion(source):
    old = source.parent / "target"
    old.mkdir()
    (old / "mine").write_text("old")
    convert_checkpoint(request_for(source, CheckpointFormat.SAFETENSORS, overwrite=True))
    assert old.is_file()
    assert left_there(source) == ["target"]


def test_insufficient_space(tmp_path):
    """Use a sparse file larger than any disk."""
    header = b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}'
    source = tmp_path / "source.safetensors"
    source.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(source, 8 + len(header) + 4398046511104)
    with pytest.raises(StorageUnusable, match=r"4\.0 TiB are needed, but only .* are free"):
        convert_checkpoint(request_for(source, CheckpointFormat.TORCH))
    assert left_there(source) == []


def test_incomplete_source(source):
    os.truncate(source, 3000)
    with pytest.raises(CheckpointUnreadable):
        convert_checkpoint(request_for(source, CheckpointFormat.TORCH))
    assert left_there(source) == []


def test_missing_shard_is_reported_with_rank(source):
    convert_checkpoint(request_for(source, CheckpointFormat.ZERO2, "zero2", ranks=3))
    next((source.parent / "zero2").rglob("*rank_1_mp*optim*")).unlink()
    with pytest.raises(CheckpointUnreadable, match=r"rank 1|rank_1"):
        convert_checkpoint(request_for(source.parent / "zero2", CheckpointFormat.TORCH))
    assert left_there(source) == ["zero2"]


@pytest.mark.parametrize("to", [CheckpointFormat.TORCH, CheckpointFormat.ACCELERATE])
@pytest.mark.parametrize(
    ("source_format", "torn", "damage"),
    [
        (CheckpointFormat.ACCELERATE, "random_states_1.pkl", "unlink"),
        (CheckpointFormat.ACCELERATE, "optimizer.bin", "truncate"),
        (CheckpointFormat.UNIVERSAL, "exp_avg.pt", "unlink"),
        (CheckpointFormat.UNIVERSAL, "optimizer_state.pt", "truncate"),
    ],
)
def test_no_optimizer_converts_a_checkpoint_with_intact_model(
    source, source_format, torn, damage, to
):
    convert_checkpoint(request_for(source, source_format, "torn", ranks=3))
    file = min((source.parent / "torn").rglob(torn))
    file.unlink() if damage == "unlink" else os.truncate(file, 100)
    before = left_there(source)
    with pytest.raises(CheckpointUnreadable, match=rf"{torn}.*use --no-optimizer") as refused:
        convert_checkpoint(request_for(source.parent / "torn", to))
    assert left_there(source) == before, refused
    found = convert_checkpoint(request_for(source.parent / "torn", to, optimizer=False))
    assert any(each.startswith("omitted (incomplete)") and torn in each for each in found.notes)
    target = registry.read_checkpoint(source.parent / "target")
    expected = weights_of(source)
    with TensorReader(Path(target.root)) as reader:
        for name, each in target.tensors.items():
            assert np.array_equal(reader.read_tensor(each), expected[f"module.{name}"].numpy())


class Wrong:
    """A writer with a bug."""

    def __init__(self, change):
        self.change = change

    def write(self, contents, options):
        return self.change(contents, torch_writer.write(contents, options))


def swapped(contents, written):
    """Swap two tensors."""
    a, b = contents.tensors["1.weight"], contents.tensors["1.bias"]
    there = {id(a): whole_tensor(b), id(b): whole_tensor(a)}
    return _with(written, lambda part: there.get(id(getattr(part, "tensor", None)), part))


def _with(written, change):
    def record(found):
        return replace(found, parts=tuple(change(part) for part in found.parts))

    (file,) = written.files
    (archive,) = file.parts
    archive = replace(archive, records=tuple(record(each) for each in archive.records))
    return replace(written, files=(replace(file, parts=(archive,)),))


def nothing(_contents, _written):
    return TargetFiles((TargetFile("", (b"nothing",)),))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (swapped, "element 0 of 1.weight differs from the source"),
        (nothing, "failed verification: cannot"),
    ],
)
def test_faulty_writer_output_is_removed(source, monkeypatch, change, message):
    monkeypatch.setattr(pipeline.targets, "load_writer", lambda *_: Wrong(change))
    with pytest.raises(CheckpointFailed, match=message):
        convert_checkpoint(request_for(source, CheckpointFormat.TORCH))
    assert left_there(source) == []


def test_corruption_after_writing_is_detected(source, monkeypatch):
    """Flip one bit of the staged file before it is read back."""
    read = registry.read_checkpoint

    def flipped(path, *hints):
        if staging.PREFIX in str(path):
            found = read(path, *hints)
            with path.open("r+b") as stream:
                stream.seek(found.tensors["2.weight"].shards[0].offset + 41)
                byte = stream.read(1)
                stream.seek(-1, os.SEEK_CUR)
                stream.write(bytes([byte[0] ^ 1]))
        return read(path, *hints)

    monkeypatch.setattr(pipeline.registry, "read_checkpoint", flipped)
    with pytest.raises(CheckpointFailed, match=r"element 10 of 2\.weight differs from the source"):
        convert_checkpoint(request_for(source, CheckpointFormat.TORCH))
    assert left_there(source) == []


def test_source_changing_during_conversion(source):
    def touch(what, _done, _total):
        if what == "writing":
            os.utime(source)

    with pytest.raises(CheckpointFailed, match="changed while it was read"):
        convert_checkpoint(request_for(source, CheckpointFormat.TORCH), touch)
    assert left_there(source) == []


CUT_OFF = """
import os, sys, time
from pathlib import Path
from holdfast.ckpt.convert import journal, layout
layout.SEGMENT_BYTES = journal.SYNC_BYTES = 4 << 20
from holdfast.ckpt.convert.pipeline import ConversionRequest, convert_checkpoint
from holdfast.ckpt.contents import CheckpointFormat
layout.build_layout.__defaults__ = (layout.SEGMENT_BYTES,)

def on_progress(what, done, total):
    if done > total * float(sys.argv[3]):
        journal_file = Path(sys.argv[2]).with_name(f".converting-{Path(sys.argv[2]).name}") / "journal"
        while journal_file.read_bytes().count(b"\\n") < 3:  # a slow disk may have synced nothing yet
            time.sleep(0.01)
        os.kill(os.getpid(), 9)

source, target = Path(sys.argv[1]), Path(sys.argv[2])
request = ConversionRequest(source=source, target=target, to=CheckpointFormat(sys.argv[4]))
print(convert_checkpoint(request, on_progress).resumed)
"""


@pytest.mark.slow
@pytest.mark.parametrize("to", ["safetensors", "torch", "zero2"])
def test_killed_conversion_resumes(tmp_path, to):
    torch.save({f"w{at}": torch.randn(1000, 1000) for at in range(12)}, tmp_path / "source.pt")

    def run(share):
        arguments = [tmp_path / "source.pt", tmp_path / "target", share, to]
        return subprocess.run(
            [sys.executable, "-c", CUT_OFF, *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            cwd=Path(__file__).parents[4],
        )

    assert run(0.8).returncode == -9
    assert left_there(tmp_path / "source.pt") == [".converting-target"]
    journal = tmp_path / ".converting-target" / "journal"
    assert len(journal.read_text().splitlines()) > 2, "nothing to resume from"
    with pytest.raises(CheckpointUnreadable):
        registry.read_checkpoint(tmp_path / ".converting-target")
    last = run(2)
    assert (last.returncode, last.stdout.strip()) == (0, "True"), last.stderr
    expected = torch.load(tmp_path / "source.pt", weights_only=True)
    found = registry.read_checkpoint(tmp_path / "target")
    with TensorReader(Path(found.root)) as reader:
        for name, each in found.tensors.items():
            assert np.array_equal(reader.read_tensor(each), expected[name].numpy())
    assert left_there(tmp_path / "source.pt") == ["target"]


@pytest.mark.slow
def test_disk_failure(tmp_path):
    """Limit the file size, which system calls handle like a full disk."""
    torch.save({"a": torch.randn(3000, 1000)}, tmp_path / "source.pt")
    script = 'ulimit -f 4000; exec "$0" -m holdfast ckpt convert source.pt target --to safetensors'
    result = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; {script}", sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 3
    assert (
        "the conversion to target failed: file too large; the source is unchanged; run"
        in result.stderr
    )
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "target").exists()
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "holdfast",
            "ckpt",
            "convert",
            "source.pt",
            "target",
            "--to",
            "safetensors",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert left_there(tmp_path / "source.pt") == ["target"]


def test_concurrent_conversion_is_refused(source):
    waiting, go_on = threading.Event(), threading.Event()

    def hold(_what, _done, _total):
        waiting.set()
        go_on.wait(30)

    one = threading.Thread(
        target=convert_checkpoint, args=(request_for(source, CheckpointFormat.TORCH), hold)
    )
    one.start()
    try:
        assert waiting.wait(30)
        with pytest.raises(CheckpointFailed, match="another process is writing to it"):
            convert_checkpoint(request_for(source, CheckpointFormat.TORCH))
    finally:
        go_on.set()
        one.join(30)
    assert left_there(source) == ["target"]


def test_align_blocks():
    def blocks(*sizes):
        at = 0
        for size in sizes:
            yield np.arange(at, at + size)
            at += size

    pairs = list(verification.align_blocks(blocks(3, 4, 3), blocks(5, 5)))
    assert [len(one) for one, _ in pairs] == [3, 2, 2, 3]
    assert all(np.array_equal(one, two) for one, two in pairs)
    assert sum(len(one) for one, _ in verification.align_blocks(blocks(3), blocks(5))) == 3
