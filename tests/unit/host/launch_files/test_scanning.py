"""Variables that files set: all kinds of launch scripts, images, manifests and programs, with line numbers."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.core.errors import MissingFile
from holdfast.core.variable_table import ReadMoment
from holdfast.host.launch_files.scanning import scan_folder

#: Forty lists, each with two aliases of the previous one: 2^40 values if aliases are followed.
BOMB = b"a0: &a0 [NCCL_DEBUG=1]\n" + b"".join(
    b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40)
)


@pytest.fixture
def scan_text(tmp_path):
    """Return a function that scans a file with this name and text for (name, value, line)."""

    def scan_text(name, text):
        file = tmp_path / name
        file.write_text(text)
        scanned = scan_folder([file])
        assert scanned.unseen == ()
        return [(setting.name, setting.value, setting.line) for setting in scanned.settings]

    return scan_text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("export NCCL_DEBUG=INFO", [("NCCL_DEBUG", "INFO")]),
        (
            "export NCCL_DEBUG=INFO NCCL_IB_HCA='=mlx5_0:1,mlx5_1:1'  # which",
            [("NCCL_DEBUG", "INFO"), ("NCCL_IB_HCA", "=mlx5_0:1,mlx5_1:1")],
        ),
        (
            "NCCL_DEBUG=WARN OMP_NUM_THREADS=4 torchrun train.py",
            [("NCCL_DEBUG", "WARN"), ("OMP_NUM_THREADS", "4")],
        ),
        ("env -u X NCCL_DEBUG=WARN python train.py", [("NCCL_DEBUG", "WARN")]),
        (
            "mpirun -np 8 -x NCCL_DEBUG=WARN -x LD_LIBRARY_PATH -xNCCL_P2P_LEVEL=NVL ./a",
            [("NCCL_DEBUG", "WARN"), ("NCCL_P2P_LEVEL", "NVL")],
        ),
        (
            "docker run --gpus all -e NCCL_DEBUG=WARN --env=GLOO_SOCKET_IFNAME=eth0 image",
            [("NCCL_DEBUG", "WARN"), ("GLOO_SOCKET_IFNAME", "eth0")],
        ),
        (
            "srun --export=ALL,NCCL_DEBUG=WARN,NCCL_IB_TC=106 train.sh",
            [("NCCL_DEBUG", "WARN"), ("NCCL_IB_TC", "106")],
        ),
        ("#SBATCH --export=ALL,NCCL_DEBUG=WARN", [("NCCL_DEBUG", "WARN")]),
        ("bash -c 'export NCCL_DEBUG=WARN && torchrun x.py'", [("NCCL_DEBUG", "WARN")]),
        ('ssh node1 "cd /w; NCCL_DEBUG=WARN python x.py"', [("NCCL_DEBUG", "WARN")]),
        ('echo "export NCCL_DEBUG=WARN" >> ~/.bashrc', [("NCCL_DEBUG", "WARN")]),
        ("if true; then export NCCL_DEBUG=WARN; fi", [("NCCL_DEBUG", "WARN")]),
        ("declare -x NCCL_DEBUG=WARN", [("NCCL_DEBUG", "WARN")]),
        ("setenv NCCL_DEBUG WARN", [("NCCL_DEBUG", "WARN")]),
        ('export NCCL_SOCKET_IFNAME="${IFNAME:-eth0}"', [("NCCL_SOCKET_IFNAME", None)]),
        ("export NCCL_SOCKET_IFNAME=$(ip route | head -1)", [("NCCL_SOCKET_IFNAME", None)]),
        ("# export NCCL_DEBUG=WARN", []),
        ('echo "NCCL_DEBUG=$NCCL_DEBUG"', []),
        ("grep NCCL_DEBUG=INFO log", []),
        ("unset NCCL_DEBUG", []),
        ('[ "$NCCL_DEBUG" = INFO ] && true', []),
        ("export FOO=1 HOME=/root", []),
        ("export 'NCCL_DEBUG=WARN", [("NCCL_DEBUG", "WARN")]),
    ],
    ids=str,
)
def test_lines_of_shells(scan_text, line, expected):
    assert scan_text("run.sh", f"#!/bin/bash\n{line}\n") == [(*pair, 2) for pair in expected]


def test_a_continued_line_has_the_number_of_its_first_line(scan_text):
    text = "#!/bin/bash\ntrue\nexport NCCL_DEBUG=WARN \\\n    NCCL_IB_TC=106 \\\n    GLOO_SOCKET_IFNAME=eth0\n"
    assert [line for _, _, line in scan_text("run.sh", text)] == [3, 3, 3]


def test_shell_variables_differ_from_exported_ones(tmp_path):
    script = tmp_path / "a.sh"
    script.write_text(
        "NCCL_DEBUG=INFO\nNCCL_IB_TC=106\nexport NCCL_IB_TC\nNCCL_NET=Socket\npython x.py $NCCL_NET\n"
    )
    assert {setting.name: setting.exported for setting in scan_folder([script]).settings} == {
        "NCCL_DEBUG": False,
        "NCCL_IB_TC": True,
    }
    script.write_text("set -a\nNCCL_DEBUG=INFO\n")
    assert [setting.exported for setting in scan_folder([script]).settings] == [True]


def test_variables_that_only_the_script_uses_are_skipped(scan_text):
    text = "export NNODES=2\nNPROC_PER_NODE=8\ntorchrun --nnodes=$NNODES --nproc-per-node=${NPROC_PER_NODE} x.py\n"
    assert scan_text("run.sh", text) == []
    assert scan_text("run.sh", "NNODES=2\n. ./common.sh\n") == []
    assert scan_text("run.sh", "export NNODES=2\ntorchrun x.py\n") == [("NNODES", "2", 1)]


def test_dockerfiles(tmp_path):
    file = tmp_path / "Dockerfile.gpu"
    file.write_text(
        "FROM x\nENV NCCL_DEBUG=WARN \\\n    # why\n    NCCL_IB_TC=106\nENV NCCL_NET IB\n"
        "RUN export NCCL_CROSS_NIC=1\n"
        "RUN NCCL_DEBUG=INFO python -c 1\nCMD NCCL_ALGO=Tree torchrun x\n"
    )
    settings = [
        (setting.name, setting.value, setting.line, setting.exported)
        for setting in scan_folder([file]).settings
    ]
    assert settings == [
        ("NCCL_DEBUG", "WARN", 2, True),
        ("NCCL_IB_TC", "106", 2, True),
        ("NCCL_NET", "IB", 5, True),
        ("NCCL_CROSS_NIC", "1", 6, False),
        ("NCCL_ALGO", "Tree", 8, True),
    ]


def test_yaml_in_every_form(scan_text):
    text = """\
