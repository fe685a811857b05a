"""DATA005 file-written-by-all-ranks."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

FILE_WRITTEN_BY_ALL_RANKS = Cause(
    code="DATA005",
    name="file-written-by-all-ranks",
    summary="All ranks write the same file at the same time.",
    what_happens="Every rank opens one path for writing, which truncates what the earlier ones "
    "wrote, and each writes from the beginning. The result is a mixture of several copies, or an "
    "intact file if all ranks happened to write the same bytes in step.",
    shows_before="torch.save, open(..., 'w') or json.dump without a test of the rank, at a path "
    "that does not contain the rank; or under a test of the rank within the node, with a file "
    "system that all nodes share.",
    shows_during="Nothing, or a burst of simultaneous writes on a slow file system.",
    shows_after="An error of one rank: a file to rename that does not exist, or a folder that "
    "exists already, also in caches of compiled kernels. The file sometimes cannot be loaded: "
    "`storage has wrong size`, `invalid header or archive is corrupted`, truncated JSON. With "
    "one process the same program works.",
    known_misses="Files on node-local disks are not shared, and small identical files nearly "
    "always come out intact.",
    evidence_sources=(
        EvidenceSource.LOG,
        EvidenceSource.SOURCE,
    ),
    signals=(
        LogSignal(
            name="kernel-cache",
            tier=Tier.DEVICE,
            confidence=0.75,
            sentence="ranks conflicted in a cache of compiled kernels",
            patterns=(
                (
                    r"(?:\.triton/|triton[/_-]cache|/triton/|torchinductor|torch_extensions)"
                    r".{0,300}(?:No such file|Stale file|resource busy|file too short"
                    "|invalid ELF header)"
                ),
                (
                    "(?:No such file or directory|Stale file handle|resource busy|Text file busy"
                    "|Directory not empty"
                    r").{0,300}(?:\.triton/|triton[/_-]cache|/triton/|torchinductor)"
                ),
            ),
            examples=(
                (
                    "[rank5]: FileNotFoundError: [Errno 2] No such file or directory: "
                    "'/home/u/.triton/cache/cff/k.ttir.tmp.pid_15_3' -> "
                    "'/home/u/.triton/cache/cff/k.ttir'"
                ),
                (
                    "[rank3]: OSError: [Errno 16] Device or resource busy: "
                    "'/mnt/nas/triton/KBX3/tmp.pid_881_4b1c'"
                ),
                (
                    "11: ImportError: /home/u/.triton/cache/7QWX/__triton_launcher.so: "
                    "cannot stat shared object: Stale file handle"
                ),
            ),
            precedence=1,
        ),
        LogSignal(
            name="renamed-by-another",
            tier=Tier.DEVICE,
            confidence=0.7,
            sentence="another rank renamed or removed the file first",
            patterns=(("(?:No such file or directory|Directory not empty): '[^']{1,300}' -> '"),),
            examples=(
                (
                    "[rank4]: FileNotFoundError: [Errno 2] No such file or directory: "
                    "'out/tmp-checkpoint-500' -> 'out/checkpoint-500'"
                ),
                (
                    "[rank2]: OSError: [Errno 39] Directory not empty: "
                    "'out/tmp-checkpoint-9' -> 'out/checkpoint-9'"
                ),
            ),
        ),
        LogSignal(
            name="created-by-another",
            tier=Tier.DEVICE,
            confidence=0.55,
            sentence="another rank created the file or folder first",
            patterns=(
                r"FileExistsError: \[Errno 17\] File exists: '",
                r"OperationalError: database is locked|unable to lock file, errno = 11",
                r"shutil\.Error: Destination path '[^']{1,300}' already exists",
            ),
            examples=(
                (
                    "[rank8]: FileExistsError: [Errno 17] File exists: "
                    "'/mnt/out/epoch_0_step_297/rng'"
                ),
                "[rank3]: sqlite3.OperationalError: database is locked",
            ),
            counter_examples=("INFO: output folder /mnt/out exists already, resuming",),
        ),
    ),
    remedies=(
        by_hand("Let one rank write: `if dist.get_rank() == 0: torch.save(state, path)`."),
        by_hand("Or give each rank a separate file: `f'{folder}/rank{dist.get_rank()}.json'`."),
    ),
    sources=("NVIDIA/apex#886", "bytedance/ibot#15", "DLLXW/baby-llama2-chinese#56"),
)
