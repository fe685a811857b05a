"""`holdfast run --allow-fresh-start` reaches the workers."""

from __future__ import annotations

from holdfast.launcher import job
from holdfast.launcher.elastic import command_line


def test_the_option_is_a_variable_of_the_workers(monkeypatch):
    monkeypatch.setattr(job, "prepare_extensions", lambda *_, **__: None)  # compiles
    options = command_line.parse_run_options(["--nproc-per-node", "1", __file__], {})
    for allowed in (True, False):
        plan = job._plan(options, job.RunRequest(allow_fresh_start=allowed, recorder="python"))
        assert ("HOLDFAST_ALLOW_FRESH_START" in plan.gaps) is allowed
