import ast
import subprocess
import sys
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.plan.generate.fsdp2 import write_fsdp2_files
from holdfast.plan.generate.recipe import ComputeDtype, Recipe
from holdfast.plan.setup import ActivationCheckpointing
from tests.hypothesis_profiles import examples

from .recipe_strategies import common_recipes


def script(recipe):
    return write_fsdp2_files(recipe).files[1].text


@settings(max_examples=examples(150))
@given(common_recipes(), st.sampled_from(ActivationCheckpointing), st.booleans())
def test_every_script_is_a_program(recipe, recompute, compiled):
    text = script(msgspec.structs.replace(recipe, recompute=recompute, compiled=compiled))
    ast.parse(text)
    assert "$" not in text


def test_script_has_no_unused_code(tmp_path):
    recipes = (
        Recipe(),
        Recipe(compute_dtype=ComputeDtype.FP16, gather_on_save=True),
        Recipe(recompute=ActivationCheckpointing.FULL, autocast_dtype=ComputeDtype.BF16),
        Recipe(offload_activations=True, clipping=0.0),
    )
    for number, recipe in enumerate(recipes):
        (tmp_path / f"script{number}.py").write_text(script(recipe))
    ruff = Path(sys.executable).with_name("ruff")
    done = subprocess.run(
        [ruff, "check", "--isolated", "--select", "F,E7", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
