"""Malicious checkpoint files: reading them must not run code, hang or exhaust memory.

``CALLS`` are pickles that call a function when a framework loads them; most would create the marker
file. ``CONTAINERS`` put such a pickle where frameworks load one. ``BROKEN`` are files with invalid
metadata.
"""

import io
import json
import os
import pickle
import struct
import types
import zipfile
from pathlib import Path

import torch


class Call:
    """An object whose pickle calls ``function`` with ``arguments``."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


def by_name(module, name, arguments, protocol=2):
    """Return a pickle that calls a function by name, which need not be importable."""
    return (
        b"\x80"
        + bytes([protocol])
        + b"c"
        + f"{module}\n{name}\n".encode()
        + pickle.dumps(arguments, protocol=2)[2:-1]
        + b"R."
    )


def old_instance(marker):
    """Return a pickle of protocol 0 whose opcode INST calls a function without REDUCE."""
    return b"(S" + repr(f"touch {marker}").encode() + b"\nios\nsystem\n."


def hidden(marker):
    """Return a pickle that reads the function name from the stack (STACK_GLOBAL)."""
    return (
        b"\x80\x04\x8c\x02os\x8c\x06system\x93"
        + pickle.dumps((f"touch {marker}",), 4)[2:-1]
        + b"R."
    )


def among_tensors(marker):
    """Return a state_dict in which one value is a call."""
    return pickle.dumps({"a": 1, "b": [2, Call(os.system, f"touch {marker}")]}, 2)


def made_function(marker):
    """Return a pickle that builds a function from a code object and calls it."""
    del marker
    return b"\x80\x02ctypes\nFunctionType\n(ctypes\nCodeType\n(K\x00tR}tR)R."


CALLS = {
    "os.system": lambda marker: by_name("os", "system", (f"touch {marker}",)),
    "posix.system": lambda marker: pickle.dumps(Call(os.system, f"touch {marker}"), 2),
    "subprocess.Popen": lambda marker: by_name("subprocess", "Popen", (["touch", str(marker)],)),
    "builtins.exec": lambda marker: by_name("builtins", "exec", (f"open({str(marker)!r}, 'w')",)),
    "__builtin__.eval": lambda marker: by_name(
        "__builtin__", "eval", (f"open({str(marker)!r}, 'w')",)
    ),
    "builtins.open": lambda marker: by_name("builtins", "open", (str(marker), "w")),
    "builtins.__import__": lambda _: by_name("builtins", "__import__", ("antigravity",)),
    "builtins.getattr": lambda _: by_name("builtins", "getattr", ("", "join")),
    "importlib.import_module": lambda _: by_name("importlib", "import_module", ("antigravity",)),
    "runpy.run_path": lambda marker: by_name("runpy", "run_path", (str(marker),)),
    "pickle.loads": lambda marker: by_name(
        "pickle", "loads", (by_name("os", "system", (f"touch {marker}",)),)
    ),
    "_pickle.loads": lambda marker: by_name(
        "_pickle", "loads", (by_name("os", "system", (f"touch {marker}",)),)
    ),
    "torch.load": lambda marker: by_name("torch", "load", (str(marker),)),
    "torch.hub.load": lambda _: by_name("torch.hub", "load", ("someone/something", "model")),
    "torch.serialization.load": lambda marker: by_name(
        "torch.serialization", "load", (str(marker),)
    ),
    "numpy.load": lambda marker: by_name("numpy", "load", (str(marker), None, True)),
    "numpy.testing._private.utils.runstring": lambda marker: by_name(
        "numpy.testing._private.utils", "runstring", (f"open({str(marker)!r}, 'w')", {})
    ),
    "deepspeed.launcher.runner.main": lambda marker: by_name(
        "deepspeed.launcher.runner", "main", ([str(marker)],)
    ),
    "webbrowser.open": lambda _: by_name("webbrowser", "open", ("http://127.0.0.1:9",)),
    "shutil.rmtree": lambda marker: by_name(
        "shutil", "rmtree", (str(Path(marker).parent / "victim"),)
    ),
    "ctypes.CDLL": lambda marker: by_name("ctypes", "CDLL", (str(marker),)),
    "functools.partial": lambda _: by_name("functools", "partial", (print, "x")),
    "operator.attrgetter": lambda _: by_name("operator", "attrgetter", ("__class__",)),
    "code.InteractiveInterpreter": lambda _: by_name("code", "InteractiveInterpreter", ()),
    "timeit.timeit": lambda marker: by_name("timeit", "timeit", (f"open({str(marker)!r}, 'w')",)),
    "somebody.evil": lambda marker: by_name("somebody", "evil", (str(marker),)),
    "pathlib.Path.write_text": lambda marker: by_name(
        "pathlib", "Path.write_text", (str(marker), "x")
    ),
    "STACK_GLOBAL": hidden,
    "INST": old_instance,
    "among tensors": among_tensors,
    "function of code": made_function,
}


def zipped(data):
    """Wrap a pickle in a torch.save file."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/byteorder", "little")
        archive.writestr("archive/version", "3\n")
    return stream.getvalue()


