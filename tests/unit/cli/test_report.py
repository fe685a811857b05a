"""`holdfast report`: a real failed run becomes a readable archive without secrets."""

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

from holdfast.core import findings
from holdfast.diagnose.bundle import evidence_files
from holdfast.watcher.flight_recorder import dump_reader
from holdfast.watcher.trace_reader import TraceReading
from tests.process.launched import Launched
from tests.unit.cli.in_process import run_holdfast
from tests.unit.core.fake_secrets import LINES, PEM
from tests.unit.diagnose import dump_factory
from tests.unit.diagnose.test_redact_records import (
    make_dump_with_secrets,
    write_trace_with_secrets,
)

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
    """Run ``holdfast report`` in a folder; return exit status, stdout and stderr."""
    done = run_holdfast("report", *arguments, folder=folder, COLUMNS="120", **variables)
    return done.returncode, done.stdout, done.stderr


def read_members(archive):
    """Return the members by name, without their common folder."""
    with tarfile.open(archive) as tar:
        entries = tar.getmembers()
        (top,) = {entry.name.split("/")[0] for entry in entries}
        assert {entry.uname + entry.gname for entry in entries} == {""}
        return {
            entry.name.removeprefix(top + "/"): tar.extractfile(entry).read() for entry in entries
        }


def find_leaks(members, secrets=SECRETS):
    return [
        (secret, name)
        for secret in secrets
        for name, data in members.items()
        if secret.encode() in data or secret in name
    ]


@pytest.fixture(scope="module")
def failed_run(tmp_path_factory):
    """Return a run of two ranks that print secrets of all kinds; one rank failed."""
    folder = tmp_path_factory.mktemp("failed")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "secrets.txt").write_text("\n".join([line for line, _ in LINES.values()] + [PEM[0]]))
    (folder / "one.txt").write_text(LINES["hugging face"][1][0])
    variables = {
        "NCCL_SECRET_TOKEN": LINES["openai"][1][0],
        "OMP_DISPLAY_ENV": LINES["address with password"][0],
    }
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
def test_bundle_of_a_failed_run_has_no_secrets(failed_run, tmp_path):
    status, out, err = report(
        failed_run.folder,
        failed_run.run,
        "logs",
        "-o",
        tmp_path / "r.tar.gz",
        "--json",
        NCCL_API_KEY="swordfish9",
    )
    assert (status, err) == (0, "")
    answer = json.loads(out)
    assert (answer["schema"], answer["command"]) == ("holdfast/1", "report")
    assert answer["verdict"]["root"]["subject"]["rank"] == 1
    members = read_members(tmp_path / "r.tar.gz")
    assert find_leaks(members, [*SECRETS, "swordfish9"]) == []
    evidence = {name.removeprefix(f"evidence/{failed_run.run.name}/") for name in members}
    assert {"run.json", "incidents/0/verdict.json", "incidents/0/ranks.json"} <= evidence
    page = members[f"evidence/{failed_run.run.name}/incidents/0/report.html"].decode()
    assert "cannot log in with &lt;redacted:hugging-face-token&gt;" in page
    assert page.startswith("<!doctype html>")
    assert page.count("<") == (
        failed_run.run / "incidents" / "0" / "report.html"
    ).read_text().count("<")
    assert {"incidents/0/traces/rank0.trace", "incidents/0/traces/rank1.trace"} <= evidence
    logs = [data for name, data in members.items() if name.endswith(("stderr.log", "stdout.log"))]
    assert b"ValueError: cannot log in with <redacted:hugging-face-token>" in b"".join(logs)
    (verdict,) = [data for name, data in members.items() if name.endswith("verdict.json")]
    assert msgspec.json.decode(verdict, type=findings.Verdict).root.subject.rank == 1


@pytest.mark.slow
def test_trace_files_in_the_bundle_are_readable(failed_run, tmp_path):
    report(failed_run.folder, failed_run.run, "-o", tmp_path / "r.tar.gz")
    for name, data in read_members(tmp_path / "r.tar.gz").items():
        if name.endswith(".trace"):
            (tmp_path / "a.trace").write_bytes(data)
            trace = TraceReading(tmp_path / "a.trace")
            notes = trace.read_notes()
            assert (notes.dropped, trace.header.world_size) == (0, 2)
            assert notes.facts
            assert len(trace.table()) > 0


