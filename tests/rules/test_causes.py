"""The catalogue: every entry is whole, has a stable code and a name of a fault; the pages say what the entries say."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from docs.generate import PAGES
from holdfast.errors import InternalError, UnknownName
from holdfast.findings import Cause, Remedy, Safety
from holdfast.report.catalogue import HEADINGS
from holdfast.rules.causes import CAUSES, FAMILIES, by_code, by_name, find

ROOT = Path(__file__).parents[2]
WHOLE = by_name("rank-missing-collective")

#: Codes once given are kept: lines may be added here, none changed.
CODES = """
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

#: The kinds of failure by which public reports of failed jobs are labelled.
LABELS = """
gpu_hw_fault gpu_fell_off_bus_xid_ecc iommu_acs_p2p_hang cuda_driver_mismatch cuda_kernel_fault gpu_oom_all_ranks
oom_on_one_rank_then_timeout host_oom_killed shm_too_small memlock_limit fd_limit dataloader_worker_died duplicate_gpu
invalid_device_ordinal nccl_version_mismatch nccl_plugin_missing comm_config_bad network_interface_wrong
network_fabric_fault firewall_blocked_ports hostname_resolution port_in_use master_unreachable ib_error
collective_mismatch rank_missing_collective uneven_inputs watchdog_timeout_straggler rank0_long_work_timeout
checkpoint_io_slow_timeout model_download_race unused_parameters_ddp ddp_param_ready_twice mixed_precision_nan
python_exception_on_one_rank python_exception_all_ranks segfault_in_worker signal_sigterm_preempted peer_lost no_failure
"""

#: A name says what is wrong; these begin with what to do about it, or name what is not there to be seen.
NAMES_OF_FIXES = re.compile(
    r"^(use|add|avoid|set|call|remove|fix|enable|disable|prefer|increase|decrease|raise|install|check|ensure|should)-"
    r"|^(no|missing|without|unnecessary)-(?!failure$)|-(should|must|needed|required|recommended)(-|$)"
)


def faults_of(cause: Cause) -> list[str]:
    """What is wrong with an entry of the catalogue, in words; the entry is whole where there is nothing."""
    texts = {field: getattr(cause, field) for field in ("summary", *HEADINGS)}
    faults = [f"{field} is empty" for field, text in texts.items() if len(text.strip()) < len("Nothing.")]
    faults += [f"{field} is no sentence" for field, text in texts.items() if not text.rstrip().endswith((".", "?"))]
    faults += [f"{field} has stray blanks" for field, text in texts.items() if text != " ".join(text.split())]
    if ". " in cause.summary:
        faults.append("summary is more than one sentence")
    if not re.fullmatch(rf"({'|'.join(FAMILIES)})\d{{3}}", cause.code):
        faults.append(f"{cause.code!r} is no code of a family")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", cause.name):
        faults.append(f"{cause.name!r} is not written like-this")
    if NAMES_OF_FIXES.search(cause.name):
        faults.append(f"{cause.name!r} names a fix")
    if not cause.remedies:
        faults.append("no remedy")
    for remedy in cause.remedies:
        if not remedy.text.rstrip().endswith((".", "?")) or remedy.safety not in set(Safety) or remedy.command == "":
            faults.append(f"a remedy that is not whole: {remedy.text!r}")
    return faults


@pytest.mark.parametrize("cause", CAUSES, ids=lambda cause: cause.name)
def test_every_cause_is_whole(cause):
    assert faults_of(cause) == []


@pytest.mark.parametrize("field", ["summary", *HEADINGS])
def test_a_cause_without_a_heading_is_refused(field):
    assert faults_of(replace(WHOLE, **{field: "  "}))


@pytest.mark.parametrize("name", ["use-barrier", "add-timeout", "missing-barrier", "avoid-guarded-collective"])
def test_the_name_of_a_fix_is_refused(name):
    assert faults_of(replace(WHOLE, name=name)) == [f"{name!r} names a fix"]


@pytest.mark.parametrize(
    "change",
    [
        {"remedies": ()},
        {"remedies": (Remedy(text="Do it", command="make"),)},
        {"remedies": (Remedy(text="Do it.", command=""),)},
        {"code": "SYNC2"},
        {"code": "LAMP001"},
        {"summary": "One sentence. And another one."},
    ],
    ids=str,
)
def test_a_cause_that_is_not_whole_is_refused(change):
    assert faults_of(replace(WHOLE, **change))


