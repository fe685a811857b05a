"""Test helper: writes a writer's TargetFiles to disk, simply and in memory."""

import struct
import zlib
from pathlib import Path

import torch
import xxhash

from holdfast.ckpt.contents import (
    CheckpointContents,
    CheckpointFormat,
    OptimizerState,
    ParamGroup,
    Tensor,
    TensorShard,
)
from holdfast.ckpt.convert import archives, files
from holdfast.ckpt.tensor_blocks import TensorReader, cast_block

_ZIP64 = 0x0001
_PADDING = int.from_bytes(b"FB", "little")
_FULL = archives.LIMIT32


def stream(written, contents, target):
    """Write every file below ``target`` (or ``target`` itself); return ``target``."""
    with TensorReader(Path(contents.root)) as reader:
        sizes = {file.path: _put(file, reader, Path(target)) for file in written.files}
        if written.seal is not None:
            _put(written.seal(sizes), reader, Path(target))
    return Path(target)


def _put(file, reader, target):
    """Write one file; return its size and hash."""
    path = target / file.path if file.path else target
    path.parent.mkdir(parents=True, exist_ok=True)
    data = b"".join(data_of(part, reader) for part in file.parts)
    assert len(data) == file.size, f"{file.path} has {len(data)} bytes, but declares {file.size}"
    path.write_bytes(data)
    return len(data), xxhash.xxh3_128_hexdigest(data)


def data_of(part, reader):
    """Return the bytes of one part."""
    match part:
        case bytes():
            return part
        case files.Zeros():
            return bytes(part.size)
        case files.TensorRun():
            blocks = reader.blocks(part.tensor, part.start, part.stop)
            return b"".join(cast_block(block, part.dtype).tobytes() for block in blocks)
        case files.TensorBox():
            places = tuple(slice(at, at + n) for at, n in zip(part.start, part.shape, strict=True))
            return cast_block(reader.read_tensor(part.tensor)[places], part.dtype).tobytes()
        case files.Archive():
            return _archive(part, reader)
        case files.SourceCopy():
            return (reader.root / part.file).read_bytes()[part.offset :][: part.size]
    raise AssertionError(part)


def _archive(archive, reader):
    out, directory = bytearray(), bytearray()
    for record in archive.records:
        at, name = len(out), archives.record_name(record)
        data = b"".join(data_of(part, reader) for part in record.parts)
        crc, size = zlib.crc32(data), len(data)
        assert size == record.size, (
            f"the record {record.name} has {size} bytes, but declares {record.size}"
        )
        pad = archives.padding(at, record)
        extra = struct.pack("<HHQQ", _ZIP64, 16, size, size) if size >= archives.LIMIT32 else b""
        extra += struct.pack("<HH", _PADDING, pad - 4) + b"Z" * (pad - 4)
        out += _header(b"PK\x03\x04", crc, min(size, _FULL), name, extra) + name + extra + data
        large = archives.needs_zip64(size, at)
        extra = struct.pack("<HHQQQ", _ZIP64, 24, size, size, at) if large else b""
        entry = _header(b"PK\x01\x02\x00\x00", crc, _FULL if large else size, name, extra)
        directory += (
            entry + struct.pack("<HHHII", 0, 0, 0, 0, _FULL if large else at) + name + extra
        )
    return bytes(out + directory + _end(len(out), len(directory), len(archive.records)))


def _header(magic, crc, size, name, extra):
    version = 45 if extra[:2] == b"\x01\x00" else 20
    return magic + struct.pack(
        "<HHHHHIIIHH", version, 0, 0, 0, 0x21, crc, size, size, len(name), len(extra)
    )


def _end(at, size, count):
    """Return the end of the directory of ``size`` bytes and ``count`` entries at ``at``."""
    large = at + size >= archives.LIMIT32 or count >= 0xFFFF
    end = b""
    if large:
        end = b"PK\x06\x06" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, size, at)
        end += b"PK\x06\x07" + struct.pack("<IQI", 0, at + size, 1)
    few, short, place = (0xFFFF, _FULL, _FULL) if large else (count, size, at)
    return end + b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, few, few, short, place, 0)


def neutral(folder, model, optimizer=None, *, format=CheckpointFormat.TORCH, **more):  # noqa: A002 - the field is called so
    """Return contents of a module and its optimizer, with data in ``folder/numbers``.

    ``more`` are other fields of CheckpointContents (``step``, ``values``).
    """
    numbers = _Numbers(Path(folder))
    state = model.state_dict(keep_vars=True)
    first = {}
    for name, tensor in state.items():
        first.setdefault(id(tensor), name)
    ties = {name: first[id(tensor)] for name, tensor in state.items() if first[id(tensor)] != name}
    tensors = {
        name: numbers.tensor(name, tensor) for name, tensor in state.items() if name not in ties
    }
    parameters = dict(model.named_parameters())
    frozen = frozenset(name for name, each in parameters.items() if not each.requires_grad)
    found = CheckpointContents(
        format=format,
        root=str(folder),
        tensors=tensors,
        ties=ties,
        frozen=frozen,
        buffers=frozenset(name for name in tensors if name not in parameters),
        optimizer=numbers.optimizer(parameters, optimizer) if optimizer is not None else None,
        **more,
    )
    numbers.path.write_bytes(numbers.data)
    return found


class _Numbers:
    def __init__(self, folder):
        self.path, self.data = folder / "numbers", bytearray()

    def tensor(self, name, tensor):
        """Store a torch tensor; return it as a Tensor."""
        tensor = tensor.detach().cpu().contiguous()
        dtype, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
        shard = TensorShard(
            file=self.path.name, offset=len(self.data), shape=shape, start=(0,) * len(shape)
        )
        self.data += tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        return Tensor(
            name=name, dtype=dtype, shape=shape, shards=(shard,) if tensor.numel() else ()
        )

    def optimizer(self, parameters, optimizer):
        """Return the states by name, with scalar states (``step``) separate."""
        names = {id(each): name for name, each in parameters.items()}
        tensors, numbers = {}, {}
        for parameter, state in optimizer.state.items():
            name = names[id(parameter)]
            tensors[name] = {
                key: self.tensor(name, each) for key, each in state.items() if _has_size(each)
            }
            numbers[name] = {
                key: _number(each) for key, each in state.items() if not _has_size(each)
            }
        groups = tuple(
            ParamGroup(
                params=tuple(names[id(each)] for each in group["params"]),
                options={key: value for key, value in group.items() if key != "params"},
            )
            for group in optimizer.param_groups
        )
        return OptimizerState(tensors=tensors, numbers=numbers, groups=groups)


def _has_size(value):
    return isinstance(value, torch.Tensor) and value.dim() > 0


def _number(value):
    return value.item() if isinstance(value, torch.Tensor) else value
