"""ENV002 nccl-plugin-missing."""

from __future__ import annotations

from holdfast.causes.remedies import by_hand, disruptive
from holdfast.core.evidence_sources import EvidenceSource
from holdfast.core.findings import Cause
from holdfast.core.log_signals import LogSignal, Tier

NCCL_PLUGIN_MISSING = Cause(
    code="ENV002",
    name="nccl-plugin-missing",
    summary="An NCCL network or tuner plugin that the job needs is missing or cannot be loaded.",
    what_happens="For some clouds and fabrics (EFA, GPUDirect-TCPX, SHARP) NCCL loads the network "
    "from a separate libnccl-net*.so. If that file or one of its dependencies is missing, NCCL "
    "falls back to its own transports: slow TCP, or no route at all. If NCCL_NET names the "
    "plugin's network, setup fails instead.",
    shows_before="NCCL_NET_PLUGIN or NCCL_NET is set but LD_LIBRARY_PATH contains no such "
    "libnccl-net*.so, or `ldd` reports a missing dependency of the plugin. Usually a plugin "
    "variable differs between hosts.",
    shows_during="With NCCL_DEBUG=INFO: `NET/Plugin` lines, then `Using network Socket` where "
    "another network was expected. The job runs many times too slowly, or all ranks wait in the "
    "first collective.",
    shows_after="`Error: network ... not found` and `ncclInvalidUsage` at the first collective, or "
    "nothing but low throughput. The rank that reports it was only the first to need the plugin.",
    known_misses="`No plugin found (libnccl-net.so), using internal implementation` is normal "
    "where no plugin is needed; only the bandwidth, or NCCL_NET, shows that one was needed. "
    "Without NCCL_DEBUG=INFO nothing is printed.",
    evidence_sources=(EvidenceSource.LOG,),
    signals=(
        LogSignal(
            name="nccl-plugin",
            tier=Tier.NAMED,
            confidence=0.75,
            sentence="an NCCL plugin cannot be loaded",
            patterns=(
                r"[Nn]etwork [\w -]{1,40} not found",
                "Failed to (?:load|initialize|open) .{0,20}(?:plugin|libnccl-)",
                (
                    "NCCL WARN NET/(?:OFI|Plugin) .{0,60}(?:[Ff]ailed to|[Uu]nable to|Couldn't"
                    "|Could not|initialization failed)"
                ),
                r"libnccl-(?:net|tuner)\S{0,200}: (?:undefined symbol|version)",
                (
                    "NET/OFI (?:OFI NCCL failure|Couldn't find any|No eligible providers|Unable "
                    "to find a protocol|EFA provider requires)"
                ),
                "NCCL_NET_PLUGIN.{0,60}not (?:found|load)",
            ),
            examples=(
                "n1:5:9 [0] NCCL WARN Error: network AWS Libfabric not found.",
                (
                    "10.0.0.7: WARN: Function: find_ofi_provider Line: 510: NET/OFI Couldn't "
                    "find any optimal provider"
                ),
            ),
            counter_examples=(
                "n1:5:9 [0] NCCL INFO NET/Plugin: Failed to find ncclCollNetPlugin_v8 symbol.",
                (
                    "libfabric:21:1722447956::core:core:cuda_hmem_dl_init():499<warn> Failed "
                    "to dlopen libnvidia-ml.so. Trying libnvidia-ml.so.1"
                ),
            ),
        ),
    ),
    remedies=(
        disruptive(
            "Show what NCCL loads on one host, and why loading fails.",
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV holdfast run SCRIPT",
        ),
        by_hand(
            "Install the plugin in the image, and add its folder to LD_LIBRARY_PATH on all hosts."
        ),
        disruptive(
            "If the fabric works without the plugin, restrict NCCL to its built-in transports.",
            "unset NCCL_NET; export NCCL_NET_PLUGIN=none",
        ),
    ),
    sources=("NVIDIA/nccl: src/plugin/net.cc", "aws/aws-ofi-nccl"),
)
