"""NET008 stale-rendezvous-store."""

from __future__ import annotations

from holdfast.causes.remedies import disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause

STALE_RENDEZVOUS_STORE = Cause(
    code="NET008",
    name="stale-rendezvous-store",
    summary="A restarted rank read addresses that the previous generation had left in the "
    "rendezvous store.",
    what_happens="torchrun of torch 2.13 keeps one TCPStore over all restarts and uses the same "
    "keys in each round. A rank that starts before its peers finds the gloo addresses of the "
    "previous round and connects to sockets that no longer exist. It fails at once, or waits for "
    "five times the group's timeout.",
    shows_before="--max-restarts above 0 under torchrun 2.13. A job without restarts is not "
    "affected.",
    shows_during="After a restart some ranks have created the group and others wait in "
    "init_process_group, although all processes are up and the first start succeeded.",
    shows_after="`Connection refused` within a second of the restart, or a connect timeout; the "
    "restarts are used up one after the other, although the first fault has passed. Three of six "
    "restarts recovered when this was measured.",
    known_misses="`holdfast run` uses a separate store prefix for each generation, so this does "
    "not occur under it. Elsewhere only the time right after a restart distinguishes it from a "
    "network fault.",
    evidence_sources=(EvidenceSource.LOG,),
    log_examples=(
        (
            "E0203 04:05:06.000000 77 torch/distributed/elastic/multiprocessing"
            "/api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 81) of "
            "binary: python\n"
            "RuntimeError: Gloo connectFullMesh failed with "
            "[gloo/transport/tcp/pair.cc:144] connect [10.0.0.2]:4711: "
            "Connection refused"
        ),
    ),
    alternatives=("network-interface-wrong", "master-unreachable"),
    remedies=(
        disruptive(
            "Start with holdfast: every generation has a separate store prefix.",
            "holdfast run --max-restarts 3 SCRIPT",
        ),
        disruptive(
            "Under torchrun let the workers create a separate store (fixes standalone and "
            "c10d rendezvous, not the static one).",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --max-restarts=3 SCRIPT",
        ),
    ),
    sources=("pytorch/pytorch#135712", "pytorch/pytorch#167288", "pytorch/pytorch#167302"),
)
