"""Checks end, whatever they meet, and take no other with them."""

import os
import time

import pytest

from holdfast.errors import UnknownName
from holdfast.facts.checks import CHECKS, Check, Place, chosen, unknowns
from holdfast.facts.checks.running import look
from holdfast.facts.checks.shared_memory import SharedMemory
from holdfast.facts.checks.swap import Swap
from holdfast.findings import Unknown
from tests.facts.checks.trees import host


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


def test_one_that_hangs_is_unknown_and_the_others_are_not_lost(tmp_path):
    """A file of the host never answers, as on a dead file server: here a pipe that nobody writes to."""
    place = host(tmp_path, within_s=0.5)
    (tmp_path / "etc").mkdir()
    os.mkfifo(tmp_path / "etc/hosts")
    begun = time.monotonic()
    looks = look(place, [CHECKS["hosts-file"], CHECKS["swap"], CHECKS["interfaces"]])
    assert time.monotonic() - begun < 5
    assert list(looks) == ["hosts-file", "swap", "interfaces"]
    assert looks["hosts-file"].seen == Unknown("it was not over after 0.5 s, and was left behind")
    assert isinstance(looks["swap"].seen, Swap)
