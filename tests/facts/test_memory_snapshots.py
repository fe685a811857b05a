"""What a snapshot of a GPU's memory tells, and that no file can do harm. The snapshots are written here, see there."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import SnapshotUnreadable
from holdfast.facts.allocations import Use, use
from holdfast.facts.memory_snapshots import parse
from holdfast.facts.ranks import Place

from . import snapshots as made
from .snapshots import GIB, MIB


def test_what_lies_in_a_full_gpu_and_who_asked_for_it():
    found = parse(made.full(), "oom_rank_3.pickle")
    (device,) = found.devices
    assert (found.rank, found.dropped) == (3, 0)
    assert device.uses == {Use.ACTIVATIONS: 70 * GIB, Use.OPTIMIZER: 6 * GIB, Use.PARAMETERS: 3 * GIB}
    assert (device.reserved, device.held, device.idle) == (79 * GIB, 79 * GIB, 0)
    assert [(str(site.place), site.bytes, site.blocks) for site in device.sites][:1] == [
        ("/home/me/model.py:88 in forward", 70 * GIB, 10)
    ]
    assert [(each.size, each.free, each.use) for each in device.asked] == [(4 * GIB, 300 * MIB, Use.ACTIVATIONS)]


def test_idle_memory_and_its_largest_piece():
    (device,) = parse(made.fragmented()).devices
    assert (device.idle, device.largest, device.whole) == (24 * GIB, GIB, 0)


def test_what_outlives_the_optimizers_steps_is_told_by_the_events():
    (device,) = parse(made.growing(8)).devices
    assert [(str(kept.place), kept.bytes, kept.steps) for kept in device.kept] == [
        ("/home/me/model.py:88 in forward", 8 * GIB, 8)
    ]
    assert parse(made.growing(2)).devices[0].kept == ()


def test_what_a_handler_gave_back_is_put_back():
    (device,) = parse(made.handled()).devices
    assert (device.held, device.returned, device.idle) == (7 * GIB, 6 * GIB, 0)
    assert device.uses == {Use.ACTIVATIONS: 6 * GIB, Use.PARAMETERS: GIB}


def test_frames_of_torch_1_13_stand_in_a_history():
    segment = made.segment((GIB, made.LINEAR))
    block = segment["blocks"][0]
    block["history"] = [{"frames": block.pop("frames"), "real_size": GIB}]
    (device,) = parse(made.snapshot(segment)).devices
    assert device.uses == {Use.ACTIVATIONS: GIB}


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (made.LINEAR, Use.ACTIVATIONS), (made.LOSS, Use.LOSS), (made.STEP, Use.OPTIMIZER), (made.MOVED, Use.PARAMETERS),
        (made.ENGINE, Use.BACKWARD), (made.GATHER, Use.GATHERED), ([], Use.UNTOLD), ([made.TRAIN], Use.UNTOLD),
        ([made.frame("AccumulateGrad.cpp", 1, "torch::autograd::AccumulateGrad::apply"), *made.ENGINE], Use.GRADIENTS),
        ([made.frame(f"{made.TORCH}/serialization.py", 1500, "persistent_load"), made.TRAIN], Use.LOADED),
    ],
)  # fmt: skip
def test_what_memory_is_for(frames, kind):
    assert use([Place(each["filename"], each["line"], each["name"]) for each in frames]) is kind


def test_a_line_that_no_file_has_is_none():
    frame = made.frame("/home/me/train.py", 1 << 64, "main")
    assert parse(made.snapshot(made.segment((GIB, [frame])))).devices[0].sites[0].place.line == 0


class Runs:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (pickle.dumps({"segments": [Runs()]}), "more than plain data"),
        (made.full()[:300], "it ends in the middle"),
        (b"", "it ends in the middle"),
        (pickle.dumps({"version": "2.4", "entries": []}), "it has no segments"),
        (pickle.dumps([1, 2]), "it has no segments"),
    ],
)
def test_what_is_no_snapshot_is_refused_in_one_sentence(data, said):
    with pytest.raises(SnapshotUnreadable, match=said) as caught:
        parse(data, "x.pickle")
    assert "\n" not in str(caught.value)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 62), 1 << 62) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["device", "total_size", "blocks", "size", "state", "address", "addr", "frames", "action",
                         "filename", "name", "line", "requested_size", "history"]), inner, max_size=6),
    max_leaves=20,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(anything, max_size=3), st.lists(anything, max_size=2))
def test_nothing_in_a_snapshot_makes_it_fail(segments, traces):
    found = parse(pickle.dumps({"segments": segments, "device_traces": traces}))
    assert all(device.held <= 1 << 55 for device in found.devices)
