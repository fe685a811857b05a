"""Texts without a known name, and Markdown; what has no launch is reported."""

from __future__ import annotations

import pytest

from holdfast import cli
from holdfast.host.launch_files.scanning import scan_folder

SCRIPT = "export NCCL_DEBUG=WARN\ntorchrun --nproc-per-node 8 train.py\n"
GUIDE = """# Training

export NCCL_IB_TC=1 is prose.

```bash
$ export NCCL_DEBUG=WARN
$ torchrun train.py
```

~~~{.yaml}
env:
  - name: GLOO_SOCKET_IFNAME
    value: eth0
~~~

```python
os.environ["NCCL_ALGO"] = ...an excerpt
```
"""


def scan(file):
    return [(each.name, each.value, each.line) for each in scan_folder([file]).settings]


@pytest.mark.parametrize("name", ["launch", "launch.txt", "notes.rst", "start.in"])
def test_a_named_file_of_any_kind_is_read(tmp_path, name):
    (tmp_path / name).write_text(SCRIPT)
    assert scan(tmp_path / name) == [("NCCL_DEBUG", "WARN", 1)]


def test_a_program_without_extension_is_read_as_python(tmp_path):
    file = tmp_path / "train"
    file.write_text('import os\n\nos.environ["NCCL_DEBUG"] = "WARN"\n')
    assert scan(file) == [("NCCL_DEBUG", "WARN", 3)]


def test_code_blocks_of_markdown_are_read_with_their_lines(tmp_path):
    (tmp_path / "README.md").write_text(GUIDE)
    assert scan(tmp_path) == [("NCCL_DEBUG", "WARN", 6), ("GLOO_SOCKET_IFNAME", "eth0", 12)]


def test_folders_are_searched_for_scripts_without_extension(tmp_path):
    (tmp_path / "launch").write_text(SCRIPT)
    (tmp_path / "job.log").write_text("NCCL_DEBUG=INFO\n")
    (tmp_path / "a.out").write_bytes(b"\x7fELF\0")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0")
    scanned = scan_folder([tmp_path])
    assert [each.value for each in scanned.settings] == ["WARN"]
    assert (scanned.files, scanned.unseen) == (1, ())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"shopping: milk\n", "sets no variable and starts no job"),
        (b"", "the file is empty"),
        (b"\xff\xfe\0", "not a text file"),
    ],
)
def test_a_path_without_launch_is_reported_with_status_2(tmp_path, capsys, content, why):
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text(SCRIPT)
    bad.write_bytes(content)
    with pytest.raises(SystemExit) as end:
        cli.main(["env", "--scan", str(good), "--scan", str(bad)])
    assert end.value.code == 2
    shown = capsys.readouterr().out
    assert shown.replace("\n  ", " ").count("not checked:") == 1
    assert why in shown.replace("\n  ", " ")


def test_a_launch_without_variables_is_checked(tmp_path, capsys):
    (tmp_path / "launch").write_text("torchrun train.py\n")
    with pytest.raises(SystemExit) as end:
        cli.main(["env", "--scan", str(tmp_path)])
    assert not end.value.code
    assert "0 variables in 1 file: no problems found\n" in capsys.readouterr().out
