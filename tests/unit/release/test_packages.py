"""Man pages exist for every command; the conda recipe has the versions of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from holdfast import __version__
from holdfast.cli import COMMANDS
from release.man_pages import man_pages

ROOT = Path(__file__).parents[3]
PAGES = dict(man_pages())
#: Name on PyPI -> name on conda-forge; None: no package there.
CONDA_NAMES = {"ml-dtypes": "ml_dtypes", "xxhash": "python-xxhash", "hyperscan": None}


def test_every_command_and_subcommand_has_a_man_page():
    assert PAGES.keys() >= {"holdfast.1", *(f"holdfast-{name}.1" for name in COMMANDS)}
    assert "holdfast-ckpt-verify.1" in PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_man_page_has_only_the_requests_of_its_form(name):
    lines = PAGES[name].splitlines()
    requests = [line.split(" ")[0] for line in lines if line.startswith((".", "'"))]
    assert requests == [".TH", ".SH", ".SH", ".nf", ".fi", ".SH"]
    assert any(line.strip().startswith("\\-") for line in lines)


def test_the_conda_recipe_has_version_and_dependencies_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text())
    expected = {f"python {project['requires-python']}", "__linux"}
    for text in project["dependencies"]:
        name, bound = re.fullmatch(r"([a-z0-9-]+)(>=[\d.]+).*", text).groups()
        if CONDA_NAMES.get(name, name):
            expected.add(f"{CONDA_NAMES.get(name, name)} {bound}")
    assert set(recipe["requirements"]["run"]) == expected
    assert recipe["context"]["version"] == __version__
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {target}" for name, target in project["scripts"].items()
    ]
    assert recipe["about"]["summary"] == project["description"]