spec:
  containers:
    - name: worker
      env:
        - name: NCCL_DEBUG
          value: WARN
        - {name: NCCL_IB_TC, value: "106"}
        - name: MASTER_ADDR
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
      command: [bash, -c]
      args:
        - |
          set -e
          export NCCL_NET=IB
          torchrun x.py
services:
  a:
    environment:
      NCCL_ALGO: Tree
    b: ["NCCL_PROTO=LL", "NCCL_P2P_LEVEL=NVL torchrun x.py"]
---
env: {GLOO_SOCKET_IFNAME: "${{ matrix.interface }}"}
"""
    assert scan_text("job.yaml", text) == [
        ("NCCL_DEBUG", "WARN", 5),
        ("NCCL_IB_TC", "106", 7),
        ("NCCL_NET", "IB", 14),
        ("NCCL_ALGO", "Tree", 19),
        ("NCCL_PROTO", "LL", 20),
        ("NCCL_P2P_LEVEL", "NVL", 20),
        ("GLOO_SOCKET_IFNAME", None, 22),
    ]


def test_json_with_tabs(scan_text):
    assert scan_text("launch.json", '{\n\t"env": {\n\t\t"NCCL_DEBUG": "WARN"\n\t}\n}\n') == [
        ("NCCL_DEBUG", "WARN", 3)
    ]


def test_lines_of_names_and_values(scan_text):
    assert scan_text(".deepspeed_env", "NCCL_DEBUG=WARN\n# X=1\nNCCL_SOCKET_IFNAME==eth0\n") == [
        ("NCCL_DEBUG", "WARN", 1),
        ("NCCL_SOCKET_IFNAME", "=eth0", 3),
    ]


def test_python_in_every_form(scan_text):
    text = """\
