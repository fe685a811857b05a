"""Content of GPU memory snapshots, and refusal of harmful files. The snapshots are generated."""

from __future__ import annotations

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.errors import SnapshotUnreadable
from holdfast.core.rank_table import SourceLine
from holdfast.diagnose.memory_snapshots import parse_snapshot
from holdfast.host.allocation_purpose import AllocationPurpose, purpose_of
from tests.hypothesis_profiles import examples

from . import memory_snapshot_factory as factory
from .memory_snapshot_factory import GIB, MIB


def test_full_gpu_is_summed_by_purpose_and_site():
    found = parse_snapshot(factory.full(), "oom_rank_3.pickle")
    (device,) = found.devices
    assert (found.rank, found.dropped) == (3, 0)
    assert device.purposes == {
        AllocationPurpose.ACTIVATIONS: 70 * GIB,
        AllocationPurpose.OPTIMIZER: 6 * GIB,
        AllocationPurpose.PARAMETERS: 3 * GIB,
    }
    assert (device.reserved, device.held, device.idle) == (79 * GIB, 79 * GIB, 0)
    assert [(str(site.site), site.bytes, site.blocks) for site in device.sites][:1] == [
        ("/home/me/model.py:88 in forward", 70 * GIB, 10)
    ]
    assert [(each.size, each.free, each.purpose) for each in device.failed_requests] == [
        (4 * GIB, 300 * MIB, AllocationPurpose.ACTIVATIONS)
    ]


def test_idle_memory_and_its_largest_block():
    (device,) = parse_snapshot(factory.fragmented()).devices
    assert (device.idle, device.largest, device.releasable) == (24 * GIB, GIB, 0)


def test_memory_that_outlives_optimizer_steps_is_retained():
    (device,) = parse_snapshot(factory.growing(8)).devices
    assert [(str(kept.site), kept.bytes, kept.steps) for kept in device.retained] == [
        ("/home/me/model.py:88 in forward", 8 * GIB, 8)
    ]
    assert parse_snapshot(factory.growing(2)).devices[0].retained == ()


def test_memory_freed_by_a_handler_is_restored():
    (device,) = parse_snapshot(factory.handled()).devices
    assert (device.held, device.returned, device.idle) == (7 * GIB, 6 * GIB, 0)
    assert device.purposes == {
        AllocationPurpose.ACTIVATIONS: 6 * GIB,
        AllocationPurpose.PARAMETERS: GIB,
    }


def test_frames_of_torch_1_13_are_read_from_the_history():
    segment = factory.segment((GIB, factory.LINEAR))
    block = segment["blocks"][0]
    block["history"] = [{"frames": block.pop("frames"), "real_size": GIB}]
    (device,) = parse_snapshot(factory.snapshot(segment)).devices
    assert device.purposes == {AllocationPurpose.ACTIVATIONS: GIB}


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        (factory.LINEAR, AllocationPurpose.ACTIVATIONS),
        (factory.LOSS, AllocationPurpose.LOSS),
        (factory.STEP, AllocationPurpose.OPTIMIZER),
        (factory.MOVED, AllocationPurpose.PARAMETERS),
        (factory.ENGINE, AllocationPurpose.BACKWARD),
        (factory.GATHER, AllocationPurpose.GATHERED),
        ([], AllocationPurpose.UNKNOWN),
        ([factory.TRAIN], AllocationPurpose.UNKNOWN),
        (
            [
                factory.frame("AccumulateGrad.cpp", 1, "torch::autograd::AccumulateGrad::apply"),
                *factory.ENGINE,
            ],
            AllocationPurpose.GRADIENTS,
        ),
        (
            [
                factory.frame(f"{factory.TORCH}/serialization.py", 1500, "persistent_load"),
                factory.TRAIN,
            ],
            AllocationPurpose.LOADED,
        ),
    ],
)
def test_purpose_of_frames(frames, kind):
    assert (
        purpose_of([SourceLine(each["filename"], each["line"], each["name"]) for each in frames])
        is kind
    )


def test_implausible_line_number_becomes_zero():
    frame = factory.frame("/home/me/train.py", 1 << 64, "main")
    assert (
        parse_snapshot(factory.snapshot(factory.segment((GIB, [frame]))))
        .devices[0]
        .sites[0]
        .site.line
        == 0
    )


class Runs:
    def __reduce__(self):
        return os.system, ("exit 1",)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (pickle.dumps({"segments": [Runs()]}), "more than plain data"),
        (factory.full()[:300], "it ends in the middle"),
        (b"", "it ends in the middle"),
        (pickle.dumps({"version": "2.4", "entries": []}), "it has no segments"),
        (pickle.dumps([1, 2]), "it has no segments"),
    ],
)
def test_invalid_snapshot_is_refused_in_one_sentence(data, message):
    with pytest.raises(SnapshotUnreadable, match=message) as caught:
        parse_snapshot(data, "x.pickle")
    assert "\n" not in str(caught.value)


anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 62), 1 << 62)
    | st.floats()
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "device",
                    "total_size",
                    "blocks",
                    "size",
                    "state",
                    "address",
                    "addr",
                    "frames",
                    "action",
                    "filename",
                    "name",
                    "line",
                    "requested_size",
                    "history",
                ]
            ),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=examples(150))
@given(st.lists(anything, max_size=3), st.lists(anything, max_size=2))
def test_any_snapshot_content_is_parsed(segments, traces):
    found = parse_snapshot(pickle.dumps({"segments": segments, "device_traces": traces}))
    assert all(device.held <= 1 << 55 for device in found.devices)
