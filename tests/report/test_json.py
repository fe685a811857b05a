from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest

from holdfast.errors import InternalError
from holdfast.findings import Fact, Finding, Level, Remedy, RuledOut, Safety, Subject, Verdict
from holdfast.report.json import encode, envelope, write
from tests.report.sample import incident
from tests.report.snapshot import assert_same

#: The schema as docs and design state it, written down by hand: key -> the types that its value may have. Scripts
#: outside this repository rely on it; a key may be added with a new version of the schema alone.
FINDING = {
    "code": str, "cause": str, "level": str, "confidence": float, "message": str, "subject": dict, "evidence": list,
    "remedies": list,
}  # fmt: skip
SUBJECT = {"rank": int, "host": str, "gpu": int, "link": str, "file": str, "line": int}
FACT = {"origin": str, "rank": int, "host": str, "time": float, "text": str}
REMEDY = {"text": str, "command": str, "safety": str}
VERDICT = {"question": str, "root": dict, "consequences": list, "suspects": list, "ruled_out": list, "unseen": list}
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


def check(data: dict[str, Any], schema: dict[str, type]) -> None:
    assert set(data) == set(schema)
    for key, kind in schema.items():
        assert type(data[key]) is kind, key


def test_every_key_of_the_schema_and_no_other():
    verdict = Verdict(
        question="why?",
        root=CLAIM,
        consequences=(CLAIM,),
        suspects=(CLAIM,),
        ruled_out=(RuledOut("rank-died", "alive"),),
        unseen=("dmesg",),
    )
    document = json.loads(encode(envelope("diagnose", [CLAIM], verdict)))
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


def test_levels_and_safeties_are_the_words_of_the_design():
    assert [str(level) for level in Level] == ["note", "warning", "error", "unknown"]
    assert [str(safety) for safety in Safety] == ["automatic", "disruptive", "by hand"]


def test_what_is_not_known_is_null_and_present():
    bare = Finding(code="ENV001", cause="c", level=Level.NOTE, message="m", remedies=(Remedy(text="r"),))
    document = json.loads(encode(envelope("env", [bare], None)))
    assert document["verdict"] is None
    assert document["findings"][0]["subject"] == dict.fromkeys(SUBJECT)
    assert document["findings"][0]["remedies"] == [{"text": "r", "command": None, "safety": "by hand"}]
    assert json.loads(encode(envelope("run", [], Verdict(question="q"))))["verdict"]["root"] is None


def test_the_whole_document_of_an_incident():
    sample = incident()
    document = envelope("run", [sample.verdict.root], sample.verdict, status=1, restarts=1)
    assert_same("envelope.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def test_more_keys_follow_the_common_ones_and_cannot_replace_them():
    document = envelope("run", [], None, status=0, incidents=[{"verdict": Verdict(question="q")}])
    assert list(document)[4:] == ["status", "incidents"]
    assert document["incidents"][0]["verdict"]["question"] == "q"
    with pytest.raises(InternalError, match="'schema'"):
        envelope("run", [], None, schema="holdfast/2")


def test_any_text_and_any_number_gives_json_that_can_be_read_back():
    document = json.loads(encode({"file": "name\udcff.py", "time": float("nan"), "most": float("inf")}))
    assert document == {"file": "name\udcff.py", "time": None, "most": None}
    assert json.loads(encode({"time": float("nan"), "word": "größe ✗"})) == {"time": None, "word": "größe ✗"}


def test_one_object_on_one_line():
    content = encode(envelope("run", [CLAIM], None))
    assert content.count(b"\n") == 1
    assert content.endswith(b"}\n")


def test_streams_of_text_and_of_bytes_and_files(tmp_path):
    document = envelope("run", [CLAIM], None, word="✗")
    text, raw, narrow = io.StringIO(), io.BytesIO(), io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    for stream in (text, raw, narrow, tmp_path / "out.json", str(tmp_path / "again.json")):
        write(stream, document)
    expected = encode(document)
    assert text.getvalue().encode() == raw.getvalue() == expected
    assert narrow.buffer.getvalue() == expected
    assert (tmp_path / "out.json").read_bytes() == (tmp_path / "again.json").read_bytes() == expected


def test_standard_output_gets_it_too(capsys):
    write(sys.stdout, {"a": 1})
    assert json.loads(capsys.readouterr().out) == {"a": 1}
