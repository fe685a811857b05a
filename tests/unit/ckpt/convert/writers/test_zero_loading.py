"""DeepSpeed resumes from converted checkpoints of torch, or of another stage or world size."""

from pathlib import Path

import msgspec
import pytest
import torch

from holdfast.ckpt.convert.options import ConvertOptions
from holdfast.ckpt.convert.writers.zero import flat, stage1, stage2, stage3, states, universal
from holdfast.ckpt.formats import registry
from tests.golden.checkpoints.making import generate, made, shared_store
from tests.golden.checkpoints.model import STEPS, loss_of, model, optimizer_of
from tests.unit.ckpt.convert.streamed import neutral, stream

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(900)]
WRITERS = {"zero1": stage1, "zero2": stage2, "zero3": stage3, "universal": universal}
#: DeepSpeed's own default; part of what a run computes, not of its checkpoints.
CLIP = 1.0
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": None}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return shared_store(tmp_path_factory)


def native(store, stage, dtype="fp32", ranks=2, *more):
    """Return what DeepSpeed saved, and its tensors."""
    options = ("--stage", str(stage), "--dtype", dtype, *more)
    folder = made(store, "deepspeed_zero", *options, ranks=ranks)
    return folder / "checkpoint", torch.load(folder / "truth.pt", weights_only=False)


def loaded(folder, saved, stage, dtype="fp32", ranks=2, *more):
    """Return DeepSpeed's state after loading ``saved``, and its losses afterwards."""
    arguments = ["--stage", str(stage), "--dtype", dtype, "--load", str(saved), *more]
    generate(folder / "loaded", "deepspeed_zero", *arguments, ranks=ranks)
    return torch.load(folder / "loaded" / "truth.pt", weights_only=False)


def of_torch(folder, **options):
    """Return contents, module and optimizer after STEPS steps in plain torch."""
    module = model(**options)
    optimizer = optimizer_of(module)
    for step in range(STEPS):
        loss_of(module, step).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    folder.mkdir()
    contents = neutral(
        folder, module, optimizer, step=STEPS, values={"epoch": 2, "nested.seen": [1, 2.5, None]}
    )
    return contents, module, optimizer


def same_weights(found, module):
    """Assert that every weight and buffer is bit-identical."""
    return [
        name for name, each in module.state_dict().items() if not torch.equal(found[name], each)
    ]


def same_moments(found, module, optimizer):
    """Assert that every moment is bit-identical."""
    names = {id(each): name for name, each in module.named_parameters()}
    return [
        names[id(param)]
        for param, state in optimizer.state.items()
        for key in ("exp_avg", "exp_avg_sq")
        if not torch.equal(found[names[id(param)]][key], state[key])
    ]


@pytest.mark.parametrize(
    ("target", "stage", "ranks"),
    [
        ("zero2", 2, 2),
        *(
            pytest.param(*each, marks=pytest.mark.matrix)
            for each in (
                ("zero1", 1, 2),
                ("zero3", 3, 2),
                ("zero3", 3, 1),
                ("universal", 1, 2),
                ("universal", 2, 1),
            )
        ),
    ],
)
def test_deepspeed_resumes_from_torch(store, tmp_path, target, stage, ranks):
    contents, module, optimizer = of_torch(tmp_path / "from")
    written = WRITERS[target].write(contents, ConvertOptions(ranks=ranks))
    saved = stream(written, contents, tmp_path / "saved")
    more = ["--load-universal"] if target == "universal" else []
    found = loaded(tmp_path, saved, stage, "fp32", ranks, *more)
    assert same_weights(found["model"], module) == []
    assert same_moments(found["optimizer"], module, optimizer) == []
    assert found["step"] == STEPS
    assert (found["client_state"]["epoch"], found["client_state"]["nested"]) == (
        2,
        {"seen": [1, 2.5, None]},
    )
    _, truth = native(store, stage)
    assert found["losses"] == pytest.approx(truth["losses"], abs=1e-6)


@pytest.mark.matrix
def test_universal_of_one_group_loads_in_stage_3(store, tmp_path):
    module = model()
    optimizer = torch.optim.AdamW(
        [each for each in module.parameters() if each.requires_grad], lr=1e-2
    )
    for step in range(STEPS):
        loss_of(module, step).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
    (tmp_path / "from").mkdir()
    contents = neutral(tmp_path / "from", module, optimizer, step=STEPS)
    written = universal.write(contents, ConvertOptions())
    assert not any("ZeRO-3" in each for each in written.losses)
    saved = stream(written, contents, tmp_path / "saved")
    found = loaded(tmp_path, saved, 3, "fp32", 2, "--one-group", "--load-universal")
    assert same_weights(found["model"], module) == []
    assert same_moments(found["optimizer"], module, optimizer) == []
    _, truth = native(store, 3, "fp32", 2, "--one-group")
    assert found["losses"] == pytest.approx(truth["losses"], abs=1e-6)


