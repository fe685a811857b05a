"""Checkpoints that exist before a job starts: real folders with real damage, inspected and judged."""

import pytest

from holdfast.core import checkpoint_manifest
from holdfast.core.checkpoint_manifest import Manifest, ManifestEntry
from holdfast.core.findings import Level
from holdfast.host.check_rules.system.checkpoints import judge
from holdfast.host.checks import CheckContext
from holdfast.host.checks.system.checkpoints import inspect


@pytest.fixture
def root(tmp_path):
    for step in (10, 20, 30):
        folder = tmp_path / checkpoint_manifest.folder_name(step)
        folder.mkdir()
        (folder / "a.distcp").write_bytes(bytes([step]) * 1000)
        entry = ManifestEntry(
            path="a.distcp", size=1000, xxh3=checkpoint_manifest.hash_file(folder / "a.distcp")
        )
        checkpoint_manifest.write_manifest(folder, Manifest(step=step, files=(entry,)))
    return tmp_path


def judged(root):
    context = CheckContext(checkpoints=str(root))
    result = inspect(context)
    return result, [
        (finding.cause, finding.level, finding.message) for finding in judge(result, context)
    ]


def test_intact_checkpoints_are_no_finding_and_unverified_contents_are_unknown(root):
    result, findings = judged(root)
    assert findings == []
    assert "newest complete one by file sizes: step 30" in str(result.facts()[0])
    assert {entry.contents.why for entry in result.folder.checkpoints} == {
        "only sizes were compared"
    }


@pytest.mark.parametrize("damage", ["truncate", "lose", "lose-manifest"])
def test_damaged_newest_checkpoint_is_an_error_that_names_the_newest_complete_one(root, damage):
    newest = root / checkpoint_manifest.folder_name(30)
    if damage == "truncate":
        (newest / "a.distcp").write_bytes(b"x")
    else:
        (newest / ("a.distcp" if damage == "lose" else checkpoint_manifest.FILE)).unlink()
    _, ((cause, level, message),) = judged(root)
    assert cause == ("checkpoint-unfinished" if damage == "lose-manifest" else "checkpoint-corrupt")
    assert level is Level.ERROR
    assert "step 20 is the newest complete one" in message


def test_no_folder_and_a_missing_one_are_no_fault(tmp_path):
    for result, why in (
        (judged(tmp_path / "none")[0], "does not exist yet"),
        (inspect(CheckContext()), "no checkpoint folder"),
    ):
        assert why in result.absent
        assert why in str(result.facts()[0])


def test_an_unreadable_folder_is_unknown(tmp_path):
    (tmp_path / "file").write_text("")
    _, ((_, level, message),) = judged(tmp_path / "file")
    assert level is Level.UNKNOWN
    assert "cannot be inspected" in message
