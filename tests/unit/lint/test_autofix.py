"""--fix edits only the faulty line, and only in unambiguous cases."""

import pytest

from holdfast.core.errors import MissingFile
from holdfast.lint.autofix import iter_changes
from holdfast.lint.rules.edits import Edit
from holdfast.lint.run import lint_paths

EPOCHS = """import torch
from torch.utils.data import DataLoader, DistributedSampler


def train(data):
    {sampler}
    loader = DataLoader(data, sampler={of})
    for {epoch} in {over}:
        # one epoch
        for batch in {loader}:
            print(batch)
"""
USUAL = {
    "sampler": "sampler = DistributedSampler(data)",
    "of": "sampler",
    "epoch": "epoch",
    "over": "range(3)",
    "loader": "loader",
}


def planned(path):
    claims = lint_paths([path]).findings
    assert claims
    return list(
        iter_changes(
            (finding.finding.subject.file, finding.edit)
            for finding in claims
            if finding.edit is not None
        )
    )


@pytest.mark.parametrize(
    ("different", "line"),
    [
        ({}, "        sampler.set_epoch(epoch)"),
        ({"loader": "enumerate(loader)", "epoch": "e"}, "        sampler.set_epoch(e)"),
        (
            {"sampler": "pass", "of": "DistributedSampler(data)"},
            "        loader.sampler.set_epoch(epoch)",
        ),
    ],
)
def test_set_epoch_is_inserted_and_then_lint_passes(different, line, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(EPOCHS.format(**USUAL | different))
    (change,) = planned(path)
    before = path.read_text().splitlines()
    change.write()
    after = path.read_text().splitlines()
    assert after == [*before[:9], line, *before[9:]]
    assert not lint_paths([path]).findings
    assert f"+{line}" in list(change.diff())


@pytest.mark.parametrize(
    "different",
    [
        {"epoch": "_"},
        {"over": "data.epochs()"},
        {"sampler": "sampler = DistributedSampler(data)\n    sampler = DistributedSampler(data)"},
        {"of": "sampler if data else None"},
    ],
)
def test_unclear_cases_get_no_fix(different, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(EPOCHS.format(**USUAL | different))
    assert not [finding for finding in lint_paths([path]).findings if finding.edit is not None]


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ('os.environ["NCCL_DEBUGG"] = "INFO"', 'os.environ["NCCL_DEBUG"] = "INFO"'),
        ("os.environ['NCCL_SOKCET_IFNAME'] = 'eth0'", "os.environ['NCCL_SOCKET_IFNAME'] = 'eth0'"),
        ('os.environ["NCCL_DEBUGS"] = "INFO"', None),
        ('os.environ["NCCL_BUFFER_SIZE"] = "8388608"', None),
        ('os.environ["NCCL_DEBUGG"] = "NCCL_DEBUGG"', None),
    ],
)
def test_a_misspelled_variable_is_corrected(line, after, tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        f'import os\nimport torch.distributed as dist\n{line}\ndist.init_process_group("nccl")\n'
    )
    changed = planned(path)
    assert [change.after.decode().splitlines()[2] for change in changed] == (
        [after] if after else []
    )


@pytest.mark.parametrize(
    ("content", "after"),
    [
        (b"a = 1\r\nb = 2\r\n", b"a = 1\r\nc = 3\r\nb = 2\r\n"),
        (b"a = 1\rb = 2\r", b"a = 1\rc = 3\rb = 2\r"),
        (b"a = 1\nb = 2", b"a = 1\nc = 3\nb = 2"),
        (b"\xef\xbb\xbfa = 1\nb = 2\n", b"\xef\xbb\xbfa = 1\nc = 3\nb = 2\n"),
        (b"#coding:latin-1\nb = 2\nx = '\xe9'\n", b"#coding:latin-1\nc = 3\nb = 2\nx = '\xe9'\n"),
        (b"a = '\x0c\xc2\x85'\nb = 2\n", b"a = '\x0c\xc2\x85'\nc = 3\nb = 2\n"),
    ],
)
def test_unedited_bytes_are_preserved(content, after, tmp_path):
    path = tmp_path / "a.py"
    path.write_bytes(content)
    path.chmod(0o755)
    (change,) = iter_changes([(str(path), Edit(2, "b = 2", "c = 3", is_insertion=True))])
    change.write()
    assert path.read_bytes() == after
    assert path.stat().st_mode & 0o777 == 0o755
    assert [each.name for each in tmp_path.iterdir()] == ["a.py"]


def test_a_line_is_edited_once_and_only_if_unchanged(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("a = 1\nb = 2\n")
    edits = [
        Edit(1, "a = 1", "a = 3"),
        Edit(1, "a = 1", "a = 4"),
        Edit(2, "b = 5", "b = 6"),
        Edit(9, "", "x"),
    ]
    (change,) = iter_changes((str(path), edit) for edit in edits)
    assert (change.after, change.edits) == (b"a = 3\nb = 2\n", 1)


def test_an_edit_that_breaks_the_syntax_is_not_applied(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("a = 1\n")
    assert not list(iter_changes([(str(path), Edit(1, "a = 1", "a = ("))]))
    assert not list(iter_changes([(str(tmp_path / "gone.py"), Edit(1, "a = 1", "a = 2"))]))


def test_a_changed_or_read_only_file_is_not_written(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("a = 1\n")
    (change,) = iter_changes([(str(path), Edit(1, "a = 1", "a = 2"))])
    path.chmod(0o444)
    with pytest.raises(MissingFile, match="read-only"):
        change.write()
    path.chmod(0o644)
    path.write_text("a = 5\n")
    with pytest.raises(MissingFile, match="changed since"):
        change.write()
    assert path.read_text() == "a = 5\n"