@pytest.mark.slow
def test_diagnose_finds_the_root_in_the_bundle(failed_run, tmp_path):
    report(failed_run.folder, failed_run.run, "-o", tmp_path / "r.tar.gz")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "diagnose", tmp_path / "r.tar.gz", "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    root = json.loads(done.stdout)["verdict"]["root"]
    assert (root["cause"], root["subject"]["rank"]) == ("python-exception-on-one-rank", 1)


@pytest.mark.slow
def test_default_is_the_newest_run(failed_run):
    status, out, err = report(failed_run.folder, "--redact-hosts", HOLDFAST_RUN_DIR="runs")
    assert (status, err) == (0, "")
    (archive,) = failed_run.folder.glob("holdfast-report-*.tar.gz")
    assert archive.name in out.splitlines()[0]
    members = read_members(archive)
    assert f"evidence/{failed_run.run.name}/run.json" in members
    assert find_leaks(members, [*SECRETS, os.uname().nodename + ","]) == []
    assert archive.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def evidence_folder(tmp_path):
    """Return a folder with logs, trace files, dumps, links and unreadable files."""
    folder = tmp_path / "evidence_folder"
    (folder / "logs").mkdir(parents=True)
    text = "\n".join([line for line, _ in LINES.values()] + [PEM[0], "the end"])
    (folder / "logs" / "rank0.log").write_text(text)
    (folder / "logs" / "windows.log").write_text(text, "utf-16")
    (folder / "facts.json").write_bytes(msgspec.json.encode({"lines": text.split("\n")}))
    write_trace_with_secrets(folder / "rank1.trace")
    (folder / "nccl_trace_rank_1").write_bytes(dump_factory.written(make_dump_with_secrets()[0]))
    (folder / "link.log").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("outside")
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 64)
    (folder / "cut.trace").write_bytes((folder / "rank1.trace").read_bytes()[:5000])
    (folder / "bad_trace_2").write_bytes(b"\x80\x02}q")
    page = "".join(
        f"<p title='{n}'>{html.escape(line)}</p>\n" for n, line in enumerate(text.split("\n"))
    )
    (folder / "report.html").write_text(
        f"<!doctype html>\n<style>p > b {{}}</style><script>a && b</script>{page}"
    )
    with tarfile.open(folder / "more.tgz", "w:gz") as tar:
        tar.add(folder / "logs" / "rank0.log", "inside/rank9.log")
    return folder


def test_no_member_contains_a_secret(evidence_folder, tmp_path):
    status, out, _ = report(tmp_path, evidence_folder, "-o", "r.tar.gz", "--json")
    members = read_members(tmp_path / "r.tar.gz")
    assert status == 0
    assert find_leaks(members, [*SECRETS, *make_dump_with_secrets()[1]]) == []
    assert members["evidence/evidence_folder/logs/rank0.log"].endswith(b"the end")
    assert members["evidence/evidence_folder/logs/windows.log"].endswith(b"the end")
    assert members["evidence/evidence_folder/more.tgz/inside/rank9.log"].endswith(b"the end")
    assert (
        len(dump_reader.parse_dump(members["evidence/evidence_folder/nccl_trace_rank_1"]).entries)
        == 49
    )
    page = members["evidence/evidence_folder/report.html"].decode()
    assert "<style>p > b {}</style><script>a && b</script><p title='0'>" in page
    assert page.count("</p>\n") == (evidence_folder / "report.html").read_text().count("</p>\n")
    out_of_it = {each["name"]: each["why"] for each in json.loads(out)["report"]["left_out"]}
    assert "links are not followed" in out_of_it["evidence_folder/link.log"]
    assert "binary" in out_of_it["evidence_folder/weights.bin"]
    assert "truncated" in out_of_it["evidence_folder/cut.trace"]
    assert "evidence_folder/bad_trace_2" in out_of_it
    assert b"outside" not in b"".join(members.values())


def test_manifest_matches_the_members(evidence_folder, tmp_path):
    report(tmp_path, evidence_folder, "-o", "r.tar.gz")
    members = read_members(tmp_path / "r.tar.gz")
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


