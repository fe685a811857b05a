"""DATA005 file-written-by-all-ranks."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand
from holdfast.core.findings import Cause

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
    shows_after="The file sometimes cannot be loaded: `storage has wrong size`, `invalid header "
    "or archive is corrupted`, truncated JSON. With one process the same program works.",
    known_misses="Files on node-local disks are not shared, and small identical files nearly "
    "always come out intact.",
    remedies=(
        by_hand("Let one rank write: `if dist.get_rank() == 0: torch.save(state, path)`."),
        by_hand("Or give each rank a separate file: `f'{folder}/rank{dist.get_rank()}.json'`."),
    ),
    sources=("NVIDIA/apex#886", "bytedance/ibot#15", "DLLXW/baby-llama2-chinese#56"),
)
