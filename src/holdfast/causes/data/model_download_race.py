"""DATA003 model-download-race."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

MODEL_DOWNLOAD_RACE = Cause(
    code="DATA003",
    name="model-download-race",
    summary="Ranks conflicted or failed while downloading, unpacking or caching the same model or "
    "dataset.",
    what_happens="All ranks of a host download into one cache at the same time. One reads what "
    "another has half written, or removes a lock file that another waits for; a hub limits the "
    "rate and some ranks get errors; rank 0 downloads for longer than the others' timeout.",
    shows_before="from_pretrained or load_dataset on every rank with an empty cache; local ranks "
    "of several hosts share one network cache; no barrier between the download on rank 0 and the "
    "reading on other ranks.",
    shows_during="Ranks are in urllib, requests, huggingface_hub or a file lock; the others are "
    "in the barrier, or in the first collective.",
    shows_after="Truncated JSON or safetensors files, `FileNotFoundError` for a cached file on "
    "some ranks, HTTP 429, or a timeout at the first barrier. A second start works, because the "
    "cache is then full.",
    known_misses="A running download is a phase with a separate budget and is not reported as a "
    "hang before the budget is exceeded. A log shows only the corrupt file, not the rank that "
    "wrote it.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="download",
            tier=Tier.DEVICE,
            confidence=0.6,
            sentence="a download or a shared cache failed",
            patterns=(
                (
                    "LocalEntryNotFoundError|couldn't connect to .{0,60}(?:huggingface|hub)"
                    "|HfHubHTTPError|429 Client Error|OfflineModeIsEnabled"
                ),
                r"Consistency check failed|requests\.exceptions\.\w+: .{0,600}\(Request ID: ",
                (
                    r"host='[\w.-]{0,40}(?:huggingface\.co|hf\.co|modelscope\.cn)'.{0,40}"
                    "(?:Max retries|Read timed out)"
                ),
                "NonMatching(?:Splits|Checksum)|IncompleteRead",
                r"FileExistsError.{0,120}(?:cache|lock|\.incomplete)",
                (
                    r"(?:cache|hub|download|snapshots?|\.lock).{0,120}(?:No such file"
                    r"|FileNotFoundError|Stale file)"
                ),
                r"\[Errno (?:17|39)\] .{0,200}(?:cache|hub|incomplete|download|\.lock)",
                (
                    r"(?:No such file or directory|Stale file handle).{0,200}(?:\.cache/"
                    r"|huggingface|/hub/|\.lock)"
                ),
                "MetadataIncompleteBuffer",
                r"tarfile\.ReadError",
            ),
            examples=(
                (
                    "14: OSError: [Errno 39] Directory not empty: "
                    "'/scratch/cache/text/default-d08/0.0.0/c4a.incomplete'"
                ),
                (
                    "[rank2]: FileNotFoundError: [Errno 2] No such file or directory: "
                    "'/root/.cache/huggingface/hub/models--x/blobs/9.lock'"
                ),
                (
                    "requests.exceptions.ConnectionError: "
                    "HTTPSConnectionPool(host='huggingface.co', port=443): Max retries "
                    "exceeded with url: /x"
                ),
            ),
            precedence=2,
        ),
    ),
    log_examples=(
        (
            "[rank3]: Traceback (most recent call last):\n"
            '[rank3]:   File "/w/train.py", line 41, in <module>\n'
            '[rank3]:   File "/v/transformers/configuration_utils.py", line 750, in '
            "_get_config_dict\n"
            '[rank3]:   File "/usr/lib/python3.11/json/decoder.py", line 355, in raw_decode\n'
            "[rank3]: json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
        ),
        (
            "[rank1]: Traceback (most recent call last):\n"
            '[rank1]:   File "/v/torch/hub.py", line 713, in _legacy_zip_load\n'
            '[rank1]:   File "/usr/lib/python3.11/zipfile.py", line 1369, in _RealGetContents\n'
            "[rank1]: zipfile.BadZipFile: File is not a zip file"
        ),
    ),
    remedies=(
        disruptive(
            "Fill the cache before the job, and train offline.",
            "hf download MODEL && HF_HUB_OFFLINE=1 holdfast run SCRIPT",
        ),
        by_hand(
            "Let one rank of each host download first, and the others after a barrier on all ranks."
        ),
        by_hand(
            "Remove the half-written file from the cache, after checking that no process "
            "still writes it."
        ),
    ),
    sources=("GaTech-RL2/EgoVerse#250", "huggingface/transformers-bloom-inference#40"),
)
