"""Errors of users' functions are one sentence with the user's source line."""

from pathlib import Path

import pytest
from torch import nn

from holdfast.core.errors import InvalidValue
from holdfast.plan.torch_tracing.loading import build_module, load_function

SMALL = Path(__file__).with_name("small_models.py")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        (
            "no_module",
            "it returned int; return an nn.Module, or a pair of a module and a step function",
        ),
        (
            "broken",
            r"building the module failed at small_models\.py:\d+: TypeError: unsupported operand",
        ),
        ("greedy", r"allocate memory.*build it without weights: no \.cuda\(\)"),
    ],
)
def test_function_must_return_a_module(name, why):
    with pytest.raises(InvalidValue, match=why):
        build_module("it", load_function(f"{SMALL}:{name}"))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (f"{SMALL}:nothing_such", "has no function nothing_such"),
        ("no.such.package:build", "importing it failed: ModuleNotFoundError: No module named 'no'"),
        ("small_models.py", r"use file\.py:function or package\.module:function"),
        ("small_models.py:", r"use file\.py:function or package\.module:function"),
    ],
)
def test_invalid_source_is_rejected(source, why):
    with pytest.raises(InvalidValue, match=why):
        load_function(source)


def test_a_file_that_cannot_be_imported(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("import sys\n\nsys.exit('no\\nway')\n")
    with pytest.raises(
        InvalidValue, match=r"importing it failed at wrong\.py:3: SystemExit: no way"
    ):
        load_function(f"{file}:build")


def test_depth_is_passed_to_a_function_that_accepts_it():
    assert len(build_module("it", load_function(f"{SMALL}:llama"), 3)[0].layers) == 3
    assert len(build_module("it", load_function(f"{SMALL}:eight_layers"), 3)[0].layers) == 8


def test_compiled_module_is_unwrapped():
    compiled = nn.Module()
    compiled._orig_mod = nn.Linear(2, 2)  # as in torch.compile's OptimizedModule
    assert isinstance(build_module("it", lambda: compiled)[0], nn.Linear)


def test_a_function_of_a_package():
    module, step = build_module("it", lambda: (load_function("torch.nn:Identity")(), None))
    assert isinstance(module, nn.Identity)
    assert step is None
