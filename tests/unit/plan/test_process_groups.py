"""The groups of each kind partition the ranks, as in torchtitan and Megatron-LM."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import InvalidValue
from holdfast.plan.layout.process_group_checks import (
    parse_groups,
    verify_groups,
)
from holdfast.plan.layout.process_groups import (
    RankMesh,
    build_process_groups,
    place_process_groups,
)
from holdfast.plan.setup import ShardingStrategy, TrainingSetup

from .setup_strategies import jobs

#: 2 data-parallel ranks, 2 tensor-parallel ranks, 4 pipeline stages.
SIXTEEN = TrainingSetup(strategy=ShardingStrategy.DDP, data=2, tensor=2, pipeline=4)


def test_groups_match_megatrons_example():
    """megatron/core/parallel_state.py, ``initialize_model_parallel``: 16 GPUs, tensor degree 2, pipeline degree 4."""
    result = build_process_groups(SIXTEEN)
    assert result.ranks("tp").tolist() == [[each, each + 1] for each in range(0, 16, 2)]
    assert result.ranks("pp").tolist() == [
        [each, each + 4, each + 8, each + 12] for each in range(4)
    ]
    assert result.ranks("dp").tolist() == [
        [0, 2],
        [1, 3],
        [4, 6],
        [5, 7],
        [8, 10],
        [9, 11],
        [12, 14],
        [13, 15],
    ]


def test_order_determines_the_pipeline_stride():
    result = build_process_groups(SIXTEEN, "tp-cp-ep-pp-dp")
    assert result.ranks("pp").tolist()[0] == [0, 2, 4, 6]
    assert result.ranks("dp").tolist()[0] == [0, 8]
    assert not verify_groups(result, 16)


def test_mesh_matches_torchtitan():
    result = build_process_groups(
        TrainingSetup(data=4, replicas=2, tensor=2, context=2, pipeline=2, expert=4)
    )
    assert result.mesh == RankMesh(("pp", "dp_replicate", "dp_shard", "cp", "tp"), (2, 2, 2, 2, 2))
    assert result.ranks("fsdp")[0].tolist() == [0, 2, 4, 6]
    assert result.ranks("ep")[0].tolist() == [0, 2, 4, 6]
    assert result.ranks("edp")[0].tolist() == [0, 8]
    assert result.mesh.coordinates(22) == {
        "pp": 1,
        "dp_replicate": 0,
        "dp_shard": 1,
        "cp": 1,
        "tp": 0,
    }
    assert result.groups_of_rank(22) == {
        kind: next(row for row in rows if 22 in row) for kind, rows in result.as_lists().items()
    }


def _ranks_per_group(groups, kind):
    return groups.ranks(kind).shape[1] if kind in groups.kinds else 1


@given(jobs(), st.sampled_from(["tp-cp-ep-dp-pp", "cp-tp-dp-pp", "tp-cp-ep-pp-dp", "dp-pp-tp-cp"]))
def test_groups_of_any_setup_are_valid(job, order):
    setup = job[1]
    try:
        result = build_process_groups(setup, order)
    except InvalidValue:
        assert setup.expert > 1
        return
    assert result.world_size == setup.world_size
    assert verify_groups(result, setup.world_size) == []
    assert _ranks_per_group(result, "pp") == setup.pipeline
    assert _ranks_per_group(result, "tp") == setup.tensor


def test_cross_node_tensor_groups_are_reported():
    one_node, cross_node = (
        TrainingSetup(data=2, tensor=8, pipeline=2),
        TrainingSetup(tensor=16, pipeline=2),
    )
    assert {
        each.kind: each.nodes for each in place_process_groups(build_process_groups(one_node), 8)
    } == {
        "pp": 2,
        "dp_shard": 2,
        "tp": 1,
    }
    assert verify_groups(build_process_groups(one_node), 32, 8) == []
    (problem,) = verify_groups(build_process_groups(cross_node), 32, 8)
    assert str(problem) == "tp: 2 of 2 groups cross nodes of 8, as ranks 0 to 15 in nodes 0 and 1"


# ---- user-defined groups


def test_ranks_without_a_group_are_reported():
    own = {"pp": [[rank % 4 + 8 * stage for stage in range(2)] for rank in range(4)]}
    (problem,) = verify_groups(own, 16)
    assert str(problem) == "pp: ranks 4 to 7 and 12 to 15 are in no group, 50% of all"
    assert problem.ranks == (4, 5, 6, 7, 12, 13, 14, 15)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (
            {"a": [[0, 1], [1, 3]]},
            [
                "a: rank 2 is in no group",
                "a: rank 1 in more than one group (rank 1 in groups 0 and 1)",
            ],
        ),
        (
            {"a": [[0, 1, 1], [2, 3]]},
            [
                "a: rank 1 in more than one group",
                "a: groups have 2 and 3 ranks; all groups of a mesh axis have one size",
            ],
        ),
        (
            {"tp": [[0, 1], [2, 4]]},
            ["tp: invalid rank 4 for a world size of 4", "tp: rank 3 is in no group"],
        ),
        (
            {"tp": [[0, 1], [2, 3]], "pp": [[0, 1], [3, 2]]},
            ["tp and pp: ranks 0 and 1 share a group of both kinds"],
        ),
        (
            {"tp": [[0, 1], [2, 3]], "pp": [[0], [1], [2], [3]]},
            ["all: tp 2 x pp 1 is 2, but the world size is 4"],
        ),
        ({"mine": []}, ["mine: ranks 0 to 3 are in no group, 100% of all"]),
        ({"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]], "all": [[0, 1, 2, 3]]}, []),
    ],
)
def test_group_problems_name_their_ranks(own, expected):
    assert [str(each) for each in verify_groups(parse_groups(own), 4)] == expected


@given(
    st.dictionaries(
        st.sampled_from(["tp", "pp", "x"]),
        st.lists(st.lists(st.integers(-3, 2**70), max_size=4), max_size=4),
        min_size=1,
    ),
    st.integers(1, 9),
)
def test_groups_are_accepted_only_if_they_partition_the_ranks(own, world):
    accepted = {problem.kind for problem in verify_groups(own, world)}.isdisjoint(own)
    partition = all(
        sorted(rank for group in lists for rank in group) == list(range(world))
        and len({*map(len, lists)}) == 1
        for lists in own.values()
    )
    assert accepted == partition


@pytest.mark.parametrize(
    "document", [None, [], {}, {1: []}, {"tp": 3}, {"tp": [3]}, {"tp": [[True]]}, {"tp": [["0"]]}]
)
def test_invalid_group_lists_are_rejected(document):
    with pytest.raises(InvalidValue):
        parse_groups(document)


@pytest.mark.parametrize("order", ["", "tp", "tp-tp-cp-dp-pp", "tp-cp-dp-pp-xx", "pp dp cp tp"])
def test_invalid_orders_are_rejected(order):
    with pytest.raises(InvalidValue, match=r"use e\.g\. tp-cp-ep-dp-pp"):
        build_process_groups(SIXTEEN, order)


@pytest.mark.parametrize("rank", [-1, 16])
def test_invalid_rank_is_rejected(rank):
    for lookup in (
        build_process_groups(SIXTEEN).groups_of_rank,
        build_process_groups(SIXTEEN).mesh.coordinates,
    ):
        with pytest.raises(InvalidValue, match="valid ranks are 0 to 15"):
            lookup(rank)


@pytest.mark.parametrize("world", [0, -1, 1 << 30])
def test_invalid_world_size_is_rejected(world):
    with pytest.raises(InvalidValue):
        verify_groups({"tp": [[0]]}, world)