def test_codes_and_names_are_given_once():
    for counted in (Counter(cause.code for cause in CAUSES), Counter(cause.name for cause in CAUSES)):
        assert [given for given, times in counted.items() if times > 1] == []


def test_codes_are_stable():
    words = CODES.split()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert {cause.code: cause.name for cause in CAUSES} == given


def test_every_label_of_failed_jobs_is_a_cause():
    labels = LABELS.replace("_", "-").split()
    assert len(labels) == 40
    assert set(labels) - {cause.name for cause in CAUSES} == set()


def test_every_family_has_causes_and_they_are_in_its_order():
    order = list(FAMILIES)
    places = [(order.index(cause.family), cause.code) for cause in CAUSES]
    assert places == sorted(places)
    assert {cause.family for cause in CAUSES} == set(FAMILIES)


def test_what_the_rules_claim_is_in_the_catalogue():
    claims = re.compile(r'\b(?:by_name|_claim)\(\s*"([^"]+)"')
    files = [file for file in (ROOT / "src/holdfast").rglob("*.py") if file.parent.name != "causes"]
    claimed = {name for file in files for name in claims.findall(file.read_text())}
    assert "rank-missing-collective" in claimed
    assert claimed - {cause.name for cause in CAUSES} == set()


def test_commands_are_commands_of_a_shell():
    commands = sorted({remedy.command for cause in CAUSES for remedy in cause.remedies if remedy.command})
    script = "\n".join(commands) + "\n"
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [command for command in commands if "\n" in command or "…" in command]


def test_common_errors_are_not_repeated():
    advice = [f"{remedy.text} {remedy.command or ''}" for cause in CAUSES for remedy in cause.remedies]
    wrong = re.compile(
        r"NCCL_TIMEOUT=|(?<!TORCH_)NCCL_(ASYNC_ERROR_HANDLING|BLOCKING_WAIT)=|SIGALRM|signal\.alarm|NCCL_ALGO="
    )
    assert [text for text in advice if wrong.search(text)] == []
    p2p_off = [cause.name for cause in CAUSES for remedy in cause.remedies if "P2P_DISABLE=1" in (remedy.command or "")]
    assert p2p_off == ["iommu-acs-p2p-hang"]


@pytest.mark.parametrize(
    "text", ["SYNC002", "sync002", "rank-missing-collective", "Rank_Missing_Collective", " rank missing collective "]
)
def test_a_cause_is_found_by_code_and_name(text):
    assert find(text) is WHOLE


def test_an_unknown_cause_brings_those_that_are_near():
    with pytest.raises(UnknownName, match="did you mean rank-missing-collective"):
        find("rank-misses-collective")
    with pytest.raises(UnknownName, match="SYNC002"):
        find("SYNC02")
    with pytest.raises(UnknownName, match="holdfast explain --list"):
        find("quux")


def test_a_rule_that_claims_what_is_not_there_is_a_bug_of_ours():
    assert by_code("SYNC002") is WHOLE
    for ask in (by_name, by_code):
        with pytest.raises(InternalError, match="quux"):
            ask("quux")


def test_an_entry_survives_json():
    assert msgspec.json.decode(msgspec.json.encode(WHOLE), type=Cause) == WHOLE


def test_the_pages_say_what_the_catalogue_says():
    expected = {name: write() for name, write in PAGES.items() if name.startswith("causes/")}
    found = {f"causes/{page.name}": page.read_text() for page in (ROOT / "docs/causes").glob("*.md")}
    assert found == expected, "run: make fix (and delete pages of causes that are gone)"
    assert len(expected) == len(CAUSES) + 1


def test_the_glossary_has_the_words_of_findings():
    page = (ROOT / "docs/glossary.md").read_text()
    words = {
        *("fact", "unknown", "cause", "finding", "level", "subject", "evidence", "remedy", "safety", "verdict", "root"),
        *("consequence", "suspect", "ruled out", "unseen", "code", "name", "family", "confidence"),
    }
    assert {word for word in words if f"| **{word}**" not in page} == set()
    defined = re.findall(r"^\| (\*\*.+?\*\*)(?:, (\*\*.+?\*\*))? \|", page, flags=re.MULTILINE)
    counted = Counter(word for row in defined for word in row if word)
    assert [word for word, times in counted.items() if times > 1] == []
