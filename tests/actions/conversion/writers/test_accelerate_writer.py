"""A folder of Accelerate, as the writer makes it: ``Accelerator.load_state`` goes on from it."""

import json

import msgspec
import pytest

from holdfast.actions.conversion.options import Options
from holdfast.actions.conversion.writers import accelerate as writer
from holdfast.facts.checkpoints.contents import Format
from tests.actions.conversion.streamed import stream
from tests.actions.conversion.writers.trained import trained
from tests.saved.making import made

NEW = ("model.safetensors", "optimizer.bin", "scheduler.bin")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "job", "ranks", "written_for"),
    [
        ("ddp", "ddp", 1, 1),
        pytest.param("ddp", "ddp", 2, 2, marks=pytest.mark.matrix),
        pytest.param("fsdp-full", "fsdp1-full", 2, 2, marks=pytest.mark.matrix),
        pytest.param("fsdp-full", "fsdp2-full", 2, 2, marks=pytest.mark.matrix),
        ("fsdp", "fsdp2-sharded", 2, 3),
    ],
)
def test_accelerate_goes_on_from_it(tmp_path, form, job, ranks, written_for):
    pytest.importorskip("accelerate")
    contents, _state, losses = trained(tmp_path)
    written = writer.write(contents, Options(form=form, ranks=written_for))
    folder = stream(written, contents, tmp_path / "out")
    done = made(tmp_path, "job", "accelerate_going_on", job, str(folder), ranks=ranks)
    assert json.loads((done / "losses.json").read_text()) == pytest.approx(losses, rel=1e-6)


def test_one_file_however_large(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    files = writer.write(contents, Options(shard_bytes=100)).files
    assert [file.path for file in files] == [*NEW, "random_states_0.pkl"]
    assert [file.path for file in writer.write(contents, Options(ranks=2)).files][3:] == [
        "random_states_0.pkl", "random_states_1.pkl"
    ]  # fmt: skip


def test_what_lay_beside_goes_from_one_to_another(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    beside = {"random_states_0.pkl": 5, "custom_checkpoint_0.pkl": 3, "optimizer.bin": 9, "pytorch_model.bin": 7}
    own = msgspec.structs.replace(contents, format=Format.ACCELERATE, files=beside)
    written = writer.write(own, Options())
    assert [file.path for file in written.files][3:] == ["custom_checkpoint_0.pkl", "random_states_0.pkl"]
    assert not any("random" in loss for loss in written.losses)
    foreign = writer.write(msgspec.structs.replace(own, format=Format.ZERO2), Options())
    assert [file.path for file in foreign.files] == [*NEW, "random_states_0.pkl"]
    assert any("random number" in loss for loss in foreign.losses)


def test_what_is_not_there_is_said(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    losses = writer.write(contents, Options()).losses
    assert losses[0] == "Not in it, because the format has no place for them: epoch."
    bare = msgspec.structs.replace(contents, optimizer=None, values={"lr_scheduler.last_batch_iteration": 4})
    losses = writer.write(bare, Options()).losses
    assert losses[0].startswith("Accelerator.load_state asks for an optimizer's state")
    assert losses[1].startswith("The source has no state of a learning rate scheduler")
