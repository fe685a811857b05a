"""``holdfast run`` reports the cause that lint reports for hanging programs of tests/faults/lint_cases.

A sample runs in every test run, all cases in ``make matrix``. :data:`OTHER_CAUSES` lists the
exception, which docs/lint.md explains.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from holdfast.lint.run import lint_paths

CASES = Path(__file__).parents[1] / "faults" / "lint_cases" / "cases"
SAMPLE = ("b13_log_dir_property",)
LIMIT_S = 150
#: The cause that the run reports if it observes too little to use the source.
OTHER_CAUSES = {"b68_signal_file_never_written": "SYNC003"}
#: DeepSpeed compiles first; pairs of ranks that create separate groups often succeed; LOCAL_RANK,
#: which the launcher sets, causes an error only on two nodes.
NOT_RUN = frozenset(
    {"b16_ds_save_checkpoint_rank0", "b50_new_group_own_only", "b76_local_rank_is_main"}
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S + 30)]


def read(name):
    return json.loads((CASES / name / "case.json").read_text())


def hangs(name):
    return read(name)["dynamic"] not in ("static-only", "wrong", "diverge") and name not in NOT_RUN


def root_cause(launch, name, folder):
    """Run a case under ``holdfast run``; return the root cause."""
    case = read(name)
    entry = CASES / name / ("bad.py" if (CASES / name / "bad.py").exists() else "bad/main.py")
    job = launch(
        "--standalone",
        "--nproc-per-node",
        case["nproc"],
        "--max-restarts",
        0,
        "--json-report",
        "report.json",
        entry,
        HOLDFAST_STALL_S="2",
        HOLDFAST_FIRST_STEP_S="5",
        HOLDFAST_ACT_AFTER="5s",
        CUDA_VISIBLE_DEVICES="",
        ACCELERATE_USE_CPU="true",
        CASE_TMP=str(folder),
        **case["env"],
    )
    assert job.end(LIMIT_S) != 0, job.output
    root = job.json("report.json")["verdict"]["root"]
    assert root is not None, job.output
    return root


def check(launch, name, folder):
    case = read(name)
    framework = {"accelerate": "accelerate", "lightning": "lightning"}.get(
        case["framework"], "torch"
    )
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    root = root_cause(launch, name, folder)
    if name in OTHER_CAUSES:
        assert root["code"] == OTHER_CAUSES[name], root
        return
    reported = {
        claim.finding.code
        for claim in lint_paths([CASES / name / file for file in case["bad_files"]]).findings
    }
    assert root["code"] in reported, root
    marked = {
        (Path(each["file"]).name, each["line"]) for each in (*case["expect"], *case["related"])
    }
    assert (Path(root["subject"]["file"]).name, root["subject"]["line"]) in marked, root


@pytest.mark.parametrize("name", SAMPLE)
def test_the_cause_of_a_sample_equals_that_of_lint(launch, name, tmp_path):
    check(launch, name, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("name", sorted(path.name for path in CASES.iterdir() if hangs(path.name)))
def test_the_cause_of_every_hanging_case_equals_that_of_lint(launch, name, tmp_path):
    check(launch, name, tmp_path)
