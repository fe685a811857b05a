"""``holdfast plan``: pipelines that do not fit, and the host memory of offloaded states."""

from __future__ import annotations

import pytest

from tests.unit.cli.test_plan import run_plan, run_plan_json

OFFLOADED = ("llama3.1-405b", "--offload", "parameters", "--strategy", "fsdp2")


@pytest.mark.parametrize(
    "degrees", [("--tensor", "4", "--pipeline", "2"), ("--pipeline", "8"), ("--pipeline", "2")]
)
@pytest.mark.parametrize("model", ["yi-34b", "llama3.1-70b", "mixtral-8x7b"])
def test_a_pipeline_that_does_not_fit_is_answered_with_changes_that_fit(capsys, model, degrees):
    status, plan = run_plan_json(
        capsys, model, "--on", "8 x A100-80G", *degrees, "--micro-batch", "4"
    )
    assert status == (plan["answer"] == "does not fit")
    assert plan["runs"][0]["setup"]["pipeline"] == int(degrees[-1])
    assert plan["answer"] == "fits" or plan["fixes"]


def test_adapters_replace_pipeline_stages_with_the_same_batch(capsys):
    _, plan = run_plan_json(
        capsys, "llama3.1-70b", "--on", "8 x A100-80G", "--tensor", "4", "--pipeline", "2"
    )
    adapters = next(fix for fix in plan["fixes"] if "LoRA" in fix["what"])
    assert adapters["memory"]["answer"] == "fits"
    before, after = plan["runs"][0]["setup"], adapters["setup"]
    assert (after["pipeline"], after["data"]) == (1, 2 * before["data"])
    assert before["data"] * before["accumulation"] == after["data"] * after["accumulation"]
    assert "--pipeline" not in adapters["command"]


def test_stages_of_adapted_models_are_refused_with_what_to_do(capsys):
    status, _, error = run_plan(
        capsys, "llama3.1-8b", "--on", "8 x A100", "--pipeline", "2", "--lora", "16"
    )
    assert status == 2
    assert "--pipeline 2: only plain transformers" in error
    assert "omit --pipeline" in error


def test_offloaded_states_must_fit_in_host_memory(capsys):
    """405.85 billion weights with 16 bytes each are 5.9 TiB; usual hosts of 8 H100 have 1.9."""
    status, plan = run_plan_json(capsys, *OFFLOADED, "--on", "8 x H100")
    assert (status, plan["answer"]) == (1, "does not fit")
    memory = plan["runs"][0]["memory"]
    assert 8 * memory["host"] == pytest.approx(405.85e9 * 16, rel=0.01)
    assert plan["findings"][0]["code"] == "MEM003"
    assert any("host memory" in item for item in plan["assumed"])
    more = next(fix for fix in plan["fixes"] if fix["what"] == "use 32 GPUs")
    assert more["memory"]["answer"] == "fits"


@pytest.mark.parametrize(("gib", "expected"), [("6200", 0), ("5900", 1)])
def test_the_host_memory_is_an_option(capsys, gib, expected):
    status, plan = run_plan_json(capsys, *OFFLOADED, "--on", "8 x H100", "--host-memory", gib)
    assert status == expected
    assert not any("host memory" in item for item in plan["assumed"])


def test_the_report_states_host_memory_disk_and_pcie_time(capsys):
    _, text, _ = run_plan(capsys, *OFFLOADED, "--on", "8 x H100")
    words = " ".join(text.split())
    assert "it needs 6,048 of 1,898 GiB of host memory per node" in words
    assert "over PCIe per step" in words
    assert "6,048 GiB of disk per node" in words


def test_ways_to_fit_state_what_the_host_needs(capsys):
    _, text, _ = run_plan(capsys, "llama3.1-70b", "--on", "8 x H100", "--strategy", "fsdp2")
    offload = " ".join(text.split()).partition("offload all states to the host")[2]
    assert "1,051 of 1,898 GiB of host memory per node" in offload.partition(" $ ")[0]
    assert "over PCIe per step" in offload.partition(" $ ")[0]