def in_torch(folder, data):
    """Wrap a pickle as torch.save does since 1.6."""
    (folder / "model.pt").write_bytes(zipped(data))
    return folder / "model.pt"


def in_old_torch(folder, data):
    """Wrap a pickle as the legacy torch.save does."""
    front = b"".join(
        pickle.dumps(each, 2) for each in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
    )
    (folder / "model.pt").write_bytes(front + data + pickle.dumps([], 2))
    return folder / "model.pt"


def in_dcp(folder, data):
    """Use a pickle as DCP's index."""
    (folder / "dcp").mkdir()
    (folder / "dcp" / ".metadata").write_bytes(data)
    (folder / "dcp" / "__0_0.distcp").write_bytes(b"\0" * 64)
    return folder / "dcp"


def in_zero(folder, data):
    """Use a pickle as one rank's DeepSpeed optimizer state, next to a valid model."""
    tag = folder / "zero" / "global_step3"
    tag.mkdir(parents=True)
    (folder / "zero" / "latest").write_text("global_step3")
    torch.save(
        {
            "module": {"w": torch.ones(4)},
            "param_shapes": [{"w": torch.Size([4])}],
            "dp_world_size": 1,
            "mp_world_size": 1,
            "ds_version": "0.19.8",
        },
        tag / "mp_rank_00_model_states.pt",
    )
    (tag / "zero_pp_rank_0_mp_rank_00_optim_states.pt").write_bytes(zipped(data))
    return folder / "zero"


CONTAINERS = {"torch": in_torch, "old torch": in_old_torch, "dcp": in_dcp, "zero": in_zero}


def safetensors(header, payload=b""):
    """Return a safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + payload


def _entry(shape, offsets, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def _torch_tensor(numel, shape, strides, offset=0):
    """Return a torch.save file whose tensor is described by hand over 16 bytes."""
    storage = pickle.dumps(("storage", "KIND", "0", "cpu", numel), 2)[2:-1].replace(
        b"X\x04\x00\x00\x00KIND", b"ctorch\nFloatStorage\n"
    )
    arguments = (
        b"("
        + storage
        + b"Q"
        + b"".join(pickle.dumps(each, 2)[2:-1] for each in (offset, shape, strides))
    )
    tensor = (
        b"ctorch._utils\n_rebuild_tensor_v2\n" + arguments + b"\x89ccollections\nOrderedDict\n)RtR"
    )
    stream = io.BytesIO(zipped(b"\x80\x02}X\x01\x00\x00\x00w" + tensor + b"s."))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("archive/data/0", b"\0" * 16)
    return stream.getvalue()


def compressed():
    """Return a small file with a large compressed record."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\0" * (64 << 20))
    return stream.getvalue()


def deep(levels=200_000):
    """Return lists nested deeper than any stack."""
    return zipped(b"\x80\x02" + b"]" * levels + b"a" * (levels - 1) + b".")


def laughing(levels=40):
    """Return lists that each contain the previous one ten times (billion laughs)."""
    content = b"\x80\x02]q\x00"
    for level in range(levels):
        content += (
            b"](" + b"".join(b"h" + bytes([level]) for _ in range(10)) + b"eq" + bytes([level + 1])
        )
    return zipped(content + b".")


