"""Checks end, whatever they meet, and take no other with them."""

import time

import pytest

from holdfast.errors import UnknownName
from holdfast.facts.checks import CHECKS, Check, Place, chosen, unknowns
from holdfast.facts.checks.running import look
from holdfast.facts.checks.shared_memory import SharedMemory
from holdfast.findings import Unknown


def test_a_process_of_its_own_sees_the_same():
    aside, here = (Check("shared-memory", "", alone=alone, limit_s=20) for alone in (True, False))
    sizes = [look(Place(), [check])["shared-memory"].seen.size_bytes for check in (aside, here)]
    assert sizes[0] == sizes[1] > 0


def test_a_check_that_takes_too_long_is_unknown_and_left_behind():
    begun = time.monotonic()
    (found,) = look(Place(), [Check("shared-memory", "", alone=True, limit_s=0.01)]).values()
    assert found.seen.why.startswith("the check shared-memory: ")
    assert found.seen.why.endswith("did not answer within 0.01 s")
    assert time.monotonic() - begun < 2


@pytest.mark.parametrize("alone", [False, True])
def test_a_check_that_fails_is_unknown(alone):
    broken = Place(root="\0")
    (found,) = look(broken, [Check("shared-memory", "", alone=alone, limit_s=20)]).values()
    assert isinstance(found.seen, Unknown)
    assert "embedded null byte" in found.seen.why


def test_what_is_unknown_is_found_wherever_it_lies():
    seen = SharedMemory(size_bytes=Unknown("a"), free_bytes=7)
    assert unknowns((seen, (Unknown("b"), 3))) == ("a", "b")


def test_names():
    assert [check.name for check in chosen(())] == list(CHECKS)
    assert [check.name for check in chosen(("shared-memory",))] == ["shared-memory"]
    with pytest.raises(UnknownName, match="shared-memory"):
        chosen(("shared_memory",))


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_every_check_looks_at_this_host_and_says_what_it_saw(check):
    seen = check.look(Place())
    assert isinstance(seen, check.kind)
    assert seen.absent or seen.facts()
