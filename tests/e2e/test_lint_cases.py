"""The programs of tests/lint_cases that hang are run under ``holdfast run``: the verdict has lint's cause.

A few in every test run, all of them in ``make matrix``. Where the two differ :data:`ELSE` says so, docs/lint.md why.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from holdfast.actions.lint import lint

CASES = Path(__file__).parents[1] / "lint_cases" / "cases"
SAMPLE = ("b01_download_barrier", "b13_log_dir_property", "b30_no_anchor_continue")
LIMIT_S = 150
#: What the run can say at most. Collectives are matched by their order: the one too many is taken for the next one of
#: the others, and what shows is that the two are of different kinds, or that one rank comes to its end first.
ELSE = {
    **dict.fromkeys(("b08_save_checkpoint_global_zero", "b25_final_val_wrapped", "b28_patience_return_barriers",
                     "b29_nan_return_before_gather", "b34_auto_microbatch_retry", "b41_skip_step_on_inf_norm",
                     "b56_gradscaler_step_count", "b68_signal_file_never_written"), "SYNC003"),
    **dict.fromkeys(("b09_lora_sync_flag", "b18_fsdp_full_state_dict_rank0", "b36_exists_on_each_rank"), "SYNC009"),
    "b38_loop_over_local_keys": "SYNC006",
    "b40_text_only_batch": "SYNC005",
    "b49_set_iteration_order": "SYNC007",
    "b50_new_group_own_only": "NET002",
    "b60_read_before_rank0_write": "PROC001",
    # The same cause, at the line where the others wait.
    "b32_nan_raise_local": "SYNC005",
    "b45_ceil_split_loader": "SYNC003",
    "b59_random_rollout_length": "SYNC003",
}  # fmt: skip
#: gloo does with sizes that differ what chance wants; DeepSpeed compiles at first; the launcher sets LOCAL_RANK.
NOT_RUN = frozenset(
    {"b04_gather_object_main", "b53_all_gather_ragged", "b74_collective_in_thread", "b16_ds_save_checkpoint_rank0",
     "b76_local_rank_is_main"}
)  # fmt: skip

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
