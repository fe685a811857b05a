"""Merge verdicts of several sources: root cause, consequences, suspects."""

from msgspec.structs import replace

from holdfast.causes import by_name
from holdfast.core.findings import Level, RuledOut, Subject, Verdict, make_finding
from holdfast.diagnose.combined_verdict import merge


def claim(cause, rank=None, confidence=0.9, message="message"):
    return make_finding(by_name(cause), message, subject=Subject(rank=rank), confidence=confidence)


def verdict(cause=None, rank=None, confidence=0.9, **more):
    root = claim(cause, rank, confidence) if cause else None
    return Verdict(question="Why?", root=root, **more)


def causes(claims):
    return [each.cause for each in claims]


def test_a_single_verdict_is_unchanged():
    only = verdict("rank-missing-collective", 2, unseen=("x",))
    assert merge([only], None) is only
    assert merge([], only) is only


def test_an_earlier_cause_in_a_log_precedes_a_missing_rank():
    for cause in (
        "host-oom-killed",
        "gpu-fell-off-bus-xid-ecc",
        "python-exception-on-one-rank",
        "dataloader-worker-died",
    ):
        merged = merge([verdict("rank-missing-collective", 2)], verdict(cause, 2))
        assert merged.root.cause == cause
        assert causes(merged.consequences) == ["rank-missing-collective"]
        assert merged.consequences[0].level == Level.NOTE


def test_a_mismatch_precedes_the_exceptions_it_causes():
    merged = merge([verdict("mismatched-shape", 1)], verdict("python-exception-on-one-rank", 0))
    assert (merged.root.cause, merged.root.subject.rank) == ("mismatched-shape", 1)
    assert causes(merged.consequences) == ["python-exception-on-one-rank"]


def test_a_timeout_in_a_log_is_a_consequence():
    merged = merge(
        [verdict("rank-missing-collective", 2)], verdict("watchdog-timeout-straggler", 0)
    )
    assert (merged.root.cause, merged.root.subject.rank) == ("rank-missing-collective", 2)
    assert causes(merged.consequences) == ["watchdog-timeout-straggler"]


def test_an_uncertain_cause_in_a_log_is_a_suspect():
    merged = merge([verdict("rank-missing-collective", 2)], verdict("host-oom-killed", 2, 0.4))
    assert (merged.root.cause, causes(merged.suspects)) == (
        "rank-missing-collective",
        ["host-oom-killed"],
    )


def test_traces_precede_dumps():
    merged = merge([verdict("rank-stopped", 2), verdict("rank-missing-collective", 2)], None)
    assert merged.root.cause == "rank-stopped"
    assert causes(merged.consequences) == ["rank-missing-collective"]


def test_the_only_root_cause_counts():
    merged = merge([verdict(unseen=("rank 3",))], verdict("peer-lost", unseen=("rank 3", "rank 4")))
    assert merged.root.cause == "peer-lost"
    assert merged.unseen == ("rank 3", "rank 4")


def test_two_agreeing_sources_raise_the_confidence():
    merged = merge([verdict("peer-lost", 3, 0.6)], verdict("peer-lost", None, 0.5))
    assert merged.root.subject.rank == 3
    assert 0.6 < merged.root.confidence < 1
    assert merged.suspects == ()


def test_a_claimed_cause_is_not_ruled_out():
    out = (
        RuledOut("host-oom-killed", "nothing"),
        RuledOut("rank-stopped", "no process is stopped"),
    )
    merged = merge(
        [verdict("rank-missing-collective", 2, ruled_out=out)], verdict("host-oom-killed")
    )
    assert (
        merged.root.cause == "rank-missing-collective"
    )  # the kernel killed another process of that host
    assert causes(merged.suspects) == ["host-oom-killed"]
    assert [each.cause for each in merged.ruled_out] == ["rank-stopped"]


def test_no_root_cause_in_any_verdict():
    merged = merge([verdict(), verdict()], verdict())
    assert (merged.root, merged.suspects, merged.consequences) == (None, (), ())


def test_an_unknown_root_cause_yields_to_an_error():
    doubt = claim("peer-lost", 1, 0.3)
    unknown = Verdict(question="Why?", root=replace(doubt, level=Level.UNKNOWN))
    assert merge([unknown], verdict("host-oom-killed", 0, 0.5)).root.cause == "host-oom-killed"
    assert merge([unknown, verdict("mismatched-shape", 2)], None).root.cause == "mismatched-shape"
    assert merge([unknown], verdict()).root.level == Level.UNKNOWN
