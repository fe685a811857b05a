"""What is said of hosts that are not alike: who differs from most, in what, and how much that matters."""

from holdfast.facts.checks.memory import Memory
from holdfast.facts.checks.processors import Processors
from holdfast.facts.checks.software import Software, fingerprint
from holdfast.facts.source_tree import Code
from holdfast.findings import Level, Unknown
from holdfast.rules.differences import judge

PACKAGES = {"torch": "2.13.0", "numpy": "2.1.0", "nvidia_nccl_cu13": "2.29.7", "click": "8.1.7"}


def software(code="abc", python="3.11.9", **packages):
    mine = {name: version for name, version in {**PACKAGES, **packages}.items() if version}
    return Software(
        python=python, executable="/usr/bin/python", holdfast="0.1.0", packages=mine,
        fingerprint=fingerprint(python, mine), code=Code(folder="/job", fingerprint=code, files=3),
    )  # fmt: skip


def told(looks, environs=None):
    return [(claim.cause, claim.level, claim.subject.host, claim.message) for claim in judge(looks, environs or {})]


def hosts(*seen):
    return {name: {"software": each} for name, each in zip("abcdefgh", seen, strict=False)}


def test_hosts_that_are_alike_and_a_host_alone():
    assert told(hosts(software(), software(), software())) == []
    assert told(hosts(software())) == []


def test_the_host_with_another_torch_is_named():
    found = told(hosts(software(), software(torch="2.12.1"), software()))
    assert found == [
        ("software-differs-between-hosts", Level.ERROR, "b",
         "torch differs between hosts: 2.12.1 on b, 2.13.0 on the other 2"),
    ]  # fmt: skip


def test_of_two_hosts_nobody_knows_who_is_right():
    ((_, _, host, message),) = told(hosts(software(), software(nvidia_nccl_cu13=None)))
    assert host is None
    assert message == "nvidia-nccl-cu13 differs between hosts: 2.29.7 on a, (not installed) on b"


def test_other_packages_make_one_warning():
    found = told(hosts(software(), software(), software(click="8.2.0", numpy="1.26.4")))
    assert found == [
        ("software-differs-between-hosts", Level.WARNING, "c",
         "versions of 2 packages differ between hosts: click, numpy"),
    ]  # fmt: skip


def test_code_python_and_what_sets_the_pace():
    looks = hosts(software(), software(), software(code="old", python="3.12.1"))
    for host, gib, cores in (("a", 64, "0-7"), ("b", 64, "0-7"), ("c", 32, "0-3")):
        looks[host]["memory"] = Memory(total=gib << 30, available=gib << 29)
        looks[host]["processors"] = Processors(online=cores, usable=cores)
    assert {(cause, level, host) for cause, level, host, _ in told(looks)} == {
        ("software-differs-between-hosts", Level.WARNING, "c"), ("code-differs-between-hosts", Level.WARNING, "c"),
        ("straggler", Level.NOTE, "c"),
    }  # fmt: skip


def test_some_mib_of_memory_are_no_difference():
    looks = {host: {"memory": Memory(total=total << 20, available=0)} for host, total in (("a", 64_210), ("b", 64_318))}
    assert told(looks) == []


def test_what_is_unknown_on_a_host_is_not_compared():
    assert told({"a": {"software": software()}, "b": {"software": Unknown("it did not answer")}, "c": {}}) == []


def test_variables_are_compared():
    looks = hosts(software(), software(), software())
    environs = {"a": {"WORLD_SIZE": "3"}, "b": {"WORLD_SIZE": "3"}, "c": {"WORLD_SIZE": "2"}}
    ((cause, level, *_),) = told(looks, environs)
    assert (cause, level) == ("variable-differs-between-hosts", Level.ERROR)
