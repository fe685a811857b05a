"""Whether this process is the one that writes for the whole job."""

from __future__ import annotations

import torch.distributed as dist

from holdfast.core import settings


def is_rank_zero() -> bool:
    """Return whether this is rank 0 of the job, also before torch.distributed is initialized."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank() == 0
    return not settings.read_setting("RANK").value
