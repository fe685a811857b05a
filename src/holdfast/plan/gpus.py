"""Specifications of GPUs from their data sheets, and their common names.

``matrix_share`` is the share of the peak that products of large matrices reach: the "maximum
achievable matmul FLOPS" of S. Bekman, "Machine Learning Engineering", compute/accelerator
(https://github.com/stas00/ml-engineering). H100s reach less in training, where power limits their
clock: 0.737 instead of 0.803, fitted to MosaicML's runs. H200, GH200 and Blackwell are assumed to
lose the same, verified only with two runs on H200; the H100 of 500 W has the value of torchtitan's
runs. Unmeasured GPUs have a guess from others of their generation and their power limits. ``bus``
is the all-reduce rate within a node of GPUs whose switches reduce (network/README.md of the same
work).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

import msgspec

from holdfast.core.errors import UnknownName

_T = 1e12
_G = 1e9
#: 16 lanes of PCIe per direction, of the third, fourth and fifth generation.
_PCIE = {3: 15.8 * _G, 4: 31.5 * _G, 5: 63.0 * _G}


class GpuDtype(StrEnum):
    """Dtype of matrix products."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU. Rates are in operations per second without sparsity, 0 without hardware support.

    ``memory_gib`` is torch's ``total_memory`` in GiB. ``bandwidth``, ``link`` (NVLink or similar,
    0: none), ``pcie`` and ``network`` (per GPU, of the usual node) are bytes per second, per
    direction for links. ``domain``: the most GPUs that the links connect.
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
    pcie: float = _PCIE[4]
    network: float = 1.5625 * _G
    matrix_share: float = 0.87
    bus: float = 0.0
    domain: int = 8

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


def _nvidia(
    name: str,
    gib: float,
    half: float,
    bandwidth: float,
    capability: tuple[int, int],
    page: str,
    **options: float,
) -> Gpu:
    """Return a GPU; rates in TFLOP/s, bandwidths in GB/s, bf16 from compute capability 8.0 on."""
    rates = {key: options.pop(key) * _T for key in ("fp32", "tf32", "fp8") if key in options}
    speeds = {key: options.pop(key) * _G for key in ("link", "network", "bus") if key in options}
    return Gpu(
        name=name,
        memory_gib=gib,
        fp16=half * _T,
        bf16=half * _T if capability >= (8, 0) else 0.0,
        bandwidth=bandwidth * _G,
        capability=capability,
        source=f"https://{page}",
        pcie=_PCIE[int(options.pop("pcie", 4))],
        domain=int(options.pop("domain", 8)),
        **rates,
        **speeds,
        **options,
    )


_HOPPER = {
    "fp32": 67.0,
    "tf32": 494.7,
    "fp8": 1979.0,
    "link": 450.0,
    "network": 50.0,
    "pcie": 5,
    "bus": 480.0,
}
_AMPERE = {"fp32": 19.5, "tf32": 156.0, "link": 300.0, "network": 25.0}
_BLACKWELL = {"fp32": 75.0, "link": 900.0, "network": 50.0, "pcie": 5, "bus": 835.0}
_SHEETS = "www.nvidia.com/en-us"
_AMD = "https://www.amd.com/en/products/accelerators/instinct"

