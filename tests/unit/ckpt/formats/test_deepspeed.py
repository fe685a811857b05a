"""DeepSpeed ZeRO checkpoints: real ones compared with DeepSpeed's memory, and damaged ones."""

import pickle
import random
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from holdfast.ckpt.contents import CheckpointFormat
from holdfast.ckpt.formats import registry
from holdfast.ckpt.formats.deepspeed import universal as deepspeed_universal
from holdfast.ckpt.formats.deepspeed import zero as deepspeed
from holdfast.ckpt.tensor_blocks import TensorReader
from holdfast.ckpt.verify.coverage import measure_coverage
from holdfast.core.errors import CheckpointUnreadable
from tests.golden.checkpoints.making import made, shared_store
from tests.unit.ckpt.formats.zero_files import SHAPES, numbers, write

#: Name, ranks, options of the generator, and the format.
REAL = [
    ("zero1-2", 2, "--stage 1 --universal", CheckpointFormat.ZERO1),
    ("zero2-3", 3, "--stage 2 --scheduler --universal", CheckpointFormat.ZERO2),
    ("zero3-2", 2, "--stage 3 --universal", CheckpointFormat.ZERO3),
    (
        "zero1-3-bf16",
        3,
        "--stage 1 --dtype bf16 --zero round_robin_gradients=true --zero parameter_alignment=true",
        CheckpointFormat.ZERO1,
    ),
    (
        "zero1-2-bf16-fp32",
        2,
        "--stage 1 --dtype bf16 --accumulate fp32 --one-group",
        CheckpointFormat.ZERO1,
    ),
    ("zero2-2-fp16", 2, "--stage 2 --dtype fp16 --untied", CheckpointFormat.ZERO2),
    (
        "zero3-3-bf16",
        3,
        "--stage 3 --dtype bf16 --sub-group 300 --scheduler --offload",
        CheckpointFormat.ZERO3,
    ),
    ("zero3-1", 1, "--stage 3 --unfrozen", CheckpointFormat.ZERO3),
]


SAMPLE = {"zero2-2-fp16", "zero3-3-bf16"}


def checked(contents, truth):
    """Assert that every value equals DeepSpeed's."""
    assert contents.problems == ()
    assert {*contents.tensors, *contents.ties} == set(truth["model"])
    with TensorReader(Path(contents.root)) as reader:
        same(
            reader,
            {name: contents.tensors[contents.ties.get(name, name)] for name in truth["model"]},
            truth["model"],
        )
        same(reader, contents.halves, truth["halves"])
        assert set(contents.optimizer.tensors) == set(truth["optimizer"])
        for name, state in truth["optimizer"].items():
            assert contents.optimizer.numbers[name]["step"] == state.pop("step") == contents.step
            same(reader, contents.optimizer.tensors[name], state)
    assert [group.options["lr"] for group in contents.optimizer.groups] == truth["rates"]


def same(reader, found, expected):
    for name, tensor in found.items():
        reference = expected[name].detach()
        assert f"torch.{tensor.dtype}" == str(reference.dtype)
        assert tensor.shape == tuple(reference.shape)
        bits = reference.contiguous().reshape(-1).view(torch.uint8).numpy()
        assert np.array_equal(reader.read_tensor(tensor).reshape(-1).view(np.uint8), bits), name
        assert (
            measure_coverage(tensor).missing,
            measure_coverage(tensor).twice,
            measure_coverage(tensor).outside,
        ) == (0, 0, ())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "options", "form"),
    [
        # The conversion matrix covers the common configurations of stages 1, 2 and 3; this is a sample of the rare
        # ones.
        pytest.param(*each[1:], id=each[0], marks=() if each[0] in SAMPLE else pytest.mark.matrix)
        for each in REAL
    ],
)
def test_deepspeed_checkpoint_is_bit_identical(tmp_path_factory, ranks, options, form):
    store = shared_store(tmp_path_factory)
    folder = made(store, "deepspeed_zero", *options.split(), ranks=ranks)
    truth = torch.load(folder / "truth.pt", weights_only=False)
    place = folder / "checkpoint"
    assert registry.detect_format(place) is registry.detect_format(place / "global_step3") is form
    found = deepspeed.read_contents(place)
    checked(found, truth)
    assert (found.format, found.world_size, found.writer[:9]) == (form, ranks, "deepspeed")
    assert bool(found.halves) == (form is not CheckpointFormat.ZERO3)
    assert found.values["note"] == "kept"
    assert found.values["nested.seen"] == [1, 2.5, None]
    assert ("lr_scheduler.last_epoch" in found.values) == ("--scheduler" in options)
    assert found.buffers == {"scale", "seen"}
    assert found.frozen == (set() if "--unfrozen" in options else {"frozen.weight", "frozen.bias"})
    assert list(found.tensors)[:3] == ["scale", "seen", "embed.weight"]


