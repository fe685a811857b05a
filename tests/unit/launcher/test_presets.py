"""The presets of `holdfast run`: what is set, kept and left out, and what this host decides."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.core import settings
from holdfast.core.errors import UnknownName
from holdfast.host.variable_rules.recommended import (
    Advice,
    JobProfile,
    RecommendedVariable,
    recommend,
)
from holdfast.launcher import job, presets
from holdfast.launcher.elastic import command_line
from tests.unit.host.variable_rules.test_recommended import GPUS, port


def options(*arguments: str):
    return command_line.parse_run_options([*arguments, __file__], {})


@pytest.fixture
def no_own_values(monkeypatch):
    """Unset what presets set."""
    for name in {name for values in settings.PRESETS.values() for name in values}:
        for alias in settings.all_names(name):
            monkeypatch.delenv(alias, raising=False)


@pytest.mark.usefixtures("no_own_values")
def test_the_loader_settings_reach_the_workers_and_the_watcher(monkeypatch):
    monkeypatch.setattr(job, "prepare_extensions", lambda *_, **__: None)  # compiles
    plan = job._plan(options(), job.RunRequest(preset="gpu_cache", recorder="python"))
    assert plan.gaps["HOLDFAST_LOADER_CACHE"] == "device"
    assert plan.environment["HOLDFAST_FIRST_STEP_S"] == "300"
    assert plan.preset.name == "gpu-cache"


def test_a_job_without_a_preset_has_no_preset_messages(monkeypatch):
    monkeypatch.setattr(job, "prepare_extensions", lambda *_, **__: None)
    plan = job._plan(options(), job.RunRequest(allow_fresh_start=True, recorder="python"))
    assert list(plan.preset.messages()) == []


@pytest.mark.usefixtures("no_own_values")
def test_what_is_set_kept_and_not_set_is_printed(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("TORCH_NCCL_TRACE_BUFFER_SIZE", "7")
    found = list(presets.apply_preset("ethernet", options("--nnodes", "1"), 2).messages())
    assert found == [
        "preset ethernet sets TORCH_NCCL_DUMP_ON_TIMEOUT=1",
        "preset ethernet keeps OMP_NUM_THREADS=3 (environment)",
        (
            "preset ethernet keeps TORCH_FR_BUFFER_SIZE "
            "(environment, as TORCH_NCCL_TRACE_BUFFER_SIZE=7)"
        ),
        "preset ethernet does not set variables of the network: the job has one host",
    ]


@pytest.mark.usefixtures("no_own_values")
def test_a_network_preset_adds_what_this_host_needs(monkeypatch):
    asked = []

    def recommend_here(context, profile, nodes, *, here_only):
        asked.append((context.endpoint, profile, nodes, here_only))
        machine = replace(GPUS, ports=(port("mlx5_0"), port("mlx5_1", rate=100.0)))
        return recommend(machine, profile)

    monkeypatch.setattr(presets, "recommend_here", recommend_here)
    job_options = options("--nnodes", "1:2", "--rdzv-endpoint", "node0:29500")
    applied = presets.apply_preset("infiniband,prefetch", job_options, 8)
    gaps = settings.filled_gaps(applied.readings)
    assert asked == [(("node0", 29500), JobProfile.INFINIBAND, 2, True)]
    assert gaps["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert gaps["GLOO_SOCKET_IFNAME"] == "eth0"
    assert gaps["HOLDFAST_LOADER_PREFETCH"] == "2"


@pytest.mark.usefixtures("no_own_values")
def test_values_of_the_table_precede_those_of_the_host(monkeypatch):
    advice = Advice("OMP_NUM_THREADS", "99", "because")
    found = RecommendedVariable(JobProfile.ROCE, "requested", (advice,), ("NCCL_IB_TC: ask",))
    monkeypatch.setattr(presets, "recommend_here", lambda *_, **__: found)
    applied = presets.apply_preset("roce", options("--nnodes", "2", "--rdzv-backend", "c10d"), 1)
    assert settings.filled_gaps(applied.readings)["OMP_NUM_THREADS"] != "99"
    assert applied.not_set == ("NCCL_IB_TC: ask",)


def test_the_host_decides_without_a_network_of_the_kind(monkeypatch):
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_IB_HCA"):
        monkeypatch.delenv(name, raising=False)
    job_options = options("--nnodes", "2", "--master-addr", "127.0.0.1")
    applied = presets.apply_preset("infiniband", job_options, 1)
    reasons = " ".join(applied.not_set)
    assert "loopback address" in reasons
    assert "GLOO_SOCKET_IFNAME" not in settings.filled_gaps(applied.readings)


def test_an_unknown_preset_is_refused():
    with pytest.raises(UnknownName, match="did you mean infiniband"):
        presets.apply_preset("infinband", options(), 1)


@pytest.mark.usefixtures("no_own_values")
@pytest.mark.parametrize(
    ("preset", "text", "warns"),
    [
        ("gpu-cache", "settings = holdfast.loader_settings()", False),
        ("gpu-cache", "loader = DataLoader(data)", True),
        ("basic", "loader = DataLoader(data)", False),
    ],
)
def test_a_script_without_loader_settings_is_reported(tmp_path, preset, text, warns):
    script = tmp_path / "train.py"
    script.write_text(text)
    applied = presets.apply_preset(preset, options(), 1)
    message = presets.unread_loader_settings(applied, str(script))
    assert (message is not None) is warns
    if message:
        assert message.startswith("train.py does not call holdfast.loader_settings()")
        assert "HOLDFAST_LOADER_CACHE" in message
