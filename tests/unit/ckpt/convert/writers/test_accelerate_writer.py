"""``Accelerator.load_state`` resumes from converted folders."""

import json

import msgspec
import pytest

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers import accelerate as writer
from tests.golden.checkpoints.making import generate
from tests.unit.ckpt.convert.streamed import stream
from tests.unit.ckpt.convert.writers.trained import trained

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
def test_accelerate_resumes(tmp_path, form, job, ranks, written_for):
    pytest.importorskip("accelerate")
    contents, _state, losses = trained(tmp_path)
    written = writer.write(contents, ConvertOptions(form=form, ranks=written_for))
    folder = stream(written, contents, tmp_path / "out")
    generate(tmp_path / "job", "accelerate_going_on", job, str(folder), ranks=ranks)
    assert json.loads((tmp_path / "job" / "losses.json").read_text()) == pytest.approx(
        losses, rel=1e-6
    )


def test_weights_are_one_file(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    files = writer.write(contents, ConvertOptions(shard_bytes=100)).files
    assert [file.path for file in files] == [*NEW, "random_states_0.pkl"]
    assert [file.path for file in writer.write(contents, ConvertOptions(ranks=2)).files][3:] == [
        "random_states_0.pkl",
        "random_states_1.pkl",
    ]


def test_other_files_are_copied(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    beside = {
        "random_states_0.pkl": 5,
        "custom_checkpoint_0.pkl": 3,
        "optimizer.bin": 9,
        "pytorch_model.bin": 7,
    }
    own = msgspec.structs.replace(contents, format=CheckpointFormat.ACCELERATE, files=beside)
    written = writer.write(own, ConvertOptions())
    assert [file.path for file in written.files][3:] == [
        "custom_checkpoint_0.pkl",
        "random_states_0.pkl",
    ]
    assert not any("random" in loss for loss in written.losses)
    foreign = writer.write(
        msgspec.structs.replace(own, format=CheckpointFormat.ZERO2), ConvertOptions()
    )
    assert [file.path for file in foreign.files] == [*NEW, "random_states_0.pkl"]
    assert any("random number" in loss for loss in foreign.losses)


def test_losses_are_reported(tmp_path):
    contents, _state, _losses = trained(tmp_path)
    losses = writer.write(contents, ConvertOptions()).losses
    assert losses[0] == "Not written, because the format cannot store them: epoch."
    bare = msgspec.structs.replace(
        contents, optimizer=None, values={"lr_scheduler.last_batch_iteration": 4}
    )
    losses = writer.write(bare, ConvertOptions()).losses
    assert losses[0].startswith("No optimizer state was written")
    assert losses[1].startswith("The source has no scheduler state")
