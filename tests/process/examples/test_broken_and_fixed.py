"""The examples with a common deadlock: broken, they are diagnosed; fixed, they train."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.examples_page import BROKEN_AND_FIXED, EXAMPLES
from docs.generate import PAGES
from tests.process.launched import Launched
from tests.unit.cli.in_process import run_holdfast

#: Cause and line that holdfast run and lint report.
EXPECTED = {
    "rank0_evaluation": ("rank-guarded-collective", "evaluate(model.module)"),
    "ddp": ("rank-skips-collective", "continue"),
    "fsdp2": ("rank-guarded-collective", "save(model, step=20)"),
    "deepspeed": ("rank-guarded-collective", "engine.save_checkpoint("),
    "accelerate": ("rank-guarded-collective", "accelerator.gather_for_metrics("),
    "lightning": ("rank-guarded-collective", 'self.log("loss"'),
    "transformers": ("rank-guarded-collective", "trainer.evaluate()"),
}


def line_of(path: Path, text: str) -> int:
    lines = path.read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("name", BROKEN_AND_FIXED)
def test_lint_finds_the_broken_one_only_and_the_readme_shows_it(name, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    broken = Path("examples") / name / "broken.py"
    found = run_holdfast("lint", "--no-cache", broken).stdout
    assert found.startswith(f"{broken}:{line_of(broken, EXPECTED[name][1])}:")
    assert found.strip() in (broken.parent / "README.md").read_text()
    fixed = run_holdfast("lint", "--no-cache", broken.with_name("fixed.py"))
    assert (fixed.returncode, fixed.stdout) == (0, "")


def test_the_gallery_is_current_and_complete():
    assert set(BROKEN_AND_FIXED) == {path.parent.name for path in EXAMPLES.glob("*/broken.py")}
    page = EXAMPLES.parent / "docs" / "examples.md"
    assert page.read_text() == PAGES["examples.md"](), "run: python docs/generate.py"


def check_run(name: str, version: str, folder: Path, **how: bool) -> None:
    options = ["--standalone", "--nproc-per-node", 2, "--act-after", "5s"]
    script = EXAMPLES / name / version
    job = Launched(folder, *options, "--json-report", "report.json", script, **how)
    assert job.end() == (version == "broken.py"), job.output
    if version == "broken.py":
        root = job.json("report.json")["verdict"]["root"]
        cause, line = EXPECTED[name]
        assert (root["cause"], root["subject"]["line"]) == (cause, line_of(script, line))


@pytest.mark.slow
def test_run_names_the_cause_of_a_broken_one(tmp_path):
    check_run("rank0_evaluation", "broken.py", tmp_path)


@pytest.mark.slow
@pytest.mark.matrix
@pytest.mark.parametrize("version", ["broken.py", "fixed.py"])
@pytest.mark.parametrize("name", BROKEN_AND_FIXED)
def test_run_names_the_cause_of_every_broken_one(name, version, tmp_path):
    if name in {"deepspeed", "accelerate", "lightning", "transformers"}:
        pytest.importorskip(name)
    check_run(name, version, tmp_path, new_ranks=True)
