"""The network between two hosts is cut while a job runs: each side reports the other one."""

import json
import re
import time

import pytest

from holdfast.core.rank_sets import describe_ranks
from tests.network_namespaces import hosts, why_not

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(200),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]
PORT = 29591
BLOCKED = re.compile(r"^ranks? (\d+)(?:-(\d+))? (?:is|are) blocked in all_reduce")
LIMIT_S = 100
#: From the cut to the verdict, on both hosts.
VERDICT_S = 15
REDUCES = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
calls = 0
while True:
    calls += 1
    time.sleep(0.05)
    dist.all_reduce(torch.ones(4))
    if calls == 25: print("running", flush=True)
"""
STEPS = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.Parameter(torch.ones(4))
optimizer, steps = torch.optim.SGD([weight], lr=0.1), 0
while True:
    steps += 1
    time.sleep(0.05)
    weight.sum().backward()
    dist.all_reduce(weight.grad)
    optimizer.step()
    if steps == 25: print("running", flush=True)
"""


def start(machines, folder, script, backend, *options):
    """Start the job on these hosts, two ranks on each."""
    (folder / "train.py").write_text(script)
    first = machines[0].address
    jobs = []
    for host in machines:
        where = {
            "static": ("--node-rank", host.number, "--master-addr", first, "--master-port", PORT),
            "c10d": (
                *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:{PORT}"),
                *("--rdzv-conf", f"is_host={int(host.number == 0)}"),
            ),
        }[backend]
        jobs.append(
            host.fork(
                *("-m", "holdfast", "run", "--nnodes", len(machines), *where),
                *("--nproc-per-node", 2, *options),
                *("--json-report", folder / f"{host.number}.json"),
                *("--run-dir", folder / f"runs{host.number}", folder / "train.py"),
                GLOO_SOCKET_IFNAME="eth0",
            )
        )
    return jobs


def wait_for(jobs, text, times=1, limit_s=LIMIT_S):
    """Wait until every job has printed ``text``; return the seconds until each had."""
    began, seen_s = time.monotonic(), {}
    while len(seen_s) < len(jobs):
        for at, job in enumerate(jobs):
            if at not in seen_s and (job.output + job.errors).count(text) >= times:
                seen_s[at] = time.monotonic() - began
        assert time.monotonic() < began + limit_s, [job.output + job.errors for job in jobs]
        time.sleep(0.05)
    return [seen_s[at] for at in range(len(jobs))]


def cut(machines):
    machines[0].drop(peer=machines[1])
    machines[1].drop(peer=machines[0])


def check_verdicts(folder, machines):
    """Each side names the other one as unreachable, and its own ranks as alive and blocked."""
    for here, other, own_ranks, other_ranks in (
        (0, machines[1].name, "ranks 0-1", "ranks 2-3"),
        (1, machines[0].address, "ranks 2-3", "ranks 0-1"),
    ):
        verdict = json.loads((folder / f"{here}.json").read_text())["verdict"]
        root = verdict["root"]
        assert (root["cause"], root["level"]) == ("peer-lost", "unknown"), verdict
        assert root["message"].startswith(f"host {other} ({other_ranks}) has not answered for ")
        assert root["message"].endswith(f"between it and host node{here} is interrupted")
        assert f"2 ranks alive: {own_ranks}" in [fact["text"] for fact in root["evidence"]]
        assert blocked_ranks(verdict) == own_ranks, verdict["consequences"]


def blocked_ranks(verdict):
    """Return the ranks blocked in all_reduce: a cut may leave one a call ahead of the other."""
    blocked = [
        rank
        for each in verdict["consequences"]
        for first, last in BLOCKED.findall(each["message"])
        for rank in range(int(first), int(last or first) + 1)
    ]
    return describe_ranks(sorted(blocked))


def test_both_sides_report_the_other_one(tmp_path):
    with hosts(2) as machines:
        jobs = start(machines, tmp_path, REDUCES, "c10d")
        wait_for(jobs, "running", times=2)
        cut(machines)
        assert [job.wait(LIMIT_S) for job in jobs] == [1, 1], [job.errors for job in jobs]
        check_verdicts(tmp_path, machines)
        assert not any("suspected hang" in job.errors for job in jobs)  # a report was only late


def test_all_ranks_of_the_leaders_host_are_named_by_the_others(tmp_path):
    with hosts(3) as machines:
        jobs = start(machines, tmp_path, REDUCES, "static")
        wait_for(jobs, "running", times=2)
        for follower in machines[1:]:
            machines[0].drop(peer=follower)
            follower.drop(peer=machines[0])
        wait_for(jobs[1:], f"host {machines[0].address} (ranks 0-1) has not answered for")


@pytest.mark.matrix
@pytest.mark.parametrize("backend", ["static", "c10d"])
@pytest.mark.parametrize("script", [REDUCES, STEPS], ids=["collectives", "steps"])
def test_the_verdict_follows_within_seconds(tmp_path, backend, script):
    with hosts(2) as machines:
        jobs = start(machines, tmp_path, script, backend)
        wait_for(jobs, "running", times=2)
        cut(machines)
        seconds = wait_for(jobs, "has not answered for")
        print("seconds from the cut to the verdict:", [round(each, 1) for each in seconds])  # noqa: T201
        assert max(seconds) <= VERDICT_S
        assert [job.wait(LIMIT_S) for job in jobs] == [1, 1], [job.errors for job in jobs]
        check_verdicts(tmp_path, machines)


@pytest.mark.matrix
@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_the_job_restarts_when_the_network_works_again(tmp_path, backend):
    with hosts(2) as machines:
        jobs = start(machines, tmp_path, REDUCES, backend, "--max-restarts", 2)
        wait_for(jobs, "running", times=2)
        cut(machines)
        wait_for(jobs, "has not answered for")
        for host in machines:
            host.mend()
        wait_for(jobs, "running", times=4)
        assert all("generation 1:" in job.errors for job in jobs)