@pytest.mark.matrix
def test_sub_groups_match_deepspeed(store, tmp_path, monkeypatch):
    monkeypatch.setattr(flat, "SUB_GROUP", 300)
    contents, module, optimizer = of_torch(tmp_path / "from")
    saved = stream(stage3.write(contents, ConvertOptions(ranks=2)), contents, tmp_path / "saved")
    found = loaded(tmp_path, saved, 3, "fp32", 2, "--sub-group", "300")
    assert same_weights(found["model"], module) == []
    assert same_moments(found["optimizer"], module, optimizer) == []
    _, truth = native(store, 3)
    assert found["losses"] == pytest.approx(truth["losses"], abs=1e-6)


@pytest.mark.parametrize(
    ("source", "target", "dtype", "ranks"),
    [
        pytest.param(2, 3, "bf16", 2, marks=pytest.mark.matrix),
        *(
            pytest.param(*each, marks=pytest.mark.matrix)
            for each in (
                (3, 2, "fp32", 1),
                (3, 1, "bf16", 1),
                (2, 3, "fp16", 2),
            )
        ),
    ],
    ids=str,
)
def test_deepspeed_resumes_in_another_stage(store, tmp_path, source, target, dtype, ranks):
    schedule = ["--scheduler"]
    place, before = native(store, source, dtype, 2, *schedule)
    contents = registry.read_checkpoint(place)
    written = WRITERS[f"zero{target}"].write(
        contents, ConvertOptions(ranks=ranks, dtype=DTYPES[dtype])
    )
    assert written.losses == ()
    saved = stream(written, contents, tmp_path / "saved")
    found = loaded(tmp_path, saved, target, dtype, ranks, *schedule)
    for section in ("model", "halves"):
        assert {
            name
            for name, each in before[section].items()
            if not torch.equal(each, found[section][name])
        } == set()
    for name, states_ in before["optimizer"].items():
        assert all(
            torch.equal(states_[key], found["optimizer"][name][key])
            for key in ("exp_avg", "exp_avg_sq")
        )
    assert (found["step"], found["rates"]) == (before["step"], before["rates"])
    assert found["client_state"]["nested"] == {"seen": [1, 2.5, None]}
    near = {"fp32": 1e-6, "bf16": 2e-2, "fp16": 2e-3}[dtype]
    assert found["losses"] == pytest.approx(before["losses"], abs=near)


# ---- the same files as DeepSpeed's own


def _opened(path):
    return torch.load(path, weights_only=False, map_location="cpu")


