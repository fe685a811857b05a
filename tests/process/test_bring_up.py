"""Every fault that keeps hosts from starting a job: the right finding, on every host, in time.

The hosts are name spaces joined by a switch, the faults real ones: ``tests/bring_up.py``. Most of the time is waiting,
so that several pairs of hosts are under way at once. A few of them are in every run of the tests, the others in the
matrix.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bring_up import FAULTS, Fault, check, start
from tests.network_namespaces import hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

#: A loaded machine has its share in it. That it is 15 s at most where nothing else runs, benchmarks/bring_up.py shows.
LIMIT_S = 45
SAMPLE = {
    "master port dropped",
    "data ports rejected",
    "interface is missing",
    "address is the other host's",
    "large packets are lost",
    "second rank never starts",
    "world of 2 and of 3",
}
#: Two cores have to start them all.
AT_ONCE = 4


def under(fault):
    """For each host that was started: how long it took, its exit status, and what it said."""
    with hosts(fault.count) as made:
        started = start(fault, made, check)
        for each in started:
            if each is not None:
                each.wait()
        return [
            each and (each.took_s, each.process.returncode, each.output, each.errors)
            for each in started
        ]


@pytest.fixture(scope="module")
def outcomes(request):
    """What came of each fault whose test is to be run."""
    wanted = {
        item.callspec.params["fault"].name
        for item in request.session.items
        if item.path == request.path
    }
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {
            fault.name: pool.submit(under, fault)
            for fault in (HEALTHY, *FAULTS)
            if fault.name in wanted
        }


HEALTHY = Fault("no fault", ("",))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(each, id=each.name, marks=() if each.name in SAMPLE else pytest.mark.matrix)
        for each in FAULTS
    ],
)
def test_every_host_is_told_what_is_wrong_in_time(fault, outcomes):
    for at, outcome in enumerate(outcomes[fault.name].result()):
        if outcome is None:
            continue
        took_s, status, output, errors = outcome
        assert errors == ""
        found = json.loads(output)["findings"]
        right = [claim for claim in found if claim["cause"] == fault.cause(at)]
        assert right, f"host {at}: {[(claim['cause'], claim['message']) for claim in found]}"
        for word in fault.words:
            assert any(word in claim["message"] for claim in right), (at, word, right)
        assert status == int(any(claim["level"] == "error" for claim in found))
        if (
            status and fault.later is None
        ):  # nothing is wrong but a clock or a link: then torch has its turn too
            assert took_s < LIMIT_S, f"host {at}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", [HEALTHY], ids=lambda fault: fault.name)
def test_hosts_that_can_talk_pass_all_stages(fault, outcomes):
    for _, status, output, _ in outcomes[fault.name].result():
        said = json.loads(output)
        assert (status, said["findings"]) == (0, [])
        names = [stage["name"] for stage in said["stages"]]
        assert names[:4] == ["resolve", "route", "tcp", "hosts"]
        assert names[-4:] == ["store of 2", "group of 2", "barrier of 2", "all-reduce of 2"]
        assert {stage["state"] for stage in said["stages"]} == {"ok"}
