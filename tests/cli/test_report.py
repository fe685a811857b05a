"""`holdfast report`: a run that really failed goes into an archive, without a secret, and can be read again."""

from __future__ import annotations

import hashlib
import html
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import msgspec
import pytest

from holdfast import findings
from holdfast.facts import flight_recorder
from holdfast.facts.boxes import Box
from tests.actions.secrets_made_up import LINES, PEM
from tests.actions.test_redact import planted_box, planted_dump
from tests.e2e.launched import Launched
from tests.facts import dumps

SCRIPT = """
import sys
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
print(open("secrets.txt").read(), flush=True)
if rank == 1:
    raise ValueError("cannot log in with " + open("one.txt").read())
dist.barrier()
"""
SECRETS = sorted({secret for _, found in LINES.values() for secret in found} | set(PEM[1]))


def report(folder, *arguments, **variables):
    """`holdfast report` as a user starts it: exit status, stdout, stderr."""
    environment = {**os.environ, "COLUMNS": "120", **variables}
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "report", *map(str, arguments)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def unpacked(archive):
    """Members by name, without the folder that all of them lie in."""
    with tarfile.open(archive) as tar:
        entries = tar.getmembers()
        (top,) = {entry.name.split("/")[0] for entry in entries}
        assert {entry.uname + entry.gname for entry in entries} == {""}
        return {entry.name.removeprefix(top + "/"): tar.extractfile(entry).read() for entry in entries}


def leaked(members, secrets=SECRETS):
    return [(secret, name) for secret in secrets for name, data in members.items()
            if secret.encode() in data or secret in name]  # fmt: skip


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    """A folder with a run of two ranks of which one died, and prints secrets of all kinds."""
    folder = tmp_path_factory.mktemp("failed")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "secrets.txt").write_text("\n".join([line for line, _ in LINES.values()] + [PEM[0]]))
    (folder / "one.txt").write_text(LINES["hugging face"][1][0])
    variables = {"NCCL_SECRET_TOKEN": LINES["openai"][1][0], "OMP_DISPLAY_ENV": LINES["address with password"][0]}
    run = Launched(
        folder,
        "--nproc-per-node",
        2,
        "--max-restarts",
        0,
        "--redirects",
        3,
        "--log-dir",
        folder / "logs",
        folder / "train.py",
        **variables,
    )
    assert run.end() != 0
    return run


@pytest.mark.slow
def test_a_failed_run_without_secrets(failed, tmp_path):
    status, out, err = report(failed.folder, failed.run, "logs", "-o", tmp_path / "r.tar.gz", "--json",
                              NCCL_API_KEY="swordfish9")  # fmt: skip
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert (answer["schema"], answer["command"]) == ("holdfast/1", "report")
    assert answer["verdict"]["root"]["subject"]["rank"] == 1
    members = unpacked(tmp_path / "r.tar.gz")
    assert leaked(members, [*SECRETS, "swordfish9"]) == []
    evidence = {name.removeprefix(f"evidence/{failed.run.name}/") for name in members}
    assert {"run.json", "incidents/0/verdict.json", "incidents/0/ranks.json"} <= evidence
    page = members[f"evidence/{failed.run.name}/incidents/0/report.html"].decode()
    assert "cannot log in with &lt;redacted:hugging-face-token&gt;" in page
    assert page.startswith("<!doctype html>")
    assert page.count("<") == (failed.run / "incidents" / "0" / "report.html").read_text().count("<")
    assert {"incidents/0/boxes/rank0.box", "incidents/0/boxes/rank1.box"} <= evidence
    logs = [data for name, data in members.items() if name.endswith(("stderr.log", "stdout.log"))]
    assert b"ValueError: cannot log in with <redacted:hugging-face-token>" in b"".join(logs)
    (verdict,) = [data for name, data in members.items() if name.endswith("verdict.json")]
    assert msgspec.json.decode(verdict, type=findings.Verdict).root.subject.rank == 1


@pytest.mark.slow
def test_the_boxes_in_it_still_read(failed, tmp_path):
    report(failed.folder, failed.run, "-o", tmp_path / "r.tar.gz")
    for name, data in unpacked(tmp_path / "r.tar.gz").items():
        if name.endswith(".box"):
            (tmp_path / "a.box").write_bytes(data)
            box = Box(tmp_path / "a.box")
            notes = box.read_notes()
            assert (notes.dropped, box.header.world_size) == (0, 2)
            assert notes.facts
            assert len(box.table()) > 0


@pytest.mark.slow
def test_diagnose_reads_it_and_names_the_rank(failed, tmp_path):
    report(failed.folder, failed.run, "-o", tmp_path / "r.tar.gz")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "diagnose", tmp_path / "r.tar.gz", "--json"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    root = json.loads(done.stdout)["verdict"]["root"]
    assert (root["cause"], root["subject"]["rank"]) == ("python-exception-on-one-rank", 1)


