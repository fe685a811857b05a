"""Faults that prevent hosts from starting a job: every host reports the expected cause in time.

The hosts are network namespaces connected by a switch, with real faults: ``tests/bring_up.py``. Most
of the time is waiting, so several faults run concurrently. A sample runs in every test run, the
others in the matrix.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.bring_up import FAULTS, Fault, check, start
from tests.network_namespaces import hosts, why_not

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why_not()), reason=why_not())]

#: Includes slack for a loaded machine; on an idle one the maximum is 15 s (benchmarks/bring_up.py).
LIMIT_S = 45
SAMPLE = {
    "interface is missing",
    "large packets are lost",
    "second rank never starts",
    "world of 2 and of 3",
}
#: Faults that run concurrently; two cores must be able to start their hosts.
CONCURRENT_FAULTS = 4


def run_fault(fault):
    """Return duration, exit status, stdout and stderr of each host; None for hosts not started."""
    with hosts(fault.count) as machines:
        started = start(fault, machines, check, fork=True)
        for each in started:
            if each is not None:
                each.wait()
        return [each and (each.took_s, each.status, each.output, each.errors) for each in started]


@pytest.fixture(scope="module")
def outcomes(request):
    """Yield the future outcome of each fault whose test is selected."""
    selected = {
        item.callspec.params["fault"].name
        for item in request.session.items
        if item.path == request.path
    }
    with ThreadPoolExecutor(CONCURRENT_FAULTS) as pool:
        yield {
            fault.name: pool.submit(run_fault, fault)
            for fault in (HEALTHY, *FAULTS)
            if fault.name in selected
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
def test_every_host_reports_the_expected_cause_in_time(fault, outcomes):
    for at, outcome in enumerate(outcomes[fault.name].result()):
        if outcome is None:
            continue
        took_s, status, output, errors = outcome
        assert errors == ""
        findings = json.loads(output)["findings"]
        matching = [claim for claim in findings if claim["cause"] == fault.cause(at)]
        assert matching, f"host {at}: {[(claim['cause'], claim['message']) for claim in findings]}"
        for word in fault.words:
            assert any(word in claim["message"] for claim in matching), (at, word, matching)
        assert status == int(any(claim["level"] == "error" for claim in findings))
        # The duration of a warning or of a fault in mid-run includes a run of torch.
        if status and fault.later is None:
            assert took_s < LIMIT_S, f"host {at}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", [HEALTHY], ids=lambda fault: fault.name)
def test_hosts_without_a_fault_pass_all_stages(fault, outcomes):
    for _, status, output, _ in outcomes[fault.name].result():
        report = json.loads(output)
        assert (status, report["findings"]) == (0, [])
        names = [stage["name"] for stage in report["stages"]]
        assert names[:4] == ["resolve", "route", "tcp", "hosts"]
        assert names[-4:] == ["store of 2", "group of 2", "barrier of 2", "all-reduce of 2"]
        assert {stage["state"] for stage in report["stages"]} == {"ok"}
