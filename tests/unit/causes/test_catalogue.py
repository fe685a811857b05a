"""The catalogue: every cause is complete, has a stable code and the name of a fault, and matches its page."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from docs.generate import PAGES
from holdfast.causes import FAMILIES, all_causes, by_name, check_references, find_cause
from holdfast.causes.environment.fd_limit import FD_LIMIT
from holdfast.causes.new_cause import NAMES_OF_FIXES, PLACEHOLDER
from holdfast.causes.performance.straggler import STRAGGLER
from holdfast.causes.sync.rank_missing_collective import RANK_MISSING_COLLECTIVE
from holdfast.causes.translations import LANGUAGES
from holdfast.core.errors import InternalError, UnknownName
from holdfast.core.findings import Cause, Remedy, Safety
from holdfast.report.catalogue import HEADINGS

ROOT = Path(__file__).parents[3]
COMPLETE = RANK_MISSING_COLLECTIVE

#: Published codes and names never change. Add those of new causes at a release.
PUBLISHED = """
ENV001 nccl-version-mismatch          ENV002 nccl-plugin-missing         ENV003 fd-limit
ENV004 nccl-timeout-ignored           ENV005 variable-renamed            ENV006 variable-never-read
ENV007 variable-value-unusable        ENV008 variable-of-another-version ENV009 variables-contradict
ENV010 variable-harmful               ENV011 variable-set-too-late
ENV012 variable-differs-between-hosts ENV013 variable-not-handed-on
ENV014 process-limit                  ENV015 clock-unsynchronized        ENV016 package-installed-twice
ENV017 tracing-refused                ENV018 software-differs-between-hosts
ENV019 code-differs-between-hosts    ENV020 variable-not-sent
NET001 network-interface-wrong        NET002 network-fabric-fault        NET003 firewall-blocked-ports
NET004 hostname-resolution            NET005 port-in-use                 NET006 master-unreachable
NET007 ib-error                       NET008 stale-rendezvous-store
NET009 host-never-arrived             NET010 mtu-black-hole              NET011 slow-link
NET012 launch-arguments-differ        NET013 clocks-differ
NET014 ib-port-degraded
GPU001 gpu-hw-fault                   GPU002 gpu-fell-off-bus-xid-ecc    GPU003 iommu-acs-p2p-hang
GPU004 cuda-driver-mismatch           GPU005 cuda-kernel-fault           GPU006 duplicate-gpu
GPU007 invalid-device-ordinal          GPU008 gpu-throttled                GPU009 gpu-memory-worn
GPU010 gpu-link-degraded              GPU011 gpu-in-use                   GPU012 gpu-renumbered
GPU013 gpu-settings
MEM001 gpu-oom-all-ranks              MEM002 oom-on-one-rank-then-timeout
MEM003 host-oom-killed                MEM004 shm-too-small               MEM005 memlock-limit
MEM006 host-swapping                  MEM007 huge-pages-unsuited
MEM008 gpu-memory-fragmented          MEM009 gpu-memory-taken-by-others  MEM010 tensors-kept-over-steps
SYNC001 collective-mismatch           SYNC002 rank-missing-collective    SYNC003 uneven-inputs
SYNC004 rank-guarded-collective       SYNC005 rank-skips-collective      SYNC006 collective-order-inversion
SYNC007 mismatched-shape              SYNC008 mismatched-dtype           SYNC009 mismatched-operation
SYNC010 new-group-by-some-ranks       SYNC011 p2p-without-partner        SYNC012 rank-exits-early
SYNC013 store-wait                    SYNC014 result-used-too-early
PROC000 no-failure                    PROC001 python-exception-on-one-rank
PROC002 python-exception-all-ranks    PROC003 segfault-in-worker         PROC004 signal-sigterm-preempted
PROC005 peer-lost                     PROC006 rank-killed                PROC007 rank-stopped
PROC008 rank-uninterruptible-io       PROC009 exit-nonzero
PROC010 stalled-outside-collectives   PROC011 stale-build-lock               PROC012 group-left-at-exit
PROC013 python-lock-held
DATA001 dataloader-worker-died        DATA002 file-io-blocked            DATA003 model-download-race
DATA004 sampler-epoch-not-set          DATA005 file-written-by-all-ranks
DATA006 data-not-shared-out            DATA007 ranks-draw-the-same
CKPT001 checkpoint-io-slow-timeout    CKPT002 checkpoint-corrupt         CKPT003 checkpoint-half-written
CKPT004 checkpoint-folder-unusable
CKPT005 checkpoint-unfinished          CKPT006 checkpoint-of-another-model    CKPT007 checkpoint-of-newer-version
CKPT008 checkpoint-runs-code          CKPT009 checkpoint-numbers-not-finite  CKPT010 checkpoint-weights-all-zero
CKPT011 checkpoint-copies-differ       CKPT012 checkpoint-tensor-incomplete   CKPT013 checkpoints-not-alike
CONF001 comm-config-bad               CONF002 unused-parameters-ddp      CONF003 ddp-param-ready-twice
CONF004 local-rank-as-global
PERF001 straggler                     PERF002 computing-long             PERF003 watchdog-timeout-straggler
PERF004 rank0-long-work-timeout
PERF005 collectives-slower-than-before                               PERF006 collectives-below-line-rate
PERF007 processors-too-few            PERF008 clock-source-slow          PERF009 memory-on-another-node
PERF010 gpu-awaited-each-step          PERF011 precision-without-hardware   PERF012 tensor-parallel-across-nodes
NUM001 mixed-precision-nan            NUM002 silent-corruption-by-misaligned-collectives
NUM003 replicas-diverge                NUM004 collective-result-wrong
NUM005 loss-jumped
NUM006 failed-evaluation-counted      NUM007 mean-of-local-means
"""

#: Failure labels of public reports of failed jobs.
LABELS = """
gpu_hw_fault gpu_fell_off_bus_xid_ecc iommu_acs_p2p_hang cuda_driver_mismatch cuda_kernel_fault gpu_oom_all_ranks
oom_on_one_rank_then_timeout host_oom_killed shm_too_small memlock_limit fd_limit dataloader_worker_died duplicate_gpu
invalid_device_ordinal nccl_version_mismatch nccl_plugin_missing comm_config_bad network_interface_wrong
network_fabric_fault firewall_blocked_ports hostname_resolution port_in_use master_unreachable ib_error
collective_mismatch rank_missing_collective uneven_inputs watchdog_timeout_straggler rank0_long_work_timeout
checkpoint_io_slow_timeout model_download_race unused_parameters_ddp ddp_param_ready_twice mixed_precision_nan
python_exception_on_one_rank python_exception_all_ranks segfault_in_worker signal_sigterm_preempted peer_lost no_failure
"""


def problems_of(cause: Cause) -> list[str]:
    """Return the problems of a cause as text; empty if it is complete."""
    texts = {field: getattr(cause, field) for field in ("summary", *HEADINGS)}
    problems = [
        f"{field} is empty" for field, text in texts.items() if len(text.strip()) < len("Nothing.")
    ]
    problems += [
        f"{field} is not a sentence"
        for field, text in texts.items()
        if not text.rstrip().endswith((".", "?"))
    ]
    problems += [
        f"{field} has stray blanks"
        for field, text in texts.items()
        if text != " ".join(text.split())
    ]
    if PLACEHOLDER in repr(cause):
        problems.append(f"{PLACEHOLDER} was not replaced")
    if ". " in cause.summary:
        problems.append("summary is more than one sentence")
    if not re.fullmatch(rf"({'|'.join(FAMILIES)})\d{{3}}", cause.code):
        problems.append(f"{cause.code!r} is not a code of a family")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cause.name):
        problems.append(f"{cause.name!r} is not written like-this")
    if NAMES_OF_FIXES.search(cause.name):
        problems.append(f"{cause.name!r} names a fix")
    if not cause.evidence_sources:
        problems.append("no evidence source shows it")
    if not cause.remedies:
        problems.append("no remedy")
    for remedy in cause.remedies:
        if (
            not remedy.text.rstrip().endswith((".", "?"))
            or remedy.safety not in set(Safety)
            or remedy.command == ""
        ):
            problems.append(f"an incomplete remedy: {remedy.text!r}")
    return problems


@pytest.mark.parametrize("cause", all_causes(), ids=lambda cause: cause.name)
def test_every_cause_is_complete(cause):
    assert problems_of(cause) == []


@pytest.mark.parametrize("field", ["summary", *HEADINGS])
def test_a_cause_without_a_heading_is_refused(field):
    assert problems_of(replace(COMPLETE, **{field: "  "}))


@pytest.mark.parametrize(
    "name", ["use-barrier", "add-timeout", "missing-barrier", "avoid-guarded-collective"]
)
def test_the_name_of_a_fix_is_refused(name):
    assert problems_of(replace(COMPLETE, name=name)) == [f"{name!r} names a fix"]


@pytest.mark.parametrize(
    "change",
    [
        {"remedies": ()},
        {"evidence_sources": ()},
        {"remedies": (Remedy(text="Do it", command="make"),)},
        {"remedies": (Remedy(text="Do it.", command=""),)},
        {"code": "SYNC2"},
        {"code": "LAMP001"},
        {"summary": "One sentence. And another one."},
        {"sources": ("PLACEHOLDER: an issue",)},
    ],
    ids=str,
)
def test_an_incomplete_cause_is_refused(change):
    assert problems_of(replace(COMPLETE, **change))


def test_codes_and_names_are_unique():
    for counted in (
        Counter(cause.code for cause in all_causes()),
        Counter(cause.name for cause in all_causes()),
    ):
        assert [name for name, times in counted.items() if times > 1] == []


def test_published_codes_are_stable():
    words = PUBLISHED.split()
    published = dict(zip(words[::2], words[1::2], strict=True))
    names = {cause.code: cause.name for cause in all_causes()}
    assert {code: names.get(code) for code in published} == published


def test_every_label_of_failed_jobs_is_a_cause():
    labels = LABELS.replace("_", "-").split()
    assert len(labels) == 40
    assert set(labels) - {cause.name for cause in all_causes()} == set()


def test_every_family_has_causes_sorted_by_code():
    order = list(FAMILIES)
    places = [(order.index(cause.family), cause.code) for cause in all_causes()]
    assert places == sorted(places)
    assert {cause.family for cause in all_causes()} == set(FAMILIES)


def test_no_rule_names_a_cause_by_a_string():
    names = re.compile(r'\bby_name\(\s*"')
    files = [file for file in (ROOT / "src/holdfast").rglob("*.py") if "causes" not in file.parts]
    assert [str(file) for file in files if names.search(file.read_text())] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"code": "SYNC900"}, "the name straggler"),
        ({"name": "straggles"}, "the code PERF001"),
        ({"code": "SYNC900", "name": "straggles", "alternatives": ("stragler",)}, "stragler"),
    ],
    ids=str,
)
def test_a_duplicate_or_an_unknown_reference_is_an_internal_error(change, message):
    with pytest.raises(InternalError, match=message):
        check_references([*all_causes(), replace(STRAGGLER, **change)])


def test_a_signal_declared_twice_is_an_internal_error():
    with pytest.raises(InternalError, match="the log signal fd-limit"):
        check_references([FD_LIMIT, replace(FD_LIMIT, code="ENV900", name="fd-limits")])


def test_every_cause_is_one_file():
    files = sorted((ROOT / "src/holdfast/causes").glob("*/[a-z]*.py"))
    assert sorted(file.stem for file in files) == sorted(
        cause.name.replace("-", "_") for cause in all_causes()
    )


def test_commands_are_valid_shell_commands():
    commands = sorted(
        {remedy.command for cause in all_causes() for remedy in cause.remedies if remedy.command}
    )
    script = "\n".join(commands) + "\n"
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [command for command in commands if "\n" in command or "…" in command]


def test_remedies_avoid_common_errors():
    advice = [
        f"{remedy.text} {remedy.command or ''}"
        for cause in all_causes()
        for remedy in cause.remedies
    ]
    wrong = re.compile(
        r"NCCL_TIMEOUT=|(?<!TORCH_)NCCL_(ASYNC_ERROR_HANDLING|BLOCKING_WAIT)=|SIGALRM|signal\.alarm|NCCL_ALGO="
    )
    assert [text for text in advice if wrong.search(text)] == []
    p2p_off = [
        cause.name
        for cause in all_causes()
        for remedy in cause.remedies
        if "P2P_DISABLE=1" in (remedy.command or "")
    ]
    assert p2p_off == ["iommu-acs-p2p-hang"]


@pytest.mark.parametrize(
    "text",
    [
        "SYNC002",
        "sync002",
        "rank-missing-collective",
        "Rank_Missing_Collective",
        " rank missing collective ",
    ],
)
def test_a_cause_is_found_by_code_and_name(text):
    assert find_cause(text) is COMPLETE


def test_an_unknown_cause_lists_similar_ones():
    with pytest.raises(UnknownName, match="did you mean rank-missing-collective"):
        find_cause("rank-misses-collective")
    with pytest.raises(UnknownName, match="SYNC002"):
        find_cause("SYNC02")
    with pytest.raises(UnknownName, match="holdfast explain --list"):
        find_cause("quux")


def test_a_rule_with_an_unknown_cause_is_an_internal_error():
    with pytest.raises(InternalError, match="quux"):
        by_name("quux")


def test_a_cause_survives_json():
    assert msgspec.json.decode(msgspec.json.encode(COMPLETE), type=Cause) == COMPLETE


def test_the_pages_match_the_catalogue():
    expected = {name: write() for name, write in PAGES.items() if name.startswith("causes/")}
    found = {
        f"causes/{page.name}": page.read_text() for page in (ROOT / "docs/causes").glob("*.md")
    }
    assert found == expected, "run: python docs/generate.py (and delete pages of removed causes)"
    assert len(expected) == len(LANGUAGES) * (len(all_causes()) + 1)


def test_the_glossary_defines_the_terms_of_findings():
    page = (ROOT / "docs/glossary.md").read_text()
    words = {
        *(
            "fact",
            "unknown",
            "cause",
            "finding",
            "level",
            "subject",
            "evidence",
            "remedy",
            "safety",
            "verdict",
            "root",
        ),
        *("consequence", "suspect", "ruled out", "unseen", "code", "name", "family", "confidence"),
    }
    assert {word for word in words if f"| **{word}**" not in page} == set()
    defined = re.findall(r"^\| (\*\*.+?\*\*)(?:, (\*\*.+?\*\*))? \|", page, flags=re.MULTILINE)
    counted = Counter(word for row in defined for word in row if word)
    assert [word for word, times in counted.items() if times > 1] == []
