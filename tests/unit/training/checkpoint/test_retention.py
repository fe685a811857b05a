"""Retention policies; the newest valid checkpoint is always retained."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import checkpoint_manifest
from holdfast.core.errors import InvalidValue
from holdfast.training.checkpoint.storage.backends import FolderBackend
from holdfast.training.checkpoint.storage.retention import RetentionPolicy, prune

LOSSES = {100: 0.5, 200: 0.3, 300: 0.4, 400: 0.6, 500: 0.45}
FOUND = {step: {"loss": loss} for step, loss in LOSSES.items()}


@pytest.mark.parametrize(
    ("policy", "retained"),
    [
        (RetentionPolicy(), {100, 200, 300, 400, 500}),
        (RetentionPolicy(last=2), {400, 500}),
        (RetentionPolicy(last=1, every=200), {200, 400, 500}),
        (RetentionPolicy(last=1, best=("loss", "min")), {200, 500}),
        (RetentionPolicy(best=("loss", "max")), {400, 500}),
        (RetentionPolicy(every=1000), {500}),
        (RetentionPolicy(last=1, best=("accuracy", "max")), {500}),
    ],
)
def test_retained_steps(policy, retained):
    assert policy.steps_to_keep(FOUND) == retained


@given(
    st.dictionaries(
        st.integers(0, 10**6), st.one_of(st.none(), st.floats(), st.integers(), st.text())
    ),
    st.one_of(st.none(), st.integers(1, 5)),
    st.one_of(st.none(), st.integers(1, 1000)),
    st.sampled_from([None, ("loss", "min"), ("loss", "max")]),
)
def test_the_newest_is_always_retained_and_no_step_is_invented(losses, last, every, best):
    values_by_step = {step: {"loss": loss} for step, loss in losses.items()}
    retained = RetentionPolicy(last=last, every=every, best=best).steps_to_keep(values_by_step)

    assert retained <= set(values_by_step)
    assert not values_by_step or max(values_by_step) in retained
    assert len(retained) >= min(last or 0, len(values_by_step))


@pytest.mark.parametrize(
    "options",
    [{"last": 0}, {"every": -1}, {"last": True}, {"best": ("loss",)}, {"best": ("l", "x")}],
)
def test_invalid_options_are_rejected(options):
    with pytest.raises(InvalidValue):
        RetentionPolicy(**options).check()


def test_a_damaged_checkpoint_is_neither_counted_nor_deleted(tmp_path, checkpoint):
    for step in (100, 200, 300):
        checkpoint(step)
    broken, backend = (
        tmp_path / "ckpts" / checkpoint_manifest.folder_name(300),
        FolderBackend(tmp_path / "ckpts"),
    )
    (broken / "first.distcp").unlink()

    assert prune(backend, RetentionPolicy(last=1)) == [100]
    assert backend.steps() == [300, 200]


def test_busy_steps_are_not_deleted(tmp_path, checkpoint):
    for step in (100, 200, 300):
        checkpoint(step)
    backend = FolderBackend(tmp_path / "ckpts")

    assert prune(backend, RetentionPolicy(last=1), busy={100}) == [200]
    assert prune(backend, RetentionPolicy(last=1)) == [100]
    assert [path.name for path in backend.path.iterdir()] == [checkpoint_manifest.folder_name(300)]


def test_interrupted_deletions_are_finished(tmp_path, checkpoint):
    checkpoint(100).rename(tmp_path / "ckpts" / ".removing-step-0000000100-1")

    prune(FolderBackend(tmp_path / "ckpts"), RetentionPolicy(last=1))
    assert list((tmp_path / "ckpts").iterdir()) == []