import os, subprocess
os.environ["NCCL_DEBUG"] = "WARN"
os.environ["OMP_NUM_THREADS"] = str(8)
os.environ.setdefault("NCCL_IB_TC", "106")
os.environ.update({"NCCL_NET": "IB"}, NCCL_ALGO="Tree")
os.environ.update(NCCL_PROTO="LL")
os.putenv("NCCL_P2P_LEVEL", "NVL")
subprocess.run(["x"], env={**os.environ, "NCCL_CROSS_NIC": "1"})
os.environ["MASTER_ADDR"] = socket.gethostname()
print(os.environ["NCCL_DEBUG"])
"""
    assert sorted(scan_text("t.py", text), key=lambda row: (row[2], row[0])) == [
        ("NCCL_DEBUG", "WARN", 2),
        ("OMP_NUM_THREADS", "8", 3),
        ("NCCL_IB_TC", "106", 4),
        ("NCCL_ALGO", "Tree", 5),
        ("NCCL_NET", "IB", 5),
        ("NCCL_PROTO", "LL", 6),
        ("NCCL_P2P_LEVEL", "NVL", 7),
        ("NCCL_CROSS_NIC", "1", 8),
        ("MASTER_ADDR", None, 9),
    ]


@pytest.mark.parametrize(
    ("before", "passed"),
    [
        ("", {}),
        ("import torch", {ReadMoment.IMPORT: 2}),
        ("import torch.distributed as dist", {ReadMoment.IMPORT: 2}),
        ("from torch import nn", {ReadMoment.IMPORT: 2}),
        ("import torchvision", {}),
        ("dist.init_process_group('nccl')", {ReadMoment.GROUP: 2}),
        ("torch.cuda.set_device(0)", {}),
        ("torch.cuda.synchronize()", {ReadMoment.CUDA: 2}),
        ("model.cuda()", {ReadMoment.CUDA: 2}),
        ("dist.all_reduce(x)", {ReadMoment.COMMUNICATOR: 2}),
        ("if flag:\n    import torch", {}),
        ("if flag:\n    import torch\nelse:\n    import torch", {ReadMoment.IMPORT: 3}),
        ("try:\n    import torch\nexcept ImportError:\n    pass", {ReadMoment.IMPORT: 3}),
        ("for _ in range(0):\n    import torch", {}),
        ("def start():\n    dist.init_process_group()", {}),
        ("def start():\n    dist.init_process_group()\nstart()", {ReadMoment.GROUP: 3}),
        (
            "def start():\n    inner()\ndef inner():\n    dist.init_process_group()\nstart()",
            {ReadMoment.GROUP: 5},
        ),
        ("with open('x'):\n    import torch", {ReadMoment.IMPORT: 3}),
    ],
)
def test_what_a_program_does_before_the_setting(tmp_path, before, passed):
    file = tmp_path / "t.py"
    file.write_text(f"import os\n{before}\nos.environ['NCCL_DEBUG'] = 'WARN'\n")
    (setting,) = scan_folder([file]).settings
    assert dict(setting.done_before) == passed


def test_an_uncalled_function_is_ordered_after_the_imports(tmp_path):
    file = tmp_path / "t.py"
    file.write_text("import torch, os\ndef main():\n    os.environ['OMP_NUM_THREADS'] = '4'\n")
    (setting,) = scan_folder([file]).settings
    assert dict(setting.done_before) == {ReadMoment.IMPORT: 1}


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.yaml", b"env:\n  - NCCL_DEBUG: {{ .Values.x }\n", "not valid YAML"),
        ("a.yaml", b"NCCL_DEBUG: " + b"[" * 5000, "not valid YAML"),
        ("a.yaml", BOMB, ""),
        (
            "a.py",
            b"import os\nos.environ['NCCL_DEBUG'] = \n",
            "not valid Python (line 2)",
        ),
        ("a.py", b"os.environ" + b"(" * 5000, "not valid Python"),
        ("a.sh", b"export NCCL_DEBUG=\0WARN\n", "not a text file"),
        ("a.sh", b"# " + b"x" * (2 << 20), "larger than 1 MiB"),
        ("a.json", b'{"NCCL_DEBUG": ', "not valid YAML"),
        ("a.sh", b"\xff\xfe export NCCL_DEBUG=WARN", ""),
    ],
)
def test_unreadable_files_are_reported_and_nothing_hangs(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    unseen = scan_folder([tmp_path]).unseen
    assert [why in text for text in unseen] == ([True] if why else [])
    assert all(text.startswith(str(tmp_path / name)) and "\n" not in text for text in unseen)


def test_pipes_and_broken_links_are_not_opened(tmp_path):
    os.mkfifo(tmp_path / "a.sh")
    (tmp_path / "b.sh").symlink_to("nowhere")
    (tmp_path / "c.sh").write_text("export NCCL_DEBUG=WARN\n")
    scanned = scan_folder([tmp_path])
    assert (scanned.files, len(scanned.settings)) == (1, 1)
    assert scan_folder([tmp_path / "a.sh"]).unseen == (f"{tmp_path}/a.sh: not a regular file",)


def test_a_folder_is_scanned_without_installed_packages(tmp_path):
    for path in (
        "b/run.slurm",
        "a/run.sh",
        ".venv/lib/run.sh",
        "a/notes.txt",
        "node_modules/x/run.sh",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("export NCCL_DEBUG=WARN\n")
    (tmp_path / "start").write_text("#!/usr/bin/env bash\nexport NCCL_DEBUG=WARN\n")
    (tmp_path / "start.d").write_text("export NCCL_DEBUG=WARN\n")
    scanned = scan_folder([tmp_path])
    assert [str(Path(setting.origin).relative_to(tmp_path)) for setting in scanned.settings] == [
        "start",
        "a/run.sh",
        "b/run.slurm",
    ]


def test_a_missing_path(tmp_path):
    with pytest.raises(MissingFile, match="there is no such file"):
        scan_folder([tmp_path / "nowhere"])


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("a.sh", "NCCL_DEBUG=1\n"),
        ("a.sh", "NCCL_DEBUG=1 deepspeed --hostfile a b.py\n"),
        ("nccl.conf", "NCCL_A=1\n"),
        ("a.yaml", "- NCCL_DEBUG=1\n"),
        ("Dockerfile", "ENV NCCL_DEBUG=1\n"),
    ],
)
def test_a_file_with_only_variables_is_not_a_launch_file(tmp_path, name, line):
    """A file that would take minutes to audit is rejected at once."""
    (tmp_path / name).write_text(line * 6000)
    start = time.monotonic()
    scanned = scan_folder([tmp_path / name])
    assert time.monotonic() - start < 20
    assert scanned.settings == ()
    assert "more than 2,000 variables" in scanned.unseen[0]
