"""Achieved rates of training relative to GPU peaks, fitted to published runs; run conditions.

``benchmarks/plan_truth_time.py`` documents the rows used for each fit and the error of the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from math import inf

import msgspec

from holdfast.core.errors import InvalidValue
from holdfast.plan.hardware import Cluster, LinkRates


class AttentionKernel(StrEnum):
    """The flash attention kernel: T. Dao et al., FlashAttention 1 to 3 (2022, 2023, 2024)."""

    FLASH1 = "flash-1"
    FLASH2 = "flash-2"
    FLASH3 = "flash-3"


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Shares refer to the peak, for matrices to ``Gpu.matrix_share`` of it."""

    #: Products of large matrices.
    matrix: float = 0.872
    #: Reads and writes of a product's matrices, which slow small ones down.
    small: float = 1.0
    #: HBM bandwidth of memory-bound operations.
    memory: float = 0.8
    #: Passes over the hidden and the feed-forward size of a layer in forward, 2 bytes per number;
    #: backward has twice as many. Two norms and two sums are 10; a gated layer's activation is 50 %
    #: more.
    hidden_passes: float = 15.5
    inner_passes: float = 2.0
    #: Additional passes in eager mode: RMS norms in several kernels, rotary positions in fp32.
    norm_passes: float = 14.0
    rotary_passes: float = 10.0
    #: Share of the passes that remains with a compiler.
    compiled: float = 0.6
    #: Bytes moved per attention score in forward, if scores are stored.
    score_bytes: float = 10.0
    #: Bytes moved per logit in forward and backward.
    logit_bytes: float = 26.5
    #: Share of forward that full recomputation costs: a layer's last product is not needed again.
    again: float = 0.72
    #: Compute time lost per overlapped communication time, as both share SMs and memory.
    interference: float = 0.55
    #: Seconds of the host to launch a layer's forward in eager mode.
    layer_s: float = 0.4e-3
    #: Unexplained seconds per step.
    step_s: float = 10e-3
    #: Passes over the optimizer states; 1 is one read and one write.
    optimizer: float = 1.5
    #: Exposed share of tensor-parallel communication if it is overlapped with products.
    overlapped_tensor: float = 0.5
    #: Share of the nominal fp8 speedup, as scaling and casting take time.
    float8: float = 0.83


#: Attention efficiency relative to large products, without the masked half, by kernel and compute
#: capability (major). Flash 1 is fitted; 2 and 3 are T. Dao's measurements of heads of 128.
ATTENTION_EFFICIENCY: Mapping[tuple[AttentionKernel, int], float] = {
    (AttentionKernel.FLASH1, 8): 0.36, (AttentionKernel.FLASH1, 9): 0.23,
    (AttentionKernel.FLASH2, 8): 0.67, (AttentionKernel.FLASH2, 9): 0.47,
    (AttentionKernel.FLASH3, 9): 0.80, (AttentionKernel.FLASH3, 10): 0.60,
}  # fmt: skip
#: Default for pairs missing in the table.
_DEFAULT_ATTENTION_EFFICIENCY = 0.35

DEFAULT_RATES = Rates()


def attention_efficiency(kernel: AttentionKernel, major: int) -> float:
    """Return the attention efficiency relative to large products."""
    efficiency = ATTENTION_EFFICIENCY.get((kernel, major))
    if efficiency is not None:
        return efficiency
    return ATTENTION_EFFICIENCY.get((AttentionKernel.FLASH2, major), _DEFAULT_ATTENTION_EFFICIENCY)


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Conditions of a run beside its setup.

    ``float8``: layer products in fp8. ``prefetch``: weights are gathered and gradients reduced
    during compute; ``balanced``: context ranks have equal shares of a causal mask;
    ``tensor_overlap``: tensor-parallel communication overlaps products. ``outside_share``:
    effective share of the inter-node bandwidth. ``slowest``: slowdown factor of the slowest rank;
    ``jitter``: the standard deviation of ranks' times over their mean. ``loading_s``: seconds that
    a rank waits for data per step. ``bucket``: bytes that DDP and ZeRO-1 and 2 reduce at once.
    """

    kernel: AttentionKernel = AttentionKernel.FLASH2
    float8: bool = False
    prefetch: bool = True
    balanced: bool = True
    tensor_overlap: bool = False
    outside_share: float = 1.0
    slowest: float = 1.0
    jitter: float = 0.0
    loading_s: float = 0.0
    bucket: float = 25 * 2**20
    rates: Rates = DEFAULT_RATES

    def __post_init__(self) -> None:
        for name, is_valid in (
            ("outside_share", 0 < self.outside_share <= 1),
            ("slowest", 1 <= self.slowest < inf),
            ("jitter", 0 <= self.jitter < inf),
            ("loading_s", 0 <= self.loading_s < inf),
            ("bucket", 1 <= self.bucket < inf),
        ):
            if not is_valid:
                raise InvalidValue(
                    f"the condition {name}", why=f"{getattr(self, name)} is out of range"
                )

    def links(self, cluster: Cluster) -> LinkRates:
        """Return the cluster's links at their effective rate."""
        if self.outside_share == 1.0:
            return cluster.links
        return msgspec.structs.replace(
            cluster.links, inter_node=cluster.links.inter_node * self.outside_share
        )


#: Default conditions.
DEFAULT_CONDITIONS = Conditions()