@pytest.mark.slow
@pytest.mark.matrix  # the conversion matrix reads two of them in every run
@pytest.mark.parametrize(
    ("ranks", "options"),
    [pytest.param(*each[1:3], id=each[0]) for each in REAL if "--universal" in each[2]],
)
def test_universal_checkpoint_is_bit_identical(tmp_path_factory, ranks, options):
    store = shared_store(tmp_path_factory)
    folder = made(store, "deepspeed_zero", *options.split(), ranks=ranks)
    assert (
        registry.detect_format(folder / "universal" / "global_step3") is CheckpointFormat.UNIVERSAL
    )
    found = registry.read_checkpoint(folder / "universal")
    checked(found, torch.load(folder / "truth.pt", weights_only=False))
    assert (
        found.tensors["seen"].dtype == "int64"
    )  # DeepSpeed converts it to fp32 with the parameters
    assert found.frozen == {"frozen.weight", "frozen.bias"}
    assert dict(found.ties) == {"head.weight": "embed.weight"}


# --- small ones
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 3, 5, 40])
def test_any_world_size_is_merged(tmp_path, stage, world):
    found = deepspeed.read_contents(write(tmp_path / "tag", stage, world))
    assert (found.format.value, found.world_size, found.step, found.problems) == (
        f"zero{stage}",
        world,
        3,
        (),
    )
    with TensorReader(tmp_path / "tag") as reader:
        for name, shape in {**SHAPES[0], **SHAPES[1]}.items():
            assert np.array_equal(
                reader.read_tensor(found.tensors[name]), numbers(name, shape).numpy()
            )
            for key in ("exp_avg", "exp_avg_sq"):
                assert np.array_equal(
                    reader.read_tensor(found.optimizer.tensors[name][key]),
                    numbers(name, shape, key).numpy(),
                )
        assert reader.read_tensor(found.tensors["frozen"]).shape == (3, 2)
    assert found.frozen == {"frozen"}
    assert [group.params for group in found.optimizer.groups] == [tuple(each) for each in SHAPES]


