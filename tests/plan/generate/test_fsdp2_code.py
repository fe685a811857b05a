import ast
import subprocess
import sys
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.generate.fsdp2 import write
from holdfast.plan.generate.recipe import Half, Recipe
from holdfast.plan.setup import Recompute

from .recipes import shared


def script(recipe):
    return write(recipe).files[1].text


@settings(max_examples=150, deadline=None)
@given(shared(), st.sampled_from(Recompute), st.booleans())
def test_every_script_is_a_program(recipe, recompute, compiled):
    text = script(msgspec.structs.replace(recipe, recompute=recompute, compiled=compiled))
    ast.parse(text)
    assert "$" not in text


def test_nothing_stands_in_a_script_that_it_does_not_use(tmp_path):
    recipes = (
        Recipe(), Recipe(half=Half.FP16, whole_save=True), Recipe(recompute=Recompute.FULL, autocast=Half.BF16),
        Recipe(recomputed_on_cpu=True, clipping=0.0),
    )  # fmt: skip
    for number, recipe in enumerate(recipes):
        (tmp_path / f"script{number}.py").write_text(script(recipe))
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run([ruff, "check", "--isolated", "--select", "F,E7", tmp_path], capture_output=True, text=True,
                          check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout
