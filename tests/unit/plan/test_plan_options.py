"""What a user can say: reduction dtype, balanced context ranks, HSDP; and meshes of links."""

from __future__ import annotations

import pytest

from benchmarks import plan_truth_memory, plan_truth_time
from benchmarks.plan_door import ask_plan
from holdfast.plan.gpus import find_gpu
from holdfast.plan.hardware import LinkRates
from holdfast.plan.step_time.communication import CollectiveKind, PlacedGroup, bus_bandwidth

FIXED = ("--micro-batch", 1, "--accumulation", 1, "--recompute", "operations")
LONG = ("llama3.1-8b", "--on", "8 x H100-96G", "--context", 8, "--sequence", 131072, *FIXED)
SHARDED = ("llama3.1-8b", "--on", "2 x 8 H100", "--strategy", "fsdp2", *FIXED)


def tokens_per_s(*arguments):
    return ask_plan(*arguments).step.tokens_per_s


def test_context_ranks_are_unbalanced_unless_said_otherwise():
    """The last of n ranks computes the whole row of a causal mask: torchtitan's published runs."""
    assert tokens_per_s(*LONG, "--balanced") > 1.3 * tokens_per_s(*LONG)


@pytest.mark.parametrize(
    ("context", "sequence", "published"), [(2, 65_536, 2540), (8, 262_144, 548)]
)
def test_published_context_parallelism_is_predicted_by_the_command_line(
    context, sequence, published
):
    """torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 5: tokens/s per GPU."""
    cluster = ("llama3.1-8b", "--on", "8 x H100-96G", "--context", context, "--sequence", sequence)
    options = ("--micro-batch", 1, "--accumulation", 1, "--recompute", "full", "--compiled")
    step = ask_plan(*cluster, *options, "--precision", "fp8").step
    assert step.tokens_per_s_per_gpu == pytest.approx(published, rel=0.17)


def test_gradients_can_be_reduced_in_16_bits():
    run = ask_plan(*SHARDED, "--reduce", "16-bit")
    assert (run.setup.precision.gradient, run.setup.precision.reduced) == (4, 2)
    assert run.step.tokens_per_s > tokens_per_s(*SHARDED)
    assert (
        ask_plan(*SHARDED, "--precision", "fp32", "--reduce", "16-bit").setup.precision.reduced == 4
    )


def test_hsdp_is_an_option():
    setup = ask_plan(*SHARDED, "--replicas", 2).setup
    assert (setup.replicas, setup.shards) == (2, 8)


@pytest.mark.parametrize(("ranks", "gb_per_s"), [(2, 48), (4, 144), (8, 310)])
def test_few_gpus_of_a_mesh_use_few_links(ranks, gb_per_s):
    """An MI300X has one link of 48 usable GB/s to each of seven others."""
    links = LinkRates.for_gpu(find_gpu("MI300X"))
    rate = bus_bandwidth(CollectiveKind.ALL_REDUCE, PlacedGroup(ranks, ranks), links) / 1e9
    assert rate == pytest.approx(gb_per_s, rel=0.07)


@pytest.mark.parametrize(
    "given",
    [
        {"model": "llama9-1t", "gpu": "H100", "node": "8x H100"},
        {"model": "llama3.1-8b", "gpu": "Z9", "node": "8x Z9"},
    ],
)
@pytest.mark.parametrize("source", ["pytorch/torchtitan", "mosaicml", "other"])
def test_the_benchmark_states_refused_rows(given, source):
    case = {
        "id": "T1",
        "kind": "comm" if source == "other" else "throughput",
        "source": source,
        "input": given
        | {"world": 8, "local_bs": 1, "seq": 2048, "ac": "none", "strategy": "FSDP"}
        | {"mp_mode": "PURE", "grad_accum": 1, "precision": "bf16", "collective": "all_reduce"},
        "expected": {"tokens_per_s_per_gpu": 1.0, "busbw_gbps": 1.0},
    }
    rows = [*plan_truth_time.rows([case]), *plan_truth_memory.rows([case])]
    if source != "other" or given["gpu"] == "Z9":
        assert rows[0].kind == "time: refused"
        assert rows[0].what.startswith("refused: ")