@pytest.mark.slow
def test_without_a_path_it_is_the_newest_run(failed):
    status, out, err = report(failed.folder, "--redact-hosts", HOLDFAST_RUN_DIR="runs")
    assert (status, err) == (0, "")
    (archive,) = failed.folder.glob("holdfast-report-*.tar.gz")
    assert archive.name in out.splitlines()[0]
    members = unpacked(archive)
    assert f"evidence/{failed.run.name}/run.json" in members
    assert leaked(members, [*SECRETS, os.uname().nodename + ","]) == []
    assert archive.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def heap(tmp_path):
    """A folder with everything that may lie there: logs, boxes, dumps, links, junk."""
    folder = tmp_path / "heap"
    (folder / "logs").mkdir(parents=True)
    text = "\n".join([line for line, _ in LINES.values()] + [PEM[0], "the end"])
    (folder / "logs" / "rank0.log").write_text(text)
    (folder / "logs" / "windows.log").write_text(text, "utf-16")
    (folder / "facts.json").write_bytes(msgspec.json.encode({"lines": text.split("\n")}))
    planted_box(folder / "rank1.box")
    (folder / "nccl_trace_rank_1").write_bytes(dumps.written(planted_dump()[0]))
    (folder / "link.log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("outside")
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 64)
    (folder / "cut.box").write_bytes((folder / "rank1.box").read_bytes()[:5000])
    (folder / "bad_trace_2").write_bytes(b"\x80\x02}q")
    page = "".join(f"<p title='{n}'>{html.escape(line)}</p>\n" for n, line in enumerate(text.split("\n")))
    (folder / "report.html").write_text(f"<!doctype html>\n<style>p > b {{}}</style><script>a && b</script>{page}")
    with tarfile.open(folder / "more.tgz", "w:gz") as tar:
        tar.add(folder / "logs" / "rank0.log", "inside/rank9.log")
    return folder


def test_no_secret_is_left_in_any_member(heap, tmp_path):
    status, out, _ = report(tmp_path, heap, "-o", "r.tar.gz", "--json")
    members = unpacked(tmp_path / "r.tar.gz")
    assert status == 0
    assert leaked(members, [*SECRETS, *planted_dump()[1]]) == []
    assert members["evidence/heap/logs/rank0.log"].endswith(b"the end")
    assert members["evidence/heap/logs/windows.log"].endswith(b"the end")
    assert members["evidence/heap/more.tgz/inside/rank9.log"].endswith(b"the end")
    assert len(flight_recorder.parse(members["evidence/heap/nccl_trace_rank_1"]).entries) == 49
    page = members["evidence/heap/report.html"].decode()
    assert "<style>p > b {}</style><script>a && b</script><p title='0'>" in page
    assert page.count("</p>\n") == (heap / "report.html").read_text().count("</p>\n")
    out_of_it = {each["name"]: each["why"] for each in json.loads(out)["report"]["left_out"]}
    assert "links are not followed" in out_of_it["heap/link.log"]
    assert "binary" in out_of_it["heap/weights.bin"]
    assert "cut short" in out_of_it["heap/cut.box"]
    assert "heap/bad_trace_2" in out_of_it
    assert b"outside" not in b"".join(members.values())


def test_the_manifest_tells_the_truth(heap, tmp_path):
    report(tmp_path, heap, "-o", "r.tar.gz")
    members = unpacked(tmp_path / "r.tar.gz")
    manifest = json.loads(members["manifest.json"])
    assert (manifest["schema"], manifest["kind"]) == ("holdfast/1", "holdfast report")
    listed = {each["name"]: each for each in manifest["members"]}
    assert set(listed) == set(members) - {"manifest.json", "README.md"}
    for name, each in listed.items():
        assert each["size"] == len(members[name])
        assert each["sha256"] == hashlib.sha256(members[name]).hexdigest()
    assert sum(each.get("redacted", {}).get("private-key", 0) for each in listed.values()) >= 3
    assert len(manifest["redacted"]) >= 30
    assert b"r.tar.gz" in members["README.md"]


def test_a_big_log_keeps_head_and_tail_and_says_so(tmp_path):
    secret = LINES["openai"][1][0]
    with (tmp_path / "big.log").open("wb") as file:
        file.write(b"first line\n")
        for _ in range(70):
            file.write(b"[rank0]: step 1 loss 2.5 quite ordinary\n" * 26215)
        file.write(f"key {secret}\nlast line\n".encode())
    report(tmp_path, "big.log", "-o", "r.tgz")
    members = unpacked(tmp_path / "r.tgz")
    data = members["evidence/big.log"]
    assert data.startswith(b"first line\n")
    assert data.endswith(b"last line\n")
    assert b"<left out: " in data
    assert leaked(members) == []
    note = next(
        each["note"] for each in json.loads(members["manifest.json"])["members"] if each["name"].endswith("big.log")
    )
    assert "left out" in note


def test_without_any_run_it_describes_the_machine(tmp_path):
    status, _, err = report(tmp_path, "-o", "r.tar.gz")
    assert status == 0
    assert "no run was found" in err
    members = unpacked(tmp_path / "r.tar.gz")
    facts = [fact["text"] for fact in json.loads(members["system/facts.json"])["facts"]]
    assert [word for word in ("Python: 3.", "limit nofile: ") if not any(word in fact for fact in facts)] == []


@pytest.mark.parametrize(("arguments", "words"), [
    (["nowhere"], ("nowhere", "no such file")),
    ([".", "-o", "no/folder.tar.gz"], ("no/folder.tar.gz", "folder does not exist")),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, arguments, words):
    status, out, err = report(tmp_path, *arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert [word for word in words if word not in err] == []
    assert list(Path(tmp_path).iterdir()) == []
