"""torch pickles are parsed; the code that they would run is reported, not executed."""

import collections
import io
import os
import pickle
import pickletools
import subprocess
import sys
import time
from argparse import Namespace

import pytest

from holdfast.ckpt.files import torch_pickle
from holdfast.ckpt.files.torch_pickle import (
    GlobalRefused,
    LoadedPickle,
    OpaqueObject,
    PickleUnreadable,
    PlainDict,
    load,
    loads,
    scan_opcodes,
)

PLAIN = {
    "step": 3,
    "lr": 1e-3,
    "betas": (0.9, 0.999),
    "names": ["a", "b" * 300],
    "none": None,
    "yes": True,
    "large": 2**70,
    "bytes": b"\0\1",
    "set": {1, 2},
    "negative": -(2**31),
    "ordered": collections.OrderedDict(b=1, a=2),
    "default": collections.defaultdict(list, x=[1]),
}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values(protocol):
    found = loads(pickle.dumps(PLAIN, protocol=protocol))
    assert found == LoadedPickle(PLAIN)
    assert list(found.value["ordered"]) == ["b", "a"]
    assert type(found.value["default"]) is PlainDict


def test_consecutive_pickles():
    stream = io.BytesIO(pickle.dumps([1], 2) + pickle.dumps({"a": 2}, 2) + b"the numbers")
    assert [load(stream).value, load(stream).value] == [[1], {"a": 2}]
    assert stream.read() == b"the numbers"


class Runs:
    """Calls a function when loaded."""

    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(
    ("function", "name"),
    [
        (os.system, "posix.system"),
        (eval, ".eval"),
        (exec, ".exec"),
        (subprocess.Popen, ".Popen"),
        (subprocess.check_output, ".check_output"),
        (__import__, ".__import__"),
        (getattr, ".getattr"),
        (pickle.loads, "pickle.loads"),
        (os.path.exists, "genericpath.exists"),
        (open, ".open"),
    ],
)
def test_side_effects_are_refused(tmp_path, protocol, function, name):
    mark = tmp_path / "mark"
    data = pickle.dumps({"model": Runs(function, f"touch {mark}")}, protocol)
    with pytest.raises(GlobalRefused) as refused:
        loads(data)
    (named,) = refused.value.names
    assert named.endswith(name)
    assert name in str(refused.value)
    assert not mark.exists()


def test_function_of_an_allowed_library_is_refused():
    for module, name in (
        ("torch", "load"),
        ("torch.hub", "load"),
        ("numpy.testing._private.utils", "runstring"),
    ):
        data = b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n(tR."
        with pytest.raises(GlobalRefused, match=f"{module}.{name}".replace(".", r"\.")):
            loads(data)
    with pytest.raises(
        GlobalRefused, match="mine"
    ):  # protocol 4 may walk through attributes: a class's method
        loads(b"\x80\x04\x8c\x04mine\x8c\x0aThing.call\x93)R.")


def test_foreign_class_is_opaque_and_reported():
    found = loads(pickle.dumps({"args": Namespace(lr=0.1), "mine": Own(7)}, 2))
    args, own = found.value["args"], found.value["mine"]
    assert isinstance(args, OpaqueObject)
    assert (args.path, args.state) == ("argparse.Namespace", {"lr": 0.1})
    assert own.state == {"value": 7}
    assert found.foreign == (f"{__name__}.Own",)


class Own:
    """A class of a training script."""

    def __init__(self, value):
        self.value = value


def test_dict_ignores_attributes():
    data = b"\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsK\x01sb."
    assert pickle.loads(data).items == 1  # attributes can be set
    assert loads(data).value.items() == {}.items()


MALFORMED = {
    "empty": b"",
    "cut": pickle.dumps(list(range(100)), 2)[:-20],
    "nothing": b"not a pickle",
    "old protocol": pickle.dumps([1], 0),
    "looked up by number": b"\x80\x02\x82\x01.",
    "a text longer than the file": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "a name without an end": b"\x80\x02c" + b"a" * 5000,
    "an empty stack": b"\x80\x02R.",
    "a reference that is none": b"\x80\x02K\x01Q.",
    "a large number of the memo": b"\x80\x02K\x01r\xff\xff\xff\x7f.",
    "a frame without end": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fK\x01.",
    "a tensor of nothing": b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x02K\x03K\x04tR.",
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_invalid_pickles_are_refused(data):
    with pytest.raises(PickleUnreadable) as refused:
        loads(data)
    assert "\n" not in str(refused.value)


def test_object_limit(monkeypatch):
    monkeypatch.setattr(torch_pickle, "MAX_OBJECTS", 1000)  # 16 million take a minute
    data = b"\x80\x02]" + b"(X\x01\x00\x00\x00ae" * 1001
    with pytest.raises(PickleUnreadable, match="objects"):
        scan_opcodes(data)


def test_scan_ends_where_python_ends():
    data = pickle.dumps(PLAIN, 4)
    assert scan_opcodes(data + b"more") == len(data)
    assert sum(1 for _ in pickletools.genops(data)) > 20


@pytest.mark.slow
def test_large_model_is_parsed_in_a_second():
    layer = {
        f"model.layers.{n}.mlp.experts.{m}.down_proj.weight": (n, m)
        for n in range(200)
        for m in range(250)
    }
    data = pickle.dumps(layer, 2)
    start = time.process_time()
    assert len(loads(data).value) == 50_000
    assert time.process_time() - start < 2
    assert sys.getsizeof(data) > 1_000_000