def _differing_paths(own, other, at=""):
    """Return paths at which two values differ, ignoring what holdfast's files omit."""
    if isinstance(own, dict) and isinstance(other, dict):
        if list(own) != [key for key in other if key in own]:
            yield f"{at}: the order or names of {list(own)}"
        for key in own.keys() & other.keys():
            yield from _differing_paths(own[key], other[key], f"{at}/{key}")
    elif isinstance(own, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(own) != len(other):
            yield f"{at}: {len(own)} and {len(other)}"
        for number, (one, two) in enumerate(zip(own, other, strict=False)):
            yield from _differing_paths(one, two, f"{at}/{number}")
    elif torch.is_tensor(own) and torch.is_tensor(other):
        if own.dtype != other.dtype or own.shape != other.shape or not _equal(own, other, at):
            yield f"{at}: {own.dtype} {list(own.shape)} and {other.dtype} {list(other.shape)}"
    elif own != other and (type(own) is not type(other) or vars(own) != vars(other)):
        yield f"{at}: {own!r} and {other!r}"


def _equal(own, other, at):
    """Compare values; stage 3 padding is uninitialized in DeepSpeed files, zeros in holdfast's."""
    return torch.equal(own, other) or ("fp32_flat_groups" in at and not own[own != other].any())


#: Present only in holdfast's files, or in another form than in DeepSpeed's: no configuration of the run; frozen
#: parameters in stage 1, too; the shared names on every rank; the fields that ds_to_universal requires; options of
#: DeepSpeed's own Adam.
_OURS = (
    "ds_config",
    "frozen_param",
    "shared_params",
    "universal_checkpoint_info",
    "bias_correction",
    "the order or",
)


@pytest.mark.parametrize(
    ("stage", "dtype"),
    [
        (3, "bf16"),
        *(
            pytest.param(*each, marks=pytest.mark.matrix)
            for each in ((1, "fp32"), (2, "bf16"), (3, "fp32"))
        ),
    ],
)
def test_files_match_deepspeed(store, tmp_path, stage, dtype):
    place, _ = native(store, stage, dtype, 2, *(["--scheduler"] if dtype == "bf16" else []))
    contents = registry.read_checkpoint(place)
    written = WRITERS[f"zero{stage}"].write(contents, ConvertOptions(ranks=2))
    saved = stream(written, contents, tmp_path / "saved")
    expected_files = {
        path.relative_to(place)
        for path in place.rglob("*")
        if path.is_file() and path.suffix != ".py"
    }
    assert {
        path.relative_to(saved) for path in saved.rglob("*") if path.is_file()
    } == expected_files
    for path in sorted(expected_files - {Path("latest")}):
        unlike = _differing_paths(_opened(saved / path), _opened(place / path))
        assert [each for each in unlike if not any(mark in each for mark in _OURS)] == [], path
    assert (saved / "latest").read_bytes() == (place / "latest").read_bytes()


@pytest.mark.parametrize(
    "stage", [1, *(pytest.param(stage, marks=pytest.mark.matrix) for stage in (2, 3))]
)
def test_deepspeed_tools_read_the_files(tmp_path, stage):
    from deepspeed.checkpoint import ds_to_universal
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    contents, module, _optimizer = of_torch(tmp_path / "from")
    saved = stream(
        WRITERS[f"zero{stage}"].write(contents, ConvertOptions(ranks=3)),
        contents,
        tmp_path / "saved",
    )
    found = get_fp32_state_dict_from_zero_checkpoint(str(saved))
    assert set(found) == set(module.state_dict())
    assert same_weights(found, module) == []
    arguments = {
        "num_extract_workers": 1,
        "num_merge_workers": 1,
        "keep_temp_folder": False,
        "strict": True,
    }
    ds_to_universal.main(
        type(
            "Asked",
            (),
            arguments
            | {
                "input_folder": str(saved / "global_step3"),
                "output_folder": str(tmp_path / "to" / "universal"),
                "inject_missing_state": False,
            },
        )
    )
    made_of = registry.read_checkpoint(tmp_path / "to")
    assert {"embed.weight", "blocks.1.norm.bias", "scale"} <= set(made_of.tensors)


@pytest.mark.matrix
def test_fp16_loss_scale_is_kept(tmp_path):
    scaler = pytest.importorskip("deepspeed.runtime.fp16.loss_scaler")
    contents, _module, _optimizer = of_torch(tmp_path / "from")
    values = {"deepspeed.loss_scaler.cur_scale": 512.0, "deepspeed.loss_scaler.cur_iter": 3}
    for writer, restored in ((stage2, values), (stage3, values), (stage3, {})):
        changed = msgspec.structs.replace(contents, values=restored)
        written = writer.write(changed, ConvertOptions(dtype="float16"))
        saved = stream(written, changed, tmp_path / f"{writer.__name__}-{len(restored)}")
        state = _opened(saved / "global_step3" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")[
            "optimizer_state_dict"
        ]
        found = state["loss_scaler"]
        assert isinstance(found, scaler.DynamicLossScaler)
        assert found.cur_scale == (512.0 if restored else states.FIRST_SCALE)
        assert found.dtype == torch.half
        assert state["dynamic_loss_scale"] is True
        found.update_scale(overflow=False)
        assert any("loss scale" in each for each in written.losses) != bool(restored)


@pytest.mark.matrix
def test_deepspeed_adam_resumes(tmp_path):
    contents, _module, _optimizer = of_torch(tmp_path / "from")
    saved = stream(stage2.write(contents, ConvertOptions()), contents, tmp_path / "saved")
    state = _opened(saved / "global_step3" / "zero_pp_rank_0_mp_rank_00_optim_states.pt")[
        "optimizer_state_dict"
    ]
    base = state["base_optimizer_state"]
    assert all(each["bias_correction"] for each in base["param_groups"])
    flat = [
        torch.nn.Parameter(torch.zeros_like(each))
        for each in state["single_partition_of_fp32_groups"]
    ]
    optimizer = torch.optim.AdamW([{"params": [each]} for each in flat])
    optimizer.load_state_dict(base)
    assert [optimizer.state[each]["step"].item() for each in flat] == [STEPS, STEPS]
    assert [each["weight_decay"] for each in optimizer.param_groups] == [0.1, 0.0]
