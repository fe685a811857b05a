"""Stored golden checkpoints match the current generators, and frameworks still write the formats that are read."""

from __future__ import annotations

import importlib.util
import json
import tarfile

import pytest

from holdfast.ckpt.formats import registry
from tests.golden.checkpoints import matrix
from tests.golden.checkpoints.making import archive_of, generate, name_of, source_hash
from tests.golden.make_checkpoints import STORED
from tests.unit.ckpt.formats.truth import truth_of

PROGRAMS = sorted({program for program, _, _ in STORED})
#: One checkpoint per framework that is written anew (DeepSpeed's also in the conversion tests): arguments, ranks, and its path in the generator's folder.
LIVE = {
    "torch_distributed": ("torch", "dcp", 2, "saved"),
    "deepspeed_zero": ("deepspeed", "--stage 3", 2, "checkpoint"),
    "accelerate_folder": ("accelerate", "ddp --bin", 2, "saved"),
    "lightning_file": ("lightning", "file", 1, "saved.ckpt"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_archives_match_the_current_generators(program):
    with tarfile.open(archive_of(program)) as archive:
        about = json.load(archive.extractfile(f"{program}.json"))
        names = {name for name in archive.getnames() if "/" not in name}
    assert about["sources"] == source_hash(program), f'run: make golden ARGS="{program}"'
    assert names == {f"{program}.json"} | {
        name_of(program, arguments.split(), ranks)
        for each, arguments, ranks in STORED
        if each == program
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(each, marks=pytest.mark.matrix if each == "deepspeed_zero" else ())
        for each in LIVE
    ],
)
def test_newly_written_checkpoint_is_bit_identical(tmp_path, program):
    framework, arguments, ranks, place = LIVE[program]
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    generate(tmp_path / "made", program, *arguments.split(), ranks=ranks)
    contents = registry.read_checkpoint(tmp_path / "made" / place)
    assert contents.problems == ()
    truth = truth_of(tmp_path / "made")
    if framework == "lightning":
        assert next(iter(truth["model"])).startswith("net.")
    assert matrix.arrived(contents, truth) == "all"
