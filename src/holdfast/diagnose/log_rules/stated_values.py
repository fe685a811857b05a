"""Versions and launch arguments that hosts state in their logs, and that differ."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from holdfast.causes.environment.nccl_version_mismatch import NCCL_VERSION_MISMATCH
from holdfast.causes.environment.software_differs_between_hosts import (
    SOFTWARE_DIFFERS_BETWEEN_HOSTS,
)
from holdfast.causes.network.launch_arguments_differ import LAUNCH_ARGUMENTS_DIFFER
from holdfast.causes.network.stale_rendezvous_store import STALE_RENDEZVOUS_STORE
from holdfast.diagnose.log_rules.candidates import CauseCandidate
from holdfast.diagnose.log_rules.log_index import FAILURES, LogIndex
from holdfast.diagnose.log_rules.signal_causes import Tier
from holdfast.diagnose.logs import LogLine

#: Failures of communication, to which different versions lead.
_FAILURES = (
    *FAILURES,
    *"nccl-system-error nccl-internal-error nccl-invalid-usage nccl-cuda-error peer-closed".split(),
    *"nccl-truncated socket-timeout gloo-timeout store-key-timeout store-lost".split(),
)
#: Added to the fields of every line of NCCL's.
_NO_VALUE = "device"
_MAX_LINES = 4

#: Value -> line, by host or log.
Stated = dict[str, dict[str, LogLine]]


def find_different_versions(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a library of which two hosts, or two logs, state different versions."""
    differing = _differing(index, "version-stated") if index.has_any(*_FAILURES) else {}
    for library, by_host in differing.items():
        only_nccl = library == "nccl" and len(differing) == 1
        cause = NCCL_VERSION_MISMATCH if only_nccl else SOFTWARE_DIFFERS_BETWEEN_HOSTS
        message = f"the hosts have different versions of {library}: {_values(by_host)}"
        # Messages of another version's setup are not understood.
        garbled = "nccl" in differing and "setup-garbled" in index
        tier, confidence = (Tier.NAMED, 0.9) if garbled else (Tier.NETWORK, 0.8)
        yield CauseCandidate(cause.name, tier, confidence, message, _lines(by_host))
        return


def find_stale_store(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield a store in which more ranks arrived than the job has: those of an earlier job."""
    for one in index.unrecovered("store-barrier"):
        arrived, size = int(one.fields["arrived"]), int(one.fields["size"])
        if arrived > size:
            message = f"{arrived} ranks arrived in the store of a job of {size}"
            name = STALE_RENDEZVOUS_STORE.name
            yield CauseCandidate(name, Tier.NAMED, 0.75, message, (one.line,))
            return


def find_different_arguments(index: LogIndex) -> Iterable[CauseCandidate]:
    """Yield an argument of the launcher to which hosts give different values, if a job failed."""
    if not index.has_any(*_FAILURES) and not index.facts.tracebacks:
        return
    for argument, by_host in _differing(index, "launch-argument").items():
        message = f"the hosts were started with different values of {argument}: {_values(by_host)}"
        name = LAUNCH_ARGUMENTS_DIFFER.name
        yield CauseCandidate(name, Tier.DEVICE, 0.75, message, _lines(by_host))
        return


def _differing(index: LogIndex, name: str) -> dict[str, Stated]:
    """Return the fields of which hosts, or logs, have one value each, and not all the same."""
    stated: dict[str, Stated] = defaultdict(lambda: defaultdict(dict))
    for one in index.all(name):
        for field, value in one.fields.items():
            if field != _NO_VALUE:  # without the build of a version, which few lines state
                text = str(value).partition("+")[0]
                stated[field][one.line.host or one.line.source][text] = one.line
    return {
        field: by_host
        for field, by_host in stated.items()
        if all(len(values) == 1 for values in by_host.values())
        and len({value for values in by_host.values() for value in values}) > 1
    }


def _values(by_host: Stated) -> str:
    return " and ".join(sorted({value for values in by_host.values() for value in values}))


def _lines(by_host: Stated) -> tuple[LogLine, ...]:
    return tuple(line for values in by_host.values() for line in values.values())[:_MAX_LINES]
