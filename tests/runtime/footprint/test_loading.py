"""What users' functions do wrong, as a sentence with the line of theirs."""

from pathlib import Path

import pytest
from torch import nn

from holdfast.errors import BadValue
from holdfast.runtime.footprint.loading import build, load

SMALL = Path(__file__).with_name("small_models.py")


@pytest.mark.parametrize(("name", "why"), [
    ("no_module", "it returned int; return an nn.Module, or a pair of it and a step"),
    ("broken", r"building the module failed at small_models\.py:\d+: TypeError: unsupported operand"),
    ("greedy", r"allocate memory.*build it without weights: no \.cuda\(\)"),
])  # fmt: skip
def test_a_function_that_builds_no_module(name, why):
    with pytest.raises(BadValue, match=why):
        build("it", load(f"{SMALL}:{name}"))


@pytest.mark.parametrize(("source", "why"), [
    (f"{SMALL}:nothing_such", "has no function nothing_such"),
    ("no.such.package:build", "importing it failed: ModuleNotFoundError: No module named 'no'"),
    ("small_models.py", r"write file\.py:function or package\.module:function"),
    ("small_models.py:", r"write file\.py:function or package\.module:function"),
])  # fmt: skip
def test_a_source_that_is_none(source, why):
    with pytest.raises(BadValue, match=why):
        load(source)


def test_a_file_that_cannot_be_imported(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("import sys\n\nsys.exit('no\\nway')\n")
    with pytest.raises(BadValue, match=r"importing it failed at wrong\.py:3: SystemExit: no way"):
        load(f"{file}:build")


def test_depth_is_given_to_a_function_that_takes_it():
    assert len(build("it", load(f"{SMALL}:llama"), 3)[0].layers) == 3
    assert len(build("it", load(f"{SMALL}:eight_layers"), 3)[0].layers) == 8


def test_a_compiled_module_is_the_module():
    compiled = nn.Module()
    compiled._orig_mod = nn.Linear(2, 2)  # as torch.compile's OptimizedModule has it
    assert isinstance(build("it", lambda: compiled)[0], nn.Linear)


def test_a_function_of_a_package():
    module, step = build("it", lambda: (load("torch.nn:Identity")(), None))
    assert isinstance(module, nn.Identity)
    assert step is None
