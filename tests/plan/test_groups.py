"""Groups are a partition of the ranks for each kind, as torchtitan and Megatron-LM make them; flaws are found."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadValue
from holdfast.plan.groups import Mesh, groups, places, sizes
from holdfast.plan.groups_verify import read, verify, verify_orders
from holdfast.plan.setup import Setup, Strategy

from .cases import jobs

#: Two tensor-parallel ranks, four stages.
SIXTEEN = Setup(strategy=Strategy.DDP, data=2, tensor=2, pipeline=4)


def test_they_are_those_of_megatrons_example():
    """megatron/core/parallel_state.py, ``initialize_model_parallel``: 16 GPUs, 2 of them tensor and 4 pipeline."""
    found = groups(SIXTEEN)
    assert found.ranks("tp").tolist() == [[each, each + 1] for each in range(0, 16, 2)]
    assert found.ranks("pp").tolist() == [[each, each + 4, each + 8, each + 12] for each in range(4)]
    assert found.ranks("dp").tolist() == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]


def test_another_order_moves_the_pipeline_inside():
    found = groups(SIXTEEN, "tp-cp-ep-pp-dp")
    assert found.ranks("pp").tolist()[0] == [0, 2, 4, 6]
    assert found.ranks("dp").tolist()[0] == [0, 8]
    assert not verify(found, 16)


def test_the_mesh_is_torchtitans():
    found = groups(Setup(data=4, replicas=2, tensor=2, context=2, pipeline=2, expert=4))
    assert found.mesh == Mesh(("pp", "dp_replicate", "dp_shard", "cp", "tp"), (2, 2, 2, 2, 2))
    assert found.ranks("fsdp")[0].tolist() == [0, 2, 4, 6]
    assert found.ranks("ep")[0].tolist() == [0, 2, 4, 6]
    assert found.ranks("edp")[0].tolist() == [0, 8]
    assert found.mesh.coordinates(22) == {"pp": 1, "dp_replicate": 0, "dp_shard": 1, "cp": 1, "tp": 0}
    assert found.of(22) == {kind: next(row for row in rows if 22 in row) for kind, rows in found.lists().items()}


@settings(deadline=None)
@given(jobs(), st.sampled_from(["tp-cp-ep-dp-pp", "cp-tp-dp-pp", "tp-cp-ep-pp-dp", "dp-pp-tp-cp"]))
def test_groups_of_any_setup_are_right(job, order):
    setup = job[1]
    try:
        found = groups(setup, order)
    except BadValue:
        assert setup.expert > 1
        return
    assert found.world_size == setup.world_size
    assert verify(found, setup.world_size) == []
    assert sizes(found).get("pp", 1) == setup.pipeline
    assert sizes(found).get("tp", 1) == setup.tensor


def test_tensor_parallelism_stays_in_a_node_or_it_is_said():
    inside, across = Setup(data=2, tensor=8, pipeline=2), Setup(tensor=16, pipeline=2)
    assert {each.kind: each.nodes for each in places(groups(inside), 8)} == {"pp": 2, "dp_shard": 2, "tp": 1}
    assert verify(groups(inside), 32, 8) == []
    (flaw,) = verify(groups(across), 32, 8)
    assert str(flaw) == "tp: 2 of 2 groups cross nodes of 8, as ranks 0 to 15 in nodes 0 and 1"


# ---- a person's own


def test_a_formula_that_misses_half_of_the_ranks_is_found():
    own = {"pp": [[rank % 4 + 8 * stage for stage in range(2)] for rank in range(4)]}
    (flaw,) = verify(own, 16)
    assert str(flaw) == "pp: ranks 4 to 7 and 12 to 15 are in no group, 50% of all"
    assert flaw.ranks == (4, 5, 6, 7, 12, 13, 14, 15)


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"a": [[0, 1], [1, 3]]}, ["a: rank 2 is in no group", "a: rank 1 more than once (rank 1 in groups 0 and 1)"]),
        ({"a": [[0, 1, 1], [2, 3]]}, ["a: rank 1 more than once", "a: groups have 2 and 3 ranks, which no mesh has"]),
        ({"tp": [[0, 1], [2, 4]]}, ["tp: there is no rank 4 in a world of 4", "tp: rank 3 is in no group"]),
        ({"tp": [[0, 1], [2, 3]], "pp": [[0, 1], [3, 2]]},
         ["tp and pp: ranks 0 and 1 are together in a group of both"]),
        ({"tp": [[0, 1], [2, 3]], "pp": [[0], [1], [2], [3]]}, ["all: tp 2 x pp 1 is 2, and the world size 4"]),
        ({"mine": []}, ["mine: ranks 0 to 3 are in no group, 100% of all"]),
        ({"tp": [[0, 1], [2, 3]], "pp": [[0, 2], [1, 3]], "all": [[0, 1, 2, 3]]}, []),
    ],
)  # fmt: skip
def test_flaws_are_said_with_their_ranks(own, said):
    assert [str(each) for each in verify(read(own), 4)] == said


@given(st.dictionaries(st.sampled_from(["tp", "pp", "x"]), st.lists(st.lists(st.integers(-3, 2**70), max_size=4),
                       max_size=4), min_size=1), st.integers(1, 9))  # fmt: skip
def test_lists_are_right_only_where_each_rank_stands_once(own, world):
    flawless = {flaw.kind for flaw in verify(own, world)}.isdisjoint(own)
    partition = all(
        sorted(rank for group in lists for rank in group) == list(range(world)) and len({*map(len, lists)}) == 1
        for lists in own.values()
    )
    assert flawless == partition


@pytest.mark.parametrize("document", [None, [], {}, {1: []}, {"tp": 3}, {"tp": [3]}, {"tp": [[True]]}, {"tp": [["0"]]}])
def test_what_is_no_list_of_groups_is_refused(document):
    with pytest.raises(BadValue):
        read(document)


def test_all_ranks_have_to_make_all_groups_in_one_order():
    right = [[0, 1], [2, 3]]
    assert verify_orders(dict.fromkeys(range(4), right), 4) == []
    own_only = {rank: [right[rank // 2]] for rank in range(4)}
    assert [str(each) for each in verify_orders(own_only, 4)] == [
        "order: as number 0, rank 0 makes [0 and 1] and rank 2 [2 and 3]",
        "order: as number 0, rank 0 makes [0 and 1] and rank 3 [2 and 3]",
    ]
    one_more = {**dict.fromkeys(range(4), right), 3: [*right, [0, 3]]}
    assert [str(each) for each in verify_orders(one_more, 4)] == [
        "order: as number 2, rank 0 makes none and rank 3 [0 and 3]"
    ]
    (flaw,) = verify_orders({0: right, 1: right, 3: right}, 4)
    assert str(flaw) == "order: rank 2 makes no group"


@pytest.mark.parametrize("order", ["", "tp", "tp-tp-cp-dp-pp", "tp-cp-dp-pp-xx", "pp dp cp tp"])
def test_what_is_no_order_is_refused(order):
    with pytest.raises(BadValue, match="for example tp-cp-ep-dp-pp"):
        groups(SIXTEEN, order)


@pytest.mark.parametrize("rank", [-1, 16])
def test_a_rank_that_is_not_there_is_refused(rank):
    for ask in (groups(SIXTEEN).of, groups(SIXTEEN).mesh.coordinates):
        with pytest.raises(BadValue, match="there are ranks 0 to 15"):
            ask(rank)


@pytest.mark.parametrize("world", [0, -1, 1 << 30])
def test_a_world_that_cannot_be_is_refused(world):
    with pytest.raises(BadValue):
        verify({"tp": [[0]]}, world)
    with pytest.raises(BadValue):
        verify_orders({}, world)
