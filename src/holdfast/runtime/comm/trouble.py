"""What goes wrong in a call on one rank is told to all of its group, so that none is left waiting.

Ranks that wait look into the group's store once a second: at ``<call>/trouble``, which is about that call alone (calls
differ, or a rank's tensor was refused), and at ``broken``, after which no call in the group can be trusted.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NoReturn

import torch.distributed as dist

from holdfast.errors import CollectiveMismatch, CollectiveTimeout, GroupBroken
from holdfast.report.ranksets import say_ranks
from holdfast.runtime.comm.groups import GroupState
from holdfast.runtime.comm.presence import Call, announce, told

#: Ranks that wait in the call have said within so many seconds what they called.
_TOLD_WITHIN_S = 1.5
_PAUSE_S = 0.05
_MOST_SAID = 4
_TROUBLE, _BROKEN = "trouble", "broken"


def mismatch(call: Call) -> NoReturn:
    """Tell all ranks of the group that this call is not the same on all of them; the first sentence counts.

    Raises:
        CollectiveMismatch: always, with the sentence that all ranks get.
    """
    announce(call)
    until = time.monotonic() + min(_TOLD_WITHIN_S, call.limit_s)
    while len(given := told(call)) < len(call.state.ranks) and time.monotonic() < until:
        time.sleep(_PAUSE_S)
    why, odd = _compared(given)
    sentence = json.dumps({"why": why, "odd": odd})
    _raise(call, call.state.store.compare_set(call.key(_TROUBLE), "", sentence))


def refuse(call: Call, why: str) -> None:
    """Tell those that wait, or will, that this rank does not take part in the call."""
    sentence = json.dumps({"why": f"rank {dist.get_rank()} refused it: {why}", "odd": [dist.get_rank()]})
    call.state.store.compare_set(call.key(_TROUBLE), "", sentence)


def break_group(call: Call, why: str, missing: Sequence[int] = ()) -> None:
    """The group is not used any more, by any rank; ``missing`` did not come to the call, which timed out."""
    leave(call.state, why, call.number, missing)


def leave(state: GroupState, why: str, number: int = 0, missing: Sequence[int] = ()) -> None:
    """As :func:`break_group`, outside of a call."""
    state.broken = why
    said = {"why": f"on rank {dist.get_rank()} {why}", "call": number, "missing": list(missing)}
    state.store.compare_set(_BROKEN, "", json.dumps(said))


def look(call: Call) -> None:
    """Raise what another rank has found.

    Raises:
        CollectiveMismatch: ranks called something else, or do not take part.
        CollectiveTimeout: another rank has given up waiting in this call.
        GroupBroken: another rank has left the group before.
    """
    store = call.state.store
    if store.check([call.key(_TROUBLE)]):
        announce(call)
        _raise(call, store.get(call.key(_TROUBLE)))
    if store.check([_BROKEN]):
        said = json.loads(store.get(_BROKEN))
        call.state.broken = said["why"]
        if said["missing"] and said["call"] == call.number:
            raise CollectiveTimeout(f"{call} at {call.site}", why=said["why"], missing=said["missing"])
        raise GroupBroken(repr(call.state.name), why=call.state.broken)


def _raise(call: Call, sentence: bytes) -> NoReturn:
    found = json.loads(sentence)
    break_group(call, f"call {call.number} was not the same on all ranks")
    raise CollectiveMismatch(f"call {call.number} in group {call.state.name!r}", why=found["why"], odd=found["odd"])


def _compared(given: Mapping[int, Mapping[str, str]]) -> tuple[str, list[int]]:
    """Who called what and where, most ranks first; and the ranks that are fewer, none where it is a tie."""
    counted = Counter(each["words"] for each in given.values()).most_common()
    parts = []
    for words, _ in counted[:_MOST_SAID]:
        ranks = [rank for rank, each in given.items() if each["words"] == words]
        parts.append(f"{say_ranks(ranks)} called {words} at {given[ranks[0]]['site']}")
    tie = len(counted) > 1 and counted[0][1] == counted[1][1]
    odd = [] if tie else [rank for rank, each in given.items() if each["words"] != counted[0][0]]
    return "; ".join(parts), odd
