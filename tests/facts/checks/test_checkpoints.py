"""Checkpoints that lie there before a job: real folders, damaged for real, looked at and judged."""

import pytest

from holdfast import manifest
from holdfast.facts.checks import Place
from holdfast.facts.checks.checkpoints import look
from holdfast.findings import Level
from holdfast.manifest import Entry, Manifest
from holdfast.rules.machine.checkpoints import judge


@pytest.fixture
def root(tmp_path):
    for step in (10, 20, 30):
        folder = tmp_path / manifest.name_of(step)
        folder.mkdir()
        (folder / "a.distcp").write_bytes(bytes([step]) * 1000)
        entry = Entry(path="a.distcp", size=1000, xxh3=manifest.hash_of(folder / "a.distcp"))
        manifest.write(folder, Manifest(step=step, files=(entry,)))
    return tmp_path


def judged(root):
    place = Place(checkpoints=str(root))
    seen = look(place)
    return seen, [(claim.cause, claim.level, claim.message) for claim in judge(seen, place)]


def test_whole_ones_are_no_finding_and_what_was_not_compared_is_unseen(root):
    seen, claims = judged(root)
    assert claims == []
    assert "step 30 is the newest whole one, by its sizes" in str(seen.facts()[0])
    assert {each.contents.why for each in seen.found.seen} == {"sizes alone were compared"}


@pytest.mark.parametrize("damage", ["truncate", "lose", "lose-manifest"])
def test_what_loading_would_pass_over_is_an_error_that_says_which_one_is_whole(root, damage):
    newest = root / manifest.name_of(30)
    if damage == "truncate":
        (newest / "a.distcp").write_bytes(b"x")
    else:
        (newest / ("a.distcp" if damage == "lose" else manifest.FILE)).unlink()
    _, ((cause, level, message),) = judged(root)
    assert cause == ("checkpoint-unfinished" if damage == "lose-manifest" else "checkpoint-corrupt")
    assert level is Level.ERROR
    assert "step 20 is the newest whole one" in message


def test_no_folder_and_one_that_is_not_there_are_no_fault(tmp_path):
    for seen, why in ((judged(tmp_path / "none")[0], "is not there yet"), (look(Place()), "no folder")):
        assert why in seen.absent
        assert why in str(seen.facts()[0])


def test_a_folder_that_cannot_be_looked_into_is_unknown(tmp_path):
    (tmp_path / "file").write_text("")
    _, ((_, level, message),) = judged(tmp_path / "file")
    assert level is Level.UNKNOWN
    assert "cannot be looked at" in message
