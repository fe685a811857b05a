"""What training reaches of what GPUs could do: a few physical numbers, fitted to published runs; conditions of a run.

``benchmarks/plan_truth_time.py`` says what is fitted to which rows and how far the others are off.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import inf

import msgspec

from holdfast.errors import BadValue
from holdfast.plan.hardware import Cluster, Links


class Kernel(StrEnum):
    """What computes attention where scores are not stored: T. Dao et al., FlashAttention 1 to 3 (2022, 2023, 2024)."""

    FLASH1 = "flash-1"
    FLASH2 = "flash-2"
    FLASH3 = "flash-3"


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Shares are of the peak, of matrices of ``Gpu.matrix_share`` of it."""

    #: Of products of large matrices.
    matrix: float = 0.872
    #: How often a product's matrices are read and written: what small ones lose.
    small: float = 1.0
    #: Of the HBM's bandwidth in operations that only move data.
    memory: float = 0.8
    #: Passes over the hidden and the inner width of a layer in forward, each of 2 bytes a number; backward has twice.
    #: Two norms and two sums are 10; a gated layer's activation is half as much again.
    hidden_passes: float = 15.5
    inner_passes: float = 2.0
    #: And, eager, where norms are RMS norms in several kernels and positions rotate in fp32.
    norm_passes: float = 14.0
    rotary_passes: float = 10.0
    #: What a compiler leaves of them.
    compiled: float = 0.6
    #: Bytes moved for each score of attention where scores are stored, forward.
    score_bytes: float = 10.0
    #: Bytes moved for each logit, forward and backward.
    logit_bytes: float = 26.5
    #: Of the forward that full recomputing adds, what it takes: a layer's last product is not needed again.
    again: float = 0.72
    #: How much of what communication takes computation loses, as both want the same units and memory.
    interference: float = 0.55
    #: Seconds that the host needs to launch a layer's forward, eager.
    layer_s: float = 0.4e-3
    #: Seconds at each step that nothing else explains.
    step_s: float = 10e-3
    #: Passes over an optimizer's states, by 1 if each were read and written once.
    optimizer: float = 1.5
    #: Of the exposed time of tensor parallelism, what stays where it is overlapped with its products.
    overlapped_tensor: float = 0.5
    #: Of what 8 bits promise beside 16, as scaling and casting take time.
    float8: float = 0.83


#: Of what products of large matrices reach, what attention does, counted without what a causal mask leaves out: by
#: kernel and compute capability (major). Flash 1 is fitted; 2 and 3 are T. Dao's measurements of heads of 128.
ATTENTION: Mapping[tuple[Kernel, int], float] = {
    (Kernel.FLASH1, 8): 0.36, (Kernel.FLASH1, 9): 0.23,
    (Kernel.FLASH2, 8): 0.67, (Kernel.FLASH2, 9): 0.47,
    (Kernel.FLASH3, 9): 0.80, (Kernel.FLASH3, 10): 0.60,
}  # fmt: skip
#: Where the table is silent.
_ATTENTION = 0.35

RATES = Rates()


def attention(kernel: Kernel, major: int) -> float:
    """Its share of what products of large matrices reach."""
    found = ATTENTION.get((kernel, major))
    if found is not None:
        return found
    return ATTENTION.get((Kernel.FLASH2, major), _ATTENTION)


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has besides its setup.

    ``float8``: products of a layer's matrices are in 8 bits. ``prefetch``: weights are gathered and gradients reduced
    while others are computed; ``balanced``: context ranks have alike shares of a causal mask; ``tensor_overlap``: the
    calls of tensor parallelism run beside its products. ``outside_share``: of what links between nodes could carry,
    what software and other jobs leave. ``slowest``: how many times as long the slowest rank computes; ``jitter``: the
    standard deviation of ranks' times by their mean. ``loading_s``: what a rank waits for data in a step. ``bucket``:
    bytes that DDP and ZeRO-1 and 2 reduce at once.
    """

    kernel: Kernel = Kernel.FLASH2
    float8: bool = False
    prefetch: bool = True
    balanced: bool = True
    tensor_overlap: bool = False
    outside_share: float = 1.0
    slowest: float = 1.0
    jitter: float = 0.0
    loading_s: float = 0.0
    bucket: float = 25 * 2**20
    rates: Rates = RATES

    def __post_init__(self) -> None:
        for name, fine in (
            ("outside_share", 0 < self.outside_share <= 1), ("slowest", 1 <= self.slowest < inf),
            ("jitter", 0 <= self.jitter < inf), ("loading_s", 0 <= self.loading_s < inf),
            ("bucket", 1 <= self.bucket < inf),
        ):  # fmt: skip
            if not fine:
                raise BadValue(f"the condition {name}", why=f"{getattr(self, name)} cannot be")

    def links(self, cluster: Cluster) -> Links:
        """The cluster's, as far as they are left."""
        if self.outside_share == 1.0:
            return cluster.links
        return msgspec.structs.replace(cluster.links, outside=cluster.links.outside * self.outside_share)


#: What is reckoned with where nothing is said.
USUAL = Conditions()
