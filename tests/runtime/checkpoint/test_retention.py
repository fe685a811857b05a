"""What stays and what goes; the newest valid checkpoint always stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import manifest
from holdfast.errors import BadValue
from holdfast.runtime.checkpoint.places import Folder
from holdfast.runtime.checkpoint.retention import Keep, prune

LOSSES = {100: 0.5, 200: 0.3, 300: 0.4, 400: 0.6, 500: 0.45}
FOUND = {step: {"loss": loss} for step, loss in LOSSES.items()}


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        (Keep(), {100, 200, 300, 400, 500}),
        (Keep(last=2), {400, 500}),
        (Keep(last=1, every=200), {200, 400, 500}),
        (Keep(last=1, best=("loss", "min")), {200, 500}),
        (Keep(best=("loss", "max")), {400, 500}),
        (Keep(every=1000), {500}),
        (Keep(last=1, best=("accuracy", "max")), {500}),
    ],
)
def test_what_stays(keep, stay):
    assert keep.kept(FOUND) == stay


@given(
    st.dictionaries(st.integers(0, 10**6), st.one_of(st.none(), st.floats(), st.integers(), st.text())),
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.sampled_from([None, ("loss", "min"), ("loss", "max")]),
)
def test_the_newest_always_stays_and_nothing_is_invented(losses, last, every, best):
    found = {step: {"loss": loss} for step, loss in losses.items()}
    stay = Keep(last=last, every=every, best=best).kept(found)

    assert stay <= set(found)
    assert not found or max(found) in stay
    assert len(stay) >= min(last or 0, len(found))


@pytest.mark.parametrize(
    "wrong", [{"last": 0}, {"every": -1}, {"last": True}, {"best": ("loss",)}, {"best": ("l", "x")}]
)
def test_options_that_cannot_be_are_refused(wrong):
    with pytest.raises(BadValue):
        Keep(**wrong).check()


def test_a_damaged_one_does_not_count_and_is_left_alone(tmp_path, checkpoint):
    for step in (100, 200, 300):
        checkpoint(step)
    broken, place = tmp_path / "ckpts" / manifest.name_of(300), Folder(tmp_path / "ckpts")
    (broken / "first.distcp").unlink()

    assert prune(place, Keep(last=1)) == [100]
    assert place.steps() == [300, 200]


def test_what_is_busy_stays_for_now(tmp_path, checkpoint):
    for step in (100, 200, 300):
        checkpoint(step)
    place = Folder(tmp_path / "ckpts")

    assert prune(place, Keep(last=1), busy={100}) == [200]
    assert prune(place, Keep(last=1)) == [100]
    assert [path.name for path in place.path.iterdir()] == [manifest.name_of(300)]


def test_what_somebody_began_to_remove_is_removed(tmp_path, checkpoint):
    checkpoint(100).rename(tmp_path / "ckpts" / ".removing-step-0000000100-1")

    prune(Folder(tmp_path / "ckpts"), Keep(last=1))
    assert list((tmp_path / "ckpts").iterdir()) == []