def test_large_log_keeps_head_and_tail_with_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr(evidence_files, "HEAD_BYTES", 1 << 20)
    monkeypatch.setattr(evidence_files, "TAIL_BYTES", 3 << 20)
    secret = LINES["openai"][1][0]
    with (tmp_path / "big.log").open("wb") as file:
        file.write(b"first line\n")
        file.write(b"[rank0]: step 1 loss 2.5 quite ordinary\n" * 131_000)
        file.write(f"key {secret}\nlast line\n".encode())
    report(tmp_path, "big.log", "-o", "r.tgz")
    members = read_members(tmp_path / "r.tgz")
    data = members["evidence/big.log"]
    assert data.startswith(b"first line\n")
    assert data.endswith(b"last line\n")
    assert b"<left out: " in data
    assert find_leaks(members) == []
    note = next(
        each["note"]
        for each in json.loads(members["manifest.json"])["members"]
        if each["name"].endswith("big.log")
    )
    assert "bytes in the middle omitted" in note


def test_the_logs_of_two_hosts_are_told_apart(tmp_path):
    for host, content in (("master", "size 4 KB: \n"), ("worker", "W0117 start\n")):
        (tmp_path / host / "logs").mkdir(parents=True)
        (tmp_path / host / "logs" / "train.log").write_text(content)
        (tmp_path / host / "train.out").write_text(content)
    paths = [f"{host}/{name}" for host in ("master", "worker") for name in ("logs", "train.out")]
    assert report(tmp_path, *paths, "-o", "both.tar.gz")[0] == 0
    members = read_members(tmp_path / "both.tar.gz")
    evidence = {name: text for name, text in members.items() if name.startswith("evidence/")}
    assert evidence == {
        "evidence/master/logs/train.log": b"size 4 KB: \n",
        "evidence/worker/logs/train.log": b"W0117 start\n",
        "evidence/master/train.out": b"size 4 KB: \n",
        "evidence/worker/train.out": b"W0117 start\n",
    }


def test_the_bundles_of_two_hosts_make_one(tmp_path):
    for host in ("master", "worker"):
        (tmp_path / f"{host}.log").write_text(f"output of {host}\n")
        assert report(tmp_path, f"{host}.log", "-o", f"{host}.tar.gz")[0] == 0
    assert report(tmp_path, "master.tar.gz", "worker.tar.gz", "-o", "both.tar.gz")[0] == 0
    members = read_members(tmp_path / "both.tar.gz")
    for host in ("master", "worker"):
        folder = f"evidence/{host}.tar.gz/{host}"
        assert members[f"{folder}/evidence/{host}.log"] == f"output of {host}\n".encode()
        assert f"{folder}/system/facts.json" in members


def test_the_kernel_messages_of_a_machine_without_the_run_are_left_out(tmp_path):
    run = tmp_path / "20260101-000000-abcd"
    run.mkdir()
    (run / "run.json").write_text('{"begun": 0}')
    (run / "ledger.jsonl").write_text('{"event": "begun", "host": "gpu-7"}\nbroken\n')
    status, _, stderr = report(tmp_path, str(run), "--output", "b.tar.gz")
    assert status == 0, stderr
    members = read_members(tmp_path / "b.tar.gz")
    assert "system/kernel.log" not in members
    assert b"the run was on gpu-7, not on this machine" in members["manifest.json"]


def test_without_a_run_the_machine_is_described(tmp_path):
    status, _, err = report(tmp_path, "-o", "r.tar.gz")
    assert status == 0
    assert "no run found" in err
    members = read_members(tmp_path / "r.tar.gz")
    facts = [fact["text"] for fact in json.loads(members["system/facts.json"])["facts"]]
    assert [
        word for word in ("Python: 3.", "limit nofile: ") if not any(word in fact for fact in facts)
    ] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], ("nowhere", "no such file")),
        ([".", "-o", "no/folder.tar.gz"], ("no/folder.tar.gz", "folder does not exist")),
    ],
)
def test_invalid_paths_are_one_sentence(tmp_path, arguments, words):
    status, out, err = report(tmp_path, *arguments)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert [word for word in words if word not in err] == []
    assert list(Path(tmp_path).iterdir()) == []
