"""Unified patches are applied to texts in memory; a patch that does not match is an error."""

import difflib

import pytest

from benchmarks.unified_patches import PatchMismatch, apply_hunks, split_patch

OLD = "".join(f"line {number}\n" for number in range(1, 21))


def patch(new, context=2):
    rows = difflib.unified_diff(
        OLD.splitlines(), new.splitlines(), "a.py", "b.py", "", "", context, ""
    )
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    "new",
    [
        OLD.replace("line 4\n", "line four\n").replace("line 17\n", ""),
        "first\n" + OLD + "last\n",
        OLD.replace("line 1\n", "").replace("line 20\n", ""),
        OLD.replace("line 9\n", "line 9\n\n    new\n"),
    ],
)
@pytest.mark.parametrize("context", [0, 2])
def test_patch_produces_the_new_text(new, context):
    assert apply_hunks(OLD, split_patch(patch(new, context))["a.py", "b.py"]) == new


def test_each_file_of_a_patch_has_its_hunks():
    part = patch(OLD.replace("line 4\n", ""))
    files = split_patch(part + part.replace("a.py", "c.py").replace("b.py", "d.py"))
    assert set(files) == {("a.py", "b.py"), ("c.py", "d.py")}
    assert files["a.py", "b.py"] == files["c.py", "d.py"]


@pytest.mark.parametrize(
    "broken",
    [
        patch(OLD.replace("line 4\n", "")).replace("line 3", "line three"),
        patch(OLD.replace("line 4\n", "")).replace("@@ -2", "@@ -3"),
        patch(OLD.replace("line 4\n", "")).replace("-line 4\n", ""),
        patch(OLD.replace("line 4\n", "")).replace("@@", "@"),
        patch(OLD.replace("line 4\n", "")) + "+line 7\n",
        patch(OLD.replace("line 4\n", "")).replace("+++ b.py\n", ""),
        "no patch\n",
        "",
    ],
)
def test_a_patch_that_does_not_match_is_an_error(broken):
    with pytest.raises(PatchMismatch):
        apply_hunks(OLD, split_patch(broken)["a.py", "b.py"])
