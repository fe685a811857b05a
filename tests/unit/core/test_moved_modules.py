"""Former module paths import the current modules, with one deprecation warning."""

import subprocess
import sys
from importlib import import_module

import pytest

from holdfast.core.errors import LossSpike


def test_a_former_path_gives_the_same_classes_and_warns():
    sys.modules.pop("holdfast.errors", None)
    with pytest.warns(DeprecationWarning, match=r"holdfast.errors is now holdfast.core.errors"):
        former = import_module("holdfast.errors")
    assert former.LossSpike is LossSpike


@pytest.mark.parametrize(
    ("statement", "warning"),
    [
        ("from holdfast.errors import LossSpike", "holdfast.errors is now holdfast.core.errors"),
        (
            "from holdfast.runtime.checkpoint import emergency; emergency.is_due",
            "holdfast.runtime.checkpoint is now holdfast.training.checkpoint",
        ),
    ],
)
def test_the_warning_names_the_import_statement(statement, warning):
    done = subprocess.run(
        [sys.executable, "-W", "always::DeprecationWarning", "-c", statement],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"<string>:1: DeprecationWarning: {warning}" in done.stderr


def test_an_unknown_former_path_is_a_plain_import_error():
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        import_module("holdfast.no_such_module")
    with (
        pytest.warns(DeprecationWarning, match=r"holdfast.runtime"),
        pytest.raises(ModuleNotFoundError, match=r"training.no_such_module"),
    ):
        import_module("holdfast.runtime.no_such_module")