@pytest.mark.parametrize("stage", [1, 3])
def test_missing_rank_is_reported(tmp_path, stage):
    folder = write(tmp_path / "tag", stage, 3)
    (folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    found = deepspeed.read_contents(folder)
    (problem,) = found.problems
    assert (problem.kind, problem.rank, problem.file) == (
        "missing",
        1,
        "zero_pp_rank_1_mp_rank_00_optim_states.pt",
    )
    assert measure_coverage(found.tensors["embed.weight"]).missing > 0
    with TensorReader(folder) as reader, pytest.raises(CheckpointUnreadable):
        reader.read_tensor(found.tensors["embed.weight"])


def test_missing_last_ranks_are_reported(tmp_path):
    folder = write(tmp_path / "tag", 2, 3)
    (folder / "zero_pp_rank_2_mp_rank_00_optim_states.pt").unlink()
    assert [problem.rank for problem in deepspeed.read_contents(folder).problems] == [2]


@pytest.mark.parametrize("stage", [2, 3])
def test_truncated_rank_is_reported(tmp_path, stage):
    folder = write(tmp_path / "tag", stage)
    file = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    file.write_bytes(file.read_bytes()[:-300])
    (problem,) = deepspeed.read_contents(folder).problems
    assert (problem.kind, problem.rank, problem.file) == ("truncated", 1, file.name)


def test_without_rank_files_model_weights_are_used(tmp_path):
    folder = write(tmp_path / "tag", 2)
    for file in folder.glob("*optim*"):
        file.unlink()
    found = deepspeed.read_contents(folder)
    assert deepspeed.detect_format(folder) is CheckpointFormat.ZERO2
    assert found.tensors["embed.weight"].dtype == "float16"
    assert [problem.rank for problem in found.problems] == [0, 1]
    assert found.optimizer is None
    assert "using the model's own weights" in found.notes[0]


def test_excluded_frozen_weights_are_reported(tmp_path):
    folder = write(tmp_path / "tag", 2)
    assert deepspeed.read_contents(folder).notes == ()
    model = torch.load(folder / "mp_rank_00_model_states.pt")
    torch.save({**model, "frozen_param_shapes": None}, folder / "mp_rank_00_model_states.pt")
    assert "exclude_frozen_parameters" in deepspeed.read_contents(folder).notes[0]


def test_without_model_file(tmp_path):
    folder = write(tmp_path / "tag", 2)
    (folder / "mp_rank_00_model_states.pt").unlink()
    with pytest.raises(CheckpointUnreadable, match=r"mp_rank_00_model_states\.pt"):
        deepspeed.read_contents(folder)


def test_files_of_a_larger_world_size_are_reported(tmp_path):
    folder = write(tmp_path / "tag", 3, 3)
    write(folder, 3, 2)
    found = deepspeed.read_contents(folder)
    assert {(problem.kind, problem.rank) for problem in found.problems} == {("mixed", 2)}
    assert found.world_size == 2


@pytest.mark.parametrize("stage", [1, 3])
def test_files_of_another_step_are_reported(tmp_path, stage):
    folder, other = write(tmp_path / "tag", stage, 3), write(tmp_path / "other", stage, 3, step=9)
    file = "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (folder / file).write_bytes((other / file).read_bytes())
    (problem,) = deepspeed.read_contents(folder).problems
    assert (problem.kind, problem.rank) == ("mixed", 1)
    assert "step 9" in problem.why


def test_files_of_another_stage_are_reported(tmp_path):
    folder = write(tmp_path / "tag", 2)
    write(folder, 3)
    problems = deepspeed.read_contents(folder).problems
    assert [(problem.kind, problem.file) for problem in problems] == [
        ("mixed", "mp_rank_00_model_states.pt")
    ]


def test_short_flat_buffer_is_reported(tmp_path):
    folder = write(tmp_path / "tag", 3)
    file = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    state = torch.load(file)
    state["optimizer_state_dict"]["fp32_flat_groups"][0] = torch.zeros(2)
    torch.save(state, file)
    assert {
        (problem.kind, problem.rank) for problem in deepspeed.read_contents(folder).problems
    } == {("unreadable", 1)}


def test_latest_file(tmp_path):
    write(tmp_path / "global_step3", 2)
    (tmp_path / "latest").write_text("global_step3\n")
    assert registry.read_checkpoint(tmp_path).root == str(tmp_path / "global_step3")


@pytest.mark.parametrize("tag", ["global_step4", "../other", "/etc", "", "a\0b", "x" * 5000])
def test_invalid_latest_file(tmp_path, tag):
    write(tmp_path / "other", 2)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "latest").write_text(tag)
    assert deepspeed.detect_format(tmp_path / "in") is None
    (tmp_path / "in" / "zero_to_fp32.py").touch()
    with pytest.raises(CheckpointUnreadable, match="its file latest"):
        deepspeed.detect_format(tmp_path / "in")


def test_other_folders_are_not_recognized(tmp_path):
    torch.save({}, tmp_path / "model.pt")
    torch.save(
        {"module": {}}, tmp_path / "mp_rank_00_model_states.pt"
    )  # without ZeRO it is one file of torch.save
    assert deepspeed.detect_format(tmp_path) is None
    assert deepspeed_universal.detect_format(tmp_path) is None
    assert deepspeed.detect_format(tmp_path / "model.pt") is None


class Bad:
    """A pickle that calls a function."""

    def __reduce__(self):
        return (open, ("/tmp/holdfast-was-here", "w"))


def test_malicious_pickle_is_refused(tmp_path):
    folder = write(tmp_path / "tag", 2)
    file = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    state = torch.load(file)
    torch.save({**state, "more": Bad()}, file)
    (problem,) = deepspeed.read_contents(folder).problems
    assert (problem.kind, problem.rank, problem.names) == ("refused", 1, ("io.open",))
    write(folder, 2, epoch=Bad())
    with pytest.raises(CheckpointUnreadable, match=r"io\.open"):
        deepspeed.read_contents(folder)


