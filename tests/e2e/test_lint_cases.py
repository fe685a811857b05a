"""The programs of tests/lint_cases that hang are run under ``holdfast run``: the verdict has lint's cause.

A few in every test run, all of them in ``make matrix``. Where the two differ :data:`ELSE` says so, docs/lint.md why.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from holdfast.actions.lint.linting import lint

CASES = Path(__file__).parents[1] / "lint_cases" / "cases"
#: Three that the run tells by itself, and one that it tells from the source.
SAMPLE = ("b01_download_barrier", "b09_lora_sync_flag", "b13_log_dir_property", "b30_no_anchor_continue")
LIMIT_S = 150
#: What the run says of those of which it does not see enough to believe the source.
ELSE = {"b68_signal_file_never_written": "SYNC003"}
#: DeepSpeed compiles at first; pairs that make a group each for themselves often get away with it; the launcher sets
#: LOCAL_RANK, of which it takes two nodes to go wrong.
NOT_RUN = frozenset({"b16_ds_save_checkpoint_rank0", "b50_new_group_own_only", "b76_local_rank_is_main"})

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 30)]


def read(name):
    return json.loads((CASES / name / "case.json").read_text())


def hangs(name):
    return read(name)["dynamic"] not in ("static-only", "wrong", "diverge") and name not in NOT_RUN


def verdict(launch, name, folder):
    """The root cause that ``holdfast run`` names."""
    case = read(name)
    entry = CASES / name / ("bad.py" if (CASES / name / "bad.py").exists() else "bad/main.py")
    job = launch(
        "--standalone", "--nproc-per-node", case["nproc"], "--max-restarts", 0, "--json-report", "report.json", entry,
        HOLDFAST_STALL_S="2", HOLDFAST_FIRST_STEP_S="5", CUDA_VISIBLE_DEVICES="", ACCELERATE_USE_CPU="true",
        CASE_TMP=str(folder), **case["env"],
    )  # fmt: skip
    assert job.end(LIMIT_S) != 0, job.output
    root = job.json("report.json")["verdict"]["root"]
    assert root is not None, job.output
    return root


def check(launch, name, folder):
    case = read(name)
    framework = {"accelerate": "accelerate", "lightning": "lightning"}.get(case["framework"], "torch")
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    root = verdict(launch, name, folder)
    if name in ELSE:
        assert root["code"] == ELSE[name], root
        return
    said = {claim.finding.code for claim in lint([CASES / name / file for file in case["bad_files"]]).claims}
    assert root["code"] in said, root
    marked = {(Path(each["file"]).name, each["line"]) for each in (*case["expect"], *case["related"])}
    assert (Path(root["subject"]["file"]).name, root["subject"]["line"]) in marked, root


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_gets_the_cause_that_lint_gives(launch, name, tmp_path):
    check(launch, name, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir() if hangs(path.name)))
def test_every_case_that_hangs_gets_the_cause_that_lint_gives(launch, name, tmp_path):
    check(launch, name, tmp_path)