#: By name, from the weakest to the strongest of a vendor.
GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _nvidia(
            "T4",
            14.6,
            65,
            320,
            (7, 5),
            f"{_SHEETS}/data-center/tesla-t4/",
            fp32=8.1,
            pcie=3,
            matrix_share=0.45,
        ),
        _nvidia(
            "V100-16G",
            15.8,
            125,
            900,
            (7, 0),
            f"{_SHEETS}/data-center/v100/",
            fp32=15.7,
            link=150,
            network=6.25,
            pcie=3,
            matrix_share=0.8,
        ),
        _nvidia(
            "V100-32G",
            31.7,
            125,
            900,
            (7, 0),
            f"{_SHEETS}/data-center/v100/",
            fp32=15.7,
            link=150,
            network=6.25,
            pcie=3,
            matrix_share=0.8,
        ),
        _nvidia(
            "A10",
            22.1,
            125,
            600,
            (8, 6),
            f"{_SHEETS}/data-center/products/a10-gpu/",
            fp32=31.2,
            tf32=62.5,
            matrix_share=0.6,
        ),
        _nvidia(
            "A10G",
            22.1,
            70,
            600,
            (8, 6),
            "aws.amazon.com/ec2/instance-types/g5/",
            fp32=31.5,
            tf32=35,
            matrix_share=0.8,
        ),
        _nvidia(
            "A30",
            23.6,
            165,
            933,
            (8, 0),
            f"{_SHEETS}/data-center/products/a30-gpu/",
            fp32=10.3,
            tf32=82,
            link=100,
        ),
        _nvidia(
            "A40",
            44.4,
            149.7,
            696,
            (8, 6),
            f"{_SHEETS}/data-center/a40/",
            fp32=37.4,
            tf32=74.8,
            link=56.2,
            matrix_share=0.75,
        ),
        _nvidia("A100-40G", 39.4, 312, 1555, (8, 0), f"{_SHEETS}/data-center/a100/", **_AMPERE),
        _nvidia("A100-80G", 79.15, 312, 2039, (8, 0), f"{_SHEETS}/data-center/a100/", **_AMPERE),
        _nvidia(
            "A100-PCIe-80G",
            79.15,
            312,
            1935,
            (8, 0),
            f"{_SHEETS}/data-center/a100/",
            fp32=19.5,
            tf32=156,
            network=12.5,
            matrix_share=0.81,
        ),
        _nvidia(
            "L4",
            22.0,
            121,
            300,
            (8, 9),
            f"{_SHEETS}/data-center/l4/",
            fp32=30.3,
            tf32=60,
            fp8=242,
            matrix_share=0.5,
        ),
        _nvidia(
            "L40S",
            44.4,
            362,
            864,
            (8, 9),
            f"{_SHEETS}/data-center/l40s/",
            fp32=91.6,
            tf32=183,
            fp8=733,
            matrix_share=0.7,
        ),
        _nvidia(
            "RTX-3090",
            23.7,
            71,
            936,
            (8, 6),
            f"{_SHEETS}/geforce/graphics-cards/30-series/rtx-3090-3090ti/",
            fp32=35.6,
            tf32=35.6,
            matrix_share=0.9,
        ),
        _nvidia(
            "RTX-4090",
            23.6,
            165.2,
            1008,
            (8, 9),
            f"{_SHEETS}/geforce/graphics-cards/40-series/rtx-4090/",
            fp32=82.6,
            tf32=82.6,
            fp8=330.3,
            matrix_share=0.9,
        ),
        _nvidia(
            "RTX-6000-Ada",
            47.5,
            364.2,
            960,
            (8, 9),
            f"{_SHEETS}/design-visualization/rtx-6000/",
            fp32=91.1,
            tf32=182.1,
            fp8=728.5,
            matrix_share=0.7,
        ),
        _nvidia(
            "H100-PCIe-80G",
            79.1,
            756,
            2000,
            (9, 0),
            f"{_SHEETS}/data-center/h100/",
            fp32=51,
            tf32=378,
            fp8=1513,
            network=25,
            pcie=5,
            matrix_share=0.65,
        ),
        _nvidia(
            "H100-NVL",
            93.1,
            835,
            3900,
            (9, 0),
            f"{_SHEETS}/data-center/h100/",
            fp32=60,
            tf32=417.5,
            fp8=1670,
            link=300,
            network=25,
            pcie=5,
            matrix_share=0.65,
        ),
        # Meta's: HBM2e and 500 W instead of 700 W, so its clock falls in long products (torchtitan,
        # benchmarks/)
        _nvidia(
            "H100-96G",
            95.0,
            989,
            2400,
            (9, 0),
            "github.com/pytorch/torchtitan/tree/main/benchmarks",
            **_HOPPER,
            matrix_share=0.62,
        ),
        _nvidia(
            "H100-80G",
            79.1,
            989,
            3350,
            (9, 0),
            f"{_SHEETS}/data-center/h100/",
            **_HOPPER,
            matrix_share=0.737,
        ),
        _nvidia(
            "H200",
            139.8,
            989,
            4800,
            (9, 0),
            f"{_SHEETS}/data-center/h200/",
            **_HOPPER,
            matrix_share=0.737,
        ),
        _nvidia(
            "GH200-96G",
            94.5,
            989,
            4000,
            (9, 0),
            f"{_SHEETS}/data-center/grace-hopper-superchip/",
            **_HOPPER,
            matrix_share=0.769,
        ),
        _nvidia(
            "GH200-144G",
            140.0,
            989,
            4900,
            (9, 0),
            f"{_SHEETS}/data-center/grace-hopper-superchip/",
            **_HOPPER,
            matrix_share=0.769,
        ),
        _nvidia(
            "B200",
            178.4,
            2250,
            8000,
            (10, 0),
            f"{_SHEETS}/data-center/dgx-b200/",
            **_BLACKWELL,
            tf32=1125,
            fp8=4500,
            matrix_share=0.712,
        ),
        _nvidia(
            "GB200",
            184.0,
            2500,
            8000,
            (10, 0),
            f"{_SHEETS}/data-center/gb200-nvl72/",
            **_BLACKWELL,
            tf32=1250,
            fp8=5000,
            matrix_share=0.669,
            domain=72,
        ),
        _nvidia(
            "B300",
            268.0,
            2250,
            8000,
            (10, 3),
            f"{_SHEETS}/data-center/dgx-b300/",
            **_BLACKWELL,
            tf32=1125,
            fp8=4500,
            matrix_share=0.721,
        ),
        Gpu(
            name="MI250X",
            memory_gib=64.0,
            fp16=191.5 * _T,
            bf16=191.5 * _T,
            fp32=23.9 * _T,
            bandwidth=1638 * _G,
            capability=(9, 0),
            link=150 * _G,
            network=25 * _G,
            matrix_share=0.7,
            source=f"{_AMD}/mi200/mi250x.html (one of its two dies, which torch sees as a GPU)",
        ),
        # 48 of a link's 64 GB/s are usable, times 7:
        # rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi
        Gpu(
            name="MI300X",
            memory_gib=191.9,
            fp16=1307.4 * _T,
            bf16=1307.4 * _T,
            fp32=163.4 * _T,
            tf32=653.7 * _T,
            fp8=2614.9 * _T,
            bandwidth=5300 * _G,
            capability=(9, 4),
            link=336 * _G,
            bus=315 * _G,
            pcie=_PCIE[5],
            network=50 * _G,
            matrix_share=0.514,
            source=f"{_AMD}/mi300/mi300x.html",
        ),
        Gpu(
            name="MI325X",
            memory_gib=255.9,
            fp16=1307.4 * _T,
            bf16=1307.4 * _T,
            fp32=163.4 * _T,
            tf32=653.7 * _T,
            fp8=2614.9 * _T,
            bandwidth=6000 * _G,
            capability=(9, 4),
            link=336 * _G,
            bus=315 * _G,
            pcie=_PCIE[5],
            network=50 * _G,
            matrix_share=0.604,
            source=f"{_AMD}/mi300/mi325x.html",
        ),
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
