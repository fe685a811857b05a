"""What is seen of a job: on this host alone, on several over ssh, or by copies of this command, one a node.

However many hosts there are, one table comes out and is judged once; a host that gives no answer is said to be unseen.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from msgspec.structs import replace

from holdfast import settings
from holdfast.errors import CopyUnreachable, HoldfastError, NoJob, SeveralJobs
from holdfast.facts import gathering, job_dumps, jobs
from holdfast.facts.copies import Copy, this_copy
from holdfast.facts.dumps import DumpTable
from holdfast.facts.gathering import Answer, Meeting
from holdfast.facts.job_samples import Samples, combine, take
from holdfast.facts.jobs import Job, Search
from holdfast.facts.remote import Seen, ask
from holdfast.facts.training_processes import ProcessTable

MOST_HOSTS_AT_ONCE = 64
#: Nodes without an answer whose names are written; the others are counted.
MOST_NAMED = 16

Whole = tuple[Job, Samples, DumpTable | None]


def choose(search: Search) -> Job:
    """The one job of this host that is meant.

    Raises:
        NoJob, SeveralJobs: there is none, or more than one.
    """
    found = jobs.find(search)
    if len(found) > 1:
        raise SeveralJobs("; ".join(str(job) for job in found))
    return found[0]


def look(search: Search, copy: Copy | None) -> Whole | None:
    """Look at the job here, and where this is one of several copies, at what all of them see.

    None: another copy judges, and has been told what is seen here.

    Raises:
        NoJob, SeveralJobs: there is none, or more than one.
        CopyUnreachable: the copy that judges cannot be told.
    """
    if copy is not None and copy.allocation and not search.pids:
        search = replace(search, allocation=copy.allocation)
    if copy is None or copy.nodes == 1:
        return _here(search)
    if copy.node == 0:
        return _from_copies(search, copy)
    trouble = asyncio.run(_tell(search, copy))
    if trouble is not None:
        raise CopyUnreachable(copy.address, why=trouble)
    return None


def found_copy() -> Copy | None:
    """Which copy this is, where a launcher started several of this command."""
    return this_copy(ProcessTable())


def _here(search: Search) -> Whole:
    job = choose(search)
    with ThreadPoolExecutor(1, "holdfast-dumps") as pool:
        dumps = pool.submit(job_dumps.take, job)
        return job, take(job), dumps.result()


# ---- several copies, started by srun or torchrun


def _meeting(copy: Copy) -> Meeting:
    """Copies of one start, of one user, with one token meet; nobody else does."""
    token = settings.text("HOLDFAST_TOKEN") or ""
    secret = hashlib.sha256(f"{copy.word}\0{os.geteuid()}\0{token}".encode(errors="surrogateescape")).digest()
    return Meeting(copy.address, secret)


async def _tell(search: Search, copy: Copy) -> str | None:
    trouble = await gathering.deliver(_meeting(copy), await _answer(search, copy))
    return trouble.why if trouble is not None else None


async def _answer(search: Search, copy: Copy) -> Answer:
    """What this node sees; that it sees no such job is an answer too."""
    try:
        job = choose(search)
        return Answer(copy.node, Seen(job, await asyncio.to_thread(take, job)))
    except HoldfastError as error:
        return Answer(copy.node, why=str(error))


def _from_copies(search: Search, copy: Copy) -> Whole:
    answers, trouble = asyncio.run(gathering.collect(_meeting(copy), copy.nodes, lambda: _answer(search, copy)))
    silent = [f"{copy.name(node)}: {answer.why}" for node, answer in sorted(answers.items()) if answer.seen is None]
    silent += _missing(answers, copy, trouble)
    job, samples = _merge(
        [each.seen for _, each in sorted(answers.items()) if each.seen is not None], silent, copy.launcher
    )
    return job, samples, None


def _missing(answers: Mapping[int, Answer], copy: Copy, trouble: str) -> list[str]:
    missing = [node for node in range(copy.nodes) if node not in answers]
    if not missing:
        return []
    names = ", ".join(copy.name(node) for node in missing[:MOST_NAMED])
    more = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
    why = trouble or f"no answer within {gathering.ANSWER_LIMIT_S:.0f} s from the copy there"
    return [f"{names}{more}: {why}"]


# ---- several hosts, asked over ssh


def over_ssh(search: Search, hosts: Sequence[str]) -> Whole:
    """What every host saw of the job that most ranks belong to.

    Raises:
        NoJob: no host answered, or none sees such a job.
    """
    with ThreadPoolExecutor(min(len(hosts), MOST_HOSTS_AT_ONCE), "holdfast-hosts") as pool:
        answers = list(pool.map(lambda host: ask(host, search), hosts))
    seen = [answer for answer in answers if isinstance(answer, Seen)]
    silent = [answer.why for answer in answers if not isinstance(answer, Seen)]
    return *_merge(seen, silent, "--hosts " + ",".join(hosts)), None


def _merge(seen: Sequence[Seen], silent: Sequence[str], asked: str) -> tuple[Job, Samples]:
    """The job that most ranks belong to, and all that was seen of it."""
    if not seen:
        raise NoJob(asked, why="; ".join(silent))
    sizes: dict[tuple[str, str, int], int] = {}
    for each in seen:
        sizes[each.job.key] = sizes.get(each.job.key, 0) + len(each.job.ranks)
    key = max(sizes, key=lambda each: sizes[each])
    others = [f"host {each.job.host} runs another job: {each.job}" for each in seen if each.job.key != key]
    ours = [each for each in seen if each.job.key == key]
    if all(each.job.numbered for each in ours):
        ours = _in_a_row(ours)
    together = combine([each.samples for each in ours])
    return ours[0].job, replace(together, unseen=(*together.unseen, *silent, *others))


def _in_a_row(parts: Sequence[Seen]) -> list[Seen]:
    """Ranks that were numbered host by host, numbered through in the order of the hosts."""
    world_size = sum(part.samples.world_size for part in parts)
    moved, first = [], 0
    for part in parts:
        samples = replace(
            part.samples,
            ranks=tuple(replace(state, rank=state.rank + first) for state in part.samples.ranks),
            threads={rank + first: threads for rank, threads in part.samples.threads.items()},
            gone=tuple(rank + first for rank in part.samples.gone),
            world_size=world_size,
        )
        moved.append(Seen(part.job, samples))
        first += part.samples.world_size
    return moved