@pytest.mark.parametrize("count", [0, -1, 10**12, "2", None, [2], [2, 2, 2], [[1]]])
def test_invalid_rank_counts(tmp_path, count):
    folder = write(tmp_path / "tag", 2)
    for file in folder.glob("*optim*"):
        state = torch.load(file)
        state["optimizer_state_dict"]["partition_count"] = count
        torch.save(state, file)
    attempt(folder)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_unexpected_types_are_an_error(tmp_path, stage):
    draw = random.Random(stage)
    folder = write(tmp_path / "tag", stage)
    for _ in range(60):
        file = draw.choice(sorted(folder.iterdir()))
        kept = file.read_bytes()
        spoil(file, draw)
        attempt(folder)
        file.write_bytes(kept)


def attempt(folder):
    """Read it; only CheckpointUnreadable is allowed."""
    try:
        deepspeed.detect_format(folder)
        found = deepspeed.read_contents(folder)
    except CheckpointUnreadable:
        return
    for tensor in found.tensors.values():
        measure_coverage(tensor)


def spoil(file, draw):
    """Replace any value in the file's pickle by one of another type."""
    state = torch.load(file)
    at = state
    while True:
        key = draw.choice(list(at) if isinstance(at, dict) else range(len(at)))
        inner = at[key]
        if isinstance(inner, (dict, list)) and inner and draw.random() < 0.8:
            at = inner
            continue
        at[key] = draw.choice(
            [None, 7, -1, "x", [], {}, [None], {"a": 1}, torch.zeros(2, 2), 1.5, 10**30, b"x"]
        )
        break
    torch.save(state, file)


def test_duplicate_record_is_refused(tmp_path):
    folder = write(tmp_path / "tag", 2)
    file = folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(archive.namelist()[0], pickle.dumps({}))
    assert deepspeed.read_contents(folder).problems[0].rank == 0


def test_early_releases(tmp_path):
    """Elastic state without groups, ties known only by storage, one dict of shapes."""
    folder = write(tmp_path / "tag", 1, 2, shapes=SHAPES[:1])
    model = torch.load(folder / "mp_rank_00_model_states.pt")
    model["param_shapes"] = model["param_shapes"][0]
    del model["shared_params"]
    model["module"]["head.weight"] = model["module"]["embed.weight"]
    torch.save(model, folder / "mp_rank_00_model_states.pt")
    for file in folder.glob("*optim*"):
        state = torch.load(file)
        inner = state["optimizer_state_dict"]
        inner["base_optimizer_state"] = list(inner["base_optimizer_state"]["state"].values())
        torch.save(state, file)
    found = deepspeed.read_contents(folder)
    assert dict(found.ties) == {"head.weight": "embed.weight"}
    assert found.optimizer.groups[0].params == tuple(SHAPES[0])
    assert "head.weight" not in found.tensors
    assert found.problems == ()


def test_early_releases_of_zero3(tmp_path):
    """One buffer of fp32 weights for all subgroups, with separate states."""
    folder = write(tmp_path / "tag", 3, 3)
    for file in folder.glob("*optim*"):
        state = torch.load(file)
        inner = state["optimizer_state_dict"]
        inner["fp32_flat_groups"] = [torch.cat(inner["fp32_flat_groups"])]
        torch.save(state, file)
    found = deepspeed.read_contents(folder)
    assert found.problems == ()
    with TensorReader(folder) as reader:
        for name, shape in {**SHAPES[0], **SHAPES[1]}.items():
            assert np.array_equal(
                reader.read_tensor(found.tensors[name]), numbers(name, shape).numpy()
            )
            state = found.optimizer.tensors[name]["exp_avg"]
            assert np.array_equal(
                reader.read_tensor(state), numbers(name, shape, "exp_avg").numpy()
            )


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("ranks", [(0, 1), (1,)])
def test_states_in_another_layout(tmp_path, stage, ranks):
    """On all ranks it is an unknown optimizer; on one rank it is damage."""
    folder = write(tmp_path / "tag", stage)
    for rank in ranks:
        file = folder / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        state = torch.load(file)
        inner = state["optimizer_state_dict"]
        inner.get("base_optimizer_state", inner.get("optimizer_state_dict"))["state"][0][
            "exp_avg"
        ] = torch.zeros(256)
        torch.save(state, file)
    found = deepspeed.read_contents(folder)
    assert "exp_avg" in found.notes[0]
    assert [problem.rank for problem in found.problems] == ([] if len(ranks) == 2 else [1])
    assert found.optimizer.numbers["embed.weight"] == {"step": 3}
    assert measure_coverage(found.tensors["embed.weight"]).missing == 0
