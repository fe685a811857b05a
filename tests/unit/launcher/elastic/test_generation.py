"""The store and the status board of a generation."""

import threading
import time

import pytest
from torch.distributed import HashStore, PrefixStore, TCPStore

from holdfast.launcher.elastic.generation import (
    RESTART_PORTS,
    NodeArrival,
    Order,
    OrderAction,
    StatusBoard,
    StoreEndpoint,
    clear_board,
    join_generation,
)
from tests.ports import free_port


@pytest.fixture
def stores():
    """The stores of two nodes: the server and a client, with empty topics."""
    joined = meet(HashStore(), "here", restarts=(0, 0))
    return [each.store for each in joined]


@pytest.fixture
def boards(stores):
    created = [StatusBoard(store, node, 2) for node, store in enumerate(stores)]
    yield created
    for board in reversed(created):  # the leader owns the store and closes last
        board.close(2)


def meet(rendezvous, where, *, restarts):
    """Join one node per restart count at the same time."""
    joined = {}

    def arrive(node):
        joined[node] = join_generation(
            rendezvous,
            where,
            node=node,
            nodes=len(restarts),
            endpoint=StoreEndpoint("127.0.0.1"),
            arrival=NodeArrival(
                4 + node, restarts[node], f"state of {node}" if restarts[node] else ""
            ),
        )

    threads = [threading.Thread(target=arrive, args=(node,)) for node in range(len(restarts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [joined[node] for node in sorted(joined)]


def wait_until(condition, limit_s=10):
    end = time.monotonic() + limit_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def order(reason):
    return Order(action=OrderAction.RESTART, reason=reason, stuck=(2,), payload='{"any": "thing"}')


def test_all_nodes_agree_on_store_and_restarts():
    joined = meet(HashStore(), "holdfast", restarts=(1, 3, 0))
    assert len({(each.address, each.port, each.restarts) for each in joined}) == 1
    assert joined[0].restarts == 3
    assert [each.leader_workers for each in joined] == [4, 4, 4]
    joined[0].store.set("key", "text")
    assert joined[2].store.get("key") == b"text"


@pytest.mark.parametrize("kind", ["one rendezvous", "a prefix each"])
def test_every_generation_has_its_own_store(kind):
    rendezvous = HashStore()
    static = kind == "one rendezvous"
    generations = [
        meet(
            rendezvous if static else PrefixStore(f"round {number}", rendezvous),
            f"holdfast/{number}" if static else "holdfast",
            restarts=(number, number),
        )
        for number in range(3)
    ]
    assert len({nodes[0].port for nodes in generations}) == 3
    generations[0][1].store.set("rank 0's address", "dead")
    assert not generations[1][1].store.check(["rank 0's address"])


@pytest.mark.parametrize("restarts", [(3, 0, 1), (0, 3, 1), (1, 0, 3)])
def test_all_nodes_adopt_the_state_of_the_node_with_most_restarts(restarts):
    joined = meet(HashStore(), "here", restarts=restarts)
    assert {each.state for each in joined} == {f"state of {restarts.index(3)}"}


def test_workers_can_use_the_store():
    (single_node,) = meet(HashStore(), "holdfast", restarts=(0,))
    worker = TCPStore(single_node.address, single_node.port, is_master=False)
    worker.set("key", "text")
    assert single_node.store.get("key") == b"text"


def test_a_board_of_one_node_needs_no_store():
    board = StatusBoard(None, 0, 1)
    board.propose(order("first"))
    board.propose(order("second"))
    assert board.order() == order("first")
    assert board.read("summary") == {}
    board.close(1)


def test_nodes_read_posts_of_other_nodes(boards):
    leader, other = boards
    other.post("summary", "old")
    other.post("summary", "new")
    other.post("call", "1")
    assert wait_until(lambda: leader.read("call"))
    assert leader.read("summary") == {1: "new"}
    leader.post("done", "1")
    assert wait_until(lambda: other.read("done") == {0: "1"})


def test_a_question_reaches_all_nodes_and_its_answer_the_leader(boards):
    leader, other = boards
    leader.ask("where is rank 5?")
    assert wait_until(lambda: other.conversation == ("where is rank 5?", ""))
    other.answer("here")
    assert wait_until(lambda: leader.conversation == ("where is rank 5?", "here"))
    assert leader._changes == other._changes == "0"  # no node reads its topics for it


def test_the_first_proposal_applies_to_all_nodes(boards):
    boards[1].propose(order("of node 1"))
    assert wait_until(lambda: boards[1].order() is not None)
    boards[0].propose(order("of node 0"))
    assert wait_until(lambda: boards[0].order() is not None)
    assert [board.order() for board in boards] == [order("of node 1")] * 2


def test_an_order_proposed_just_before_the_leader_leaves_is_read(boards):
    leader, other = boards
    leader.propose(order("stop"))
    leaving = threading.Thread(target=leader.close, args=(5,))
    leaving.start()
    assert wait_until(lambda: other.order() == order("stop"))
    other.close(0)
    leaving.join(5)
    assert not leaving.is_alive()


def test_a_node_without_a_leader_decides_alone(stores, capfd):
    board = StatusBoard(stores.pop(), 1, 2)
    stores.clear()  # the server stops with its last reference
    board.post("call", "1")
    assert wait_until(lambda: board.lost)
    board.propose(order("alone"))
    assert board.order() == order("alone")
    capfd.readouterr()  # torch prints a stack


def test_a_node_measures_for_how_long_the_leader_has_not_answered(stores, capfd):
    leader, other = (StatusBoard(store, node, 2) for node, store in enumerate(stores))
    leader.post("done", "1")
    assert wait_until(lambda: other.read("done"))
    assert wait_until(lambda: other.leader_silent_s < 0.2)  # it is read every 0.25 s
    assert leader.leader_silent_s == 0.0
    leader.close(0)
    del leader
    stores.clear()  # the server stops with its last reference
    assert wait_until(lambda: other.lost)
    before = other.leader_silent_s
    assert wait_until(lambda: other.leader_silent_s > before + 0.5)
    capfd.readouterr()  # torch prints a stack


def test_the_port_of_the_store_derives_from_the_rendezvous():
    ports = [StoreEndpoint("127.0.0.1", 29777, number).port for number in range(7)]
    assert ports == [29777, 29778, 29779, 29780, 29781, 29778, 29779]
    assert len(set(ports)) == 1 + RESTART_PORTS
    assert [StoreEndpoint("127.0.0.1", 0, number).port for number in (0, 1)] == [0, 0]
    assert StoreEndpoint("127.0.0.1", 65535, 1).port == 0


def test_a_store_whose_port_is_in_use_gets_another_one():
    first = StoreEndpoint("127.0.0.1", free_port(), 1)
    taken = first.open()
    assert taken.port == first.port
    assert first.open().port not in (0, first.port)


def test_a_call_from_one_of_many_nodes_brings_its_newest_summary():
    """Of 600 nodes, the leader reads the summaries once a second, but at once after a call."""
    nodes = 600
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    clear_board(store, nodes)
    store.set("holdfast/summary/7", "before")
    board = StatusBoard(store, 0, nodes)
    wait_until(lambda: board.read("summary") == {7: "before"})
    store.set("holdfast/summary/7", "after")
    store.set("holdfast/call/7", "1")
    store.add("holdfast/changes", 1)
    wait_until(lambda: board.read("call") == {7: "1"})
    assert board.read("summary") == {7: "after"}
    for node in range(1, nodes):
        store.set(f"holdfast/left/{node}", "1")
    store.add("holdfast/changes", 1)
    board.close(5)
