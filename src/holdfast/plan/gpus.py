"""Specifications of GPUs from their data sheets, and their common names.

``gpus.json`` has one GPU per line; bf16 is supported from compute capability 8.0 on.
``matrix_share`` is the share of the peak that products of large matrices reach: the "maximum
achievable matmul FLOPS" of S. Bekman, "Machine Learning Engineering", compute/accelerator
(https://github.com/stas00/ml-engineering). H100s reach less in training, where power limits their
clock: 0.737 instead of 0.803, fitted to MosaicML's runs. H200, GH200 and Blackwell are assumed to
lose the same, verified only with two runs on H200; H100-96G is Meta's H100 with HBM2e and 500 W
instead of 700 W, so its clock falls in long products: it has the value of torchtitan's runs
(torchtitan, benchmarks/). Unmeasured GPUs have a guess from others of their generation and their
power limits. ``bus`` is the all-reduce rate within a node of GPUs whose switches reduce
(network/README.md of the same work); MI300X can use 48 of a link's 64 GB/s, times 7
(rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

import msgspec

from holdfast.core.errors import UnknownName


class GpuDtype(StrEnum):
    """Dtype of matrix products."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"


class Gpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One GPU. Rates are in operations per second without sparsity, 0 without hardware support.

    ``memory_gib`` is torch's ``total_memory`` in GiB. ``bandwidth``, ``link`` (NVLink or similar,
    0: none), ``pcie`` and ``network`` (per GPU, of the usual node) are bytes per second, per
    direction for links; ``pcie`` is 15.8, 31.5 or 63 GB/s, 16 lanes of the third, fourth or fifth
    generation. ``domain``: the most GPUs that the links connect;
    ``mesh``: each pair has its own link, without a switch, so that a group of fewer GPUs uses only
    some of the links.
    """

    name: str
    memory_gib: float
    fp16: float
    bf16: float
    fp32: float
    bandwidth: float
    capability: tuple[int, int]
    source: str
    tf32: float = 0.0
    fp8: float = 0.0
    link: float = 0.0
    pcie: float = 31.5e9
    network: float = 1.5625e9
    matrix_share: float = 0.87
    bus: float = 0.0
    domain: int = 8
    mesh: bool = False

    def peak(self, dtype: GpuDtype) -> float:
        """Return operations per second; 0 if the dtype needs emulation."""
        return float(getattr(self, dtype.value))

    @property
    def half_dtype(self) -> GpuDtype:
        """Return the 16-bit dtype with hardware support, by compute capability, not by name."""
        return GpuDtype.BF16 if self.bf16 else GpuDtype.FP16

    @property
    def intra_node(self) -> float:
        """Return bytes per second from GPU to GPU in a node, per direction."""
        return self.link or self.pcie


#: By name, from the weakest to the strongest of a vendor.
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in msgspec.json.decode(
        Path(__file__).with_name("gpus.json").read_bytes(), type=tuple[Gpu, ...]
    )
}

#: Short names; of several variants, the one that is rented most.
_ALIASES = {
    "v100": "V100-32G",
    "a100": "A100-80G",
    "a100pcie": "A100-PCIe-80G",
    "h100": "H100-80G",
    "h100pcie": "H100-PCIe-80G",
    "h10094": "H100-96G",
    "h200141": "H200",
    "gh200": "GH200-96G",
    "gh200141": "GH200-144G",
    "b200192": "B200",
    "b200180": "B200",
    "3090": "RTX-3090",
    "4090": "RTX-4090",
    "rtx6000": "RTX-6000-Ada",
    "6000ada": "RTX-6000-Ada",
    "mi250": "MI250X",
    "a10080pcie": "A100-PCIe-80G",
    "h10080pcie": "H100-PCIe-80G",
    "gb200nvl72": "GB200",
    "h100nvl94": "H100-NVL",
}
_NOISE = re.compile(
    r"nvidia|amd|tesla|geforce|instinct|generation|sxm\d?|hbm\d?e?|\d+w\b|[^a-z0-9]"
)
_MEMORY_SUFFIX = re.compile(r"(?<!a1)(\d)\s*gi?b?\b")  # but A10G is a name


def _normalize_name(name: str) -> str:
    return _NOISE.sub("", _MEMORY_SUFFIX.sub(r"\1", name.casefold().replace("_", "-")))


_GPUS_BY_KEY = {_normalize_name(name): gpu for name, gpu in GPUS.items()} | {
    short: GPUS[name] for short, name in _ALIASES.items()
}


def find_gpu(name: str) -> Gpu:
    """Return the GPU by a common name: "a100", "h100_80gb", "NVIDIA A100-SXM4-40GB".

    Raises:
        UnknownName: no such GPU; the message suggests the nearest names.
    """
    gpu = _GPUS_BY_KEY.get(_normalize_name(name[:100]))
    if gpu is None:
        raise UnknownName("GPU", name[:100], GPUS)
    return gpu
