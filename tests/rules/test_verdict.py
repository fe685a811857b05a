"""Several witnesses, one verdict: who is believed, what follows, what stays suspect."""

from msgspec.structs import replace

from holdfast.findings import Level, RuledOut, Subject, Verdict, finding
from holdfast.rules.causes import by_name
from holdfast.rules.verdict import merge


def claim(cause, rank=None, confidence=0.9, message="said"):
    return finding(by_name(cause), message, subject=Subject(rank=rank), confidence=confidence)


def verdict(cause=None, rank=None, confidence=0.9, **more):
    root = claim(cause, rank, confidence) if cause else None
    return Verdict(question="Why?", root=root, **more)


def causes(claims):
    return [each.cause for each in claims]


def test_one_witness_is_believed_as_it_is():
    only = verdict("rank-missing-collective", 2, unseen=("x",))
    assert merge([only], None) is only
    assert merge([], only) is only


def test_what_the_log_says_of_the_beginning_comes_before_a_missing_rank():
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


def test_a_mismatch_comes_before_the_exceptions_that_it_causes():
    merged = merge([verdict("mismatched-shape", 1)], verdict("python-exception-on-one-rank", 0))
    assert (merged.root.cause, merged.root.subject.rank) == ("mismatched-shape", 1)
    assert causes(merged.consequences) == ["python-exception-on-one-rank"]


def test_a_log_that_only_waits_is_a_consequence():
    merged = merge([verdict("rank-missing-collective", 2)], verdict("watchdog-timeout-straggler", 0))
    assert (merged.root.cause, merged.root.subject.rank) == ("rank-missing-collective", 2)
    assert causes(merged.consequences) == ["watchdog-timeout-straggler"]


def test_a_log_that_guesses_is_a_suspect():
    merged = merge([verdict("rank-missing-collective", 2)], verdict("host-oom-killed", 2, 0.4))
    assert (merged.root.cause, causes(merged.suspects)) == ("rank-missing-collective", ["host-oom-killed"])


def test_boxes_come_before_dumps():
    merged = merge([verdict("rank-stopped", 2), verdict("rank-missing-collective", 2)], None)
    assert merged.root.cause == "rank-stopped"
    assert causes(merged.consequences) == ["rank-missing-collective"]


def test_a_witness_that_saw_nothing_wrong_leaves_the_word_to_the_other():
    merged = merge([verdict(unseen=("rank 3",))], verdict("peer-lost", unseen=("rank 3", "rank 4")))
    assert merged.root.cause == "peer-lost"
    assert merged.unseen == ("rank 3", "rank 4")


def test_two_who_say_the_same_are_surer_than_one():
    merged = merge([verdict("peer-lost", 3, 0.6)], verdict("peer-lost", None, 0.5))
    assert merged.root.subject.rank == 3
    assert 0.6 < merged.root.confidence < 1
    assert merged.suspects == ()


def test_what_one_claims_is_not_ruled_out_by_another():
    out = (RuledOut("host-oom-killed", "nothing"), RuledOut("rank-stopped", "no process is stopped"))
    merged = merge([verdict("rank-missing-collective", 2, ruled_out=out)], verdict("host-oom-killed"))
    assert merged.root.cause == "rank-missing-collective"  # the kernel killed something else on that host
    assert causes(merged.suspects) == ["host-oom-killed"]
    assert [each.cause for each in merged.ruled_out] == ["rank-stopped"]


def test_nothing_wrong_anywhere_is_nothing_wrong():
    merged = merge([verdict(), verdict()], verdict())
    assert (merged.root, merged.suspects, merged.consequences) == (None, (), ())


def test_what_is_not_known_gives_way_to_what_a_log_says_for_certain():
    doubt = claim("peer-lost", 1, 0.3)
    unknown = Verdict(question="Why?", root=replace(doubt, level=Level.UNKNOWN))
    assert merge([unknown], verdict("host-oom-killed", 0, 0.5)).root.cause == "host-oom-killed"
    assert merge([unknown, verdict("mismatched-shape", 2)], None).root.cause == "mismatched-shape"
    assert merge([unknown], verdict()).root.level == Level.UNKNOWN
