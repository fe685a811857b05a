from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from docs import generate
from holdfast.core.errors import InternalError
from holdfast.core.findings import Fact, Finding, Level, Remedy, RuledOut, Safety, Subject, Verdict
from holdfast.report.json import KEYS, encode_json, envelope, write_json
from tests.unit.report.sample import incident
from tests.unit.report.snapshot import assert_same

ROOT = Path(__file__).parents[3]

#: The documented schema, written by hand: key -> the types of its value. Scripts outside this repository rely on it;
#: keys may only be added with a new version of the schema.
FINDING = {
    "code": str,
    "cause": str,
    "level": str,
    "confidence": float,
    "message": str,
    "subject": dict,
    "evidence": list,
    "remedies": list,
}
SUBJECT = {"rank": int, "host": str, "gpu": int, "link": str, "file": str, "line": int}
FACT = {"origin": str, "rank": int, "host": str, "time": float, "text": str}
REMEDY = {"text": str, "command": str, "safety": str}
VERDICT = {
    "question": str,
    "root": dict,
    "consequences": list,
    "suspects": list,
    "ruled_out": list,
    "unseen": list,
}
RULED_OUT = {"cause": str, "why": str}

CLAIM = Finding(
    code="SYNC002",
    cause="rank-missing-collective",
    level=Level.ERROR,
    message="rank 3 never entered all_reduce #31",
    subject=Subject(rank=3, host="a", gpu=0, link="eth0", file="train.py", line=41),
    evidence=(Fact(text="t", origin="o", rank=3, host="a", time=1767.2),),
    remedies=(Remedy(text="r", command="c", safety=Safety.DISRUPTIVE),),
    confidence=0.93,
)


def test_the_published_schema_and_its_page_are_current():
    page = (ROOT / "docs" / "json.md").read_text()
    for key in (*FINDING, *SUBJECT, *REMEDY, *VERDICT, *KEYS):
        assert f"`{key}`" in page
    schema = (ROOT / "docs" / "holdfast-1.schema.json").read_text()
    assert schema == generate.json_schema()
    assert set(json.loads(schema)["$defs"]["Finding"]["properties"]) == set(FINDING)


def check(data: dict[str, Any], schema: dict[str, type]) -> None:
    assert set(data) == set(schema)
    for key, kind in schema.items():
        assert type(data[key]) is kind, key


def test_document_has_exactly_the_keys_of_the_schema():
    verdict = Verdict(
        question="why?",
        root=CLAIM,
        consequences=(CLAIM,),
        suspects=(CLAIM,),
        ruled_out=(RuledOut("rank-died", "alive"),),
        unseen=("dmesg",),
    )
    document = json.loads(encode_json(envelope("diagnose", [CLAIM], verdict)))
    assert list(document) == ["schema", "command", "findings", "verdict"]
    assert (document["schema"], document["command"]) == ("holdfast/1", "diagnose")
    shown = document["verdict"]
    check(shown, VERDICT)
    for claim in (*document["findings"], shown["root"], *shown["consequences"], *shown["suspects"]):
        check(claim, FINDING)
        check(claim["subject"], SUBJECT)
        check(claim["evidence"][0], FACT)
        check(claim["remedies"][0], REMEDY)
    check(shown["ruled_out"][0], RULED_OUT)
    assert shown["unseen"] == ["dmesg"]


def test_levels_and_safeties_match_the_contract():
    assert [str(level) for level in Level] == ["note", "warning", "error", "unknown"]
    assert [str(safety) for safety in Safety] == ["automatic", "disruptive", "by hand"]


def test_unknown_values_are_null():
    bare = Finding(
        code="ENV001", cause="c", level=Level.NOTE, message="m", remedies=(Remedy(text="r"),)
    )
    document = json.loads(encode_json(envelope("env", [bare], None)))
    assert document["verdict"] is None
    assert document["findings"][0]["subject"] == dict.fromkeys(SUBJECT)
    assert document["findings"][0]["remedies"] == [
        {"text": "r", "command": None, "safety": "by hand"}
    ]
    assert (
        json.loads(encode_json(envelope("run", [], Verdict(question="q"))))["verdict"]["root"]
        is None
    )


def test_document_of_an_incident():
    sample = incident()
    document = envelope("run", [sample.verdict.root], sample.verdict, status=1, restarts=1)
    assert_same("envelope.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def test_additional_keys_cannot_replace_common_ones():
    document = envelope("run", [], None, status=0, incidents=[{"verdict": Verdict(question="q")}])
    assert list(document)[4:] == ["status", "incidents"]
    assert document["incidents"][0]["verdict"]["question"] == "q"
    with pytest.raises(InternalError, match="'schema'"):
        envelope("run", [], None, schema="holdfast/2")


def test_any_content_is_valid_json():
    document = json.loads(
        encode_json({"file": "name\udcff.py", "time": float("nan"), "most": float("inf")})
    )
    assert document == {"file": "name\udcff.py", "time": None, "most": None}
    assert json.loads(encode_json({"time": float("nan"), "word": "größe ✗"})) == {
        "time": None,
        "word": "größe ✗",
    }


def test_document_is_one_line():
    content = encode_json(envelope("run", [CLAIM], None))
    assert content.count(b"\n") == 1
    assert content.endswith(b"}\n")


def test_text_and_byte_streams_and_files(tmp_path):
    document = envelope("run", [CLAIM], None, word="✗")
    text, raw, narrow = (
        io.StringIO(),
        io.BytesIO(),
        io.TextIOWrapper(io.BytesIO(), encoding="ascii"),
    )
    for stream in (text, raw, narrow, tmp_path / "out.json", str(tmp_path / "again.json")):
        write_json(stream, document)
    expected = encode_json(document)
    assert text.getvalue().encode() == raw.getvalue() == expected
    assert narrow.buffer.getvalue() == expected
    assert (
        (tmp_path / "out.json").read_bytes() == (tmp_path / "again.json").read_bytes() == expected
    )


def test_write_to_standard_output(capsys):
    write_json(sys.stdout, {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}