BROKEN = {
    "header without end": ("model.safetensors", lambda: struct.pack("<Q", 1 << 62) + b"{}"),
    "header of 4 GiB": ("model.safetensors", lambda: struct.pack("<Q", 1 << 32) + b"{}"),
    "header is no JSON": ("model.safetensors", lambda: safetensors(b"{" * 5000)),
    "deep header": (
        "model.safetensors",
        lambda: safetensors(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    ),
    "header is a list": ("model.safetensors", lambda: safetensors([1, 2])),
    "beyond its end": (
        "model.safetensors",
        lambda: safetensors({"w": _entry([1024], [0, 4096])}, b"\0" * 16),
    ),
    "negative": (
        "model.safetensors",
        lambda: safetensors({"w": _entry([-4], [0, -16])}, b"\0" * 16),
    ),
    "shape is not size": (
        "model.safetensors",
        lambda: safetensors({"w": _entry([1 << 40], [0, 16])}, b"\0" * 16),
    ),
    "unknown dtype": (
        "model.safetensors",
        lambda: safetensors({"w": _entry([4], [0, 16], "F9")}, b"\0" * 16),
    ),
    "backwards": (
        "model.safetensors",
        lambda: safetensors({"w": _entry([4], [16, 0])}, b"\0" * 16),
    ),
    "tensor beyond its record": ("model.pt", lambda: _torch_tensor(4, (1 << 40,), (1,))),
    "negative stride": ("model.pt", lambda: _torch_tensor(4, (4,), (-1,))),
    "offset before its record": ("model.pt", lambda: _torch_tensor(4, (4,), (1,), -8)),
    "compressed": ("model.pt", compressed),
    "deep": ("model.pt", deep),
    "laughing": ("model.pt", laughing),
    "holds itself": ("model.pt", lambda: zipped(b"\x80\x02]q\x00h\x00a.")),
    "cut in its directory": ("model.pt", lambda: zipped(pickle.dumps({"w": 1}, 2))[:-30]),
    "no pickle": ("model.pt", lambda: zipped(b"\xff" * 100)),
    "memo of 2^31": ("model.pt", lambda: zipped(b"\x80\x02]r\xff\xff\xff\x7f.")),
    "number of 2^31 bytes": ("model.pt", lambda: zipped(b"\x80\x02\x8b\xff\xff\xff\x7f1.")),
    "string of 2^31 bytes": ("model.pt", lambda: zipped(b"\x80\x02X\xff\xff\xff\x7fabc.")),
    "empty": ("model.pt", lambda: b""),
    "noise": ("model.pt", lambda: bytes(range(256)) * 64),
}


def outside(folder):
    """Return an index whose shard is a file outside the checkpoint."""
    place = folder / "folder"
    place.mkdir()
    (folder / "secret.safetensors").write_bytes(
        safetensors({"w": _entry([4], [0, 16])}, b"\1" * 16)
    )
    index = {"metadata": {"total_size": 16}, "weight_map": {"w": "../secret.safetensors"}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))
    (place / "config.json").write_text("{}")
    return place


def pipe(folder):
    """Create a named pipe, which blocks on open."""
    os.mkfifo(folder / "model.pt")
    return folder / "model.pt"


def pipe_in_folder(folder):
    """Create a folder with a named pipe as a shard."""
    place = folder / "folder"
    place.mkdir()
    os.mkfifo(place / "model.safetensors")
    (place / "config.json").write_text("{}")
    return place


def circle(folder):
    """Create a folder that contains a link to itself."""
    place = folder / "folder"
    place.mkdir()
    (place / "global_step1").symlink_to(place)
    (place / "latest").write_text("global_step1")
    return place


def endless(folder):
    """Create a link to /dev/zero, which is infinite."""
    (folder / "model.pt").symlink_to("/dev/zero")
    return folder / "model.pt"


PLACES = {
    "outside": outside,
    "pipe": pipe,
    "pipe in a folder": pipe_in_folder,
    "circle": circle,
    "endless": endless,
}


def victim(folder):
    """Return the marker file, which a pickle must not create, and a folder that it must not delete."""
    (folder / "victim").mkdir(exist_ok=True)
    return types.SimpleNamespace(marker=folder / "OWNED", kept=folder / "victim")
