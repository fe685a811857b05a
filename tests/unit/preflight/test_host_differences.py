"""Differences between hosts: which hosts differ, in what, and how severe it is."""

from holdfast.core.findings import Level, Unknown
from holdfast.host.checks.system.memory import MemoryResult
from holdfast.host.checks.system.processors import ProcessorsResult
from holdfast.host.checks.system.software import SoftwareResult, environment_fingerprint
from holdfast.host.source_fingerprint import SourceFingerprint
from holdfast.preflight.host_differences import judge

PACKAGES = {"torch": "2.13.0", "numpy": "2.1.0", "nvidia_nccl_cu13": "2.29.7", "click": "8.1.7"}


def software(code="abc", python="3.11.9", **packages):
    installed = {name: version for name, version in {**PACKAGES, **packages}.items() if version}
    return SoftwareResult(
        python=python,
        executable="/usr/bin/python",
        holdfast="0.1.0",
        packages=installed,
        fingerprint=environment_fingerprint(python, installed),
        code=SourceFingerprint(folder="/job", fingerprint=code, files=3),
    )


def summaries(results, environs=None):
    return [
        (finding.cause, finding.level, finding.subject.host, finding.message)
        for finding in judge(results, environs or {})
    ]


def hosts(*seen):
    return {name: {"software": each} for name, each in zip("abcdefgh", seen, strict=False)}


def test_equal_hosts_and_a_single_host():
    assert summaries(hosts(software(), software(), software())) == []
    assert summaries(hosts(software())) == []


def test_host_with_another_torch_is_reported():
    findings = summaries(hosts(software(), software(torch="2.12.1"), software()))
    assert findings == [
        (
            "software-differs-between-hosts",
            Level.ERROR,
            "b",
            "torch differs between hosts: 2.12.1 on b, 2.13.0 on the other 2",
        ),
    ]


def test_two_hosts_have_no_majority():
    ((_, _, host, message),) = summaries(hosts(software(), software(nvidia_nccl_cu13=None)))
    assert host is None
    assert message == "nvidia-nccl-cu13 differs between hosts: 2.29.7 on a, (not installed) on b"


def test_differences_in_other_packages_are_one_warning():
    findings = summaries(hosts(software(), software(), software(click="8.2.0", numpy="1.26.4")))
    assert findings == [
        (
            "software-differs-between-hosts",
            Level.WARNING,
            "c",
            "versions of 2 packages differ between hosts: click, numpy",
        ),
    ]


def test_code_python_and_hardware():
    results = hosts(software(), software(), software(code="old", python="3.12.1"))
    for host, gib, cores in (("a", 64, "0-7"), ("b", 64, "0-7"), ("c", 32, "0-3")):
        results[host]["memory"] = MemoryResult(total=gib << 30, available=gib << 29)
        results[host]["processors"] = ProcessorsResult(online=cores, usable=cores)
    assert {(cause, level, host) for cause, level, host, _ in summaries(results)} == {
        ("software-differs-between-hosts", Level.WARNING, "c"),
        ("code-differs-between-hosts", Level.WARNING, "c"),
        ("straggler", Level.NOTE, "c"),
    }


def test_small_memory_differences_are_ignored():
    results = {
        host: {"memory": MemoryResult(total=total << 20, available=0)}
        for host, total in (("a", 64_210), ("b", 64_318))
    }
    assert summaries(results) == []


def test_unknown_values_are_not_compared():
    assert (
        summaries(
            {
                "a": {"software": software()},
                "b": {"software": Unknown("it did not answer")},
                "c": {},
            }
        )
        == []
    )


def test_variables_are_compared():
    results = hosts(software(), software(), software())
    environs = {"a": {"WORLD_SIZE": "3"}, "b": {"WORLD_SIZE": "3"}, "c": {"WORLD_SIZE": "2"}}
    ((cause, level, *_),) = summaries(results, environs)
    assert (cause, level) == ("variable-differs-between-hosts", Level.ERROR)
