"""GPU, continued: devices that work, but hot, slow, worn, taken, or under other numbers than expected."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import DRAIN

CAUSES = (
    Cause(
        code="GPU008",
        name="gpu-throttled",
        summary="A GPU lowers its clocks, because it is too hot or its power supply does not suffice.",
        what_happens="The device protects itself: above its slowdown temperature, or when the board's power brake is "
        "pulled, the clocks fall, sometimes to a fraction. Every rank waits for this one in the next collective, so "
        "that one hot GPU sets the speed of the whole job.",
        shows_before="Active clock event reasons (hw_thermal_slowdown, sw_thermal_slowdown, hw_power_brake_slowdown) "
        "or a temperature near the slowdown threshold on an idle host; a fan or a pump that failed.",
        shows_during="One rank is last in every step (straggler), always on the same host; its GPU draws less power "
        "than the others at full utilisation. The watcher says so while the job runs.",
        shows_after="Nothing in logs: the job was slow, or a time-out struck the slow rank's peers.",
        known_misses="sw_power_cap alone is normal under load and is not reported. A GPU that throttles only under "
        "load looks well before the job.",
        remedies=(
            Remedy(
                text="See why, and since when.",
                command="nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Look after fans, air or water of this host, and its power supplies."),
            DRAIN,
        ),
        sources=("NVIDIA NVML: nvmlClocksEventReasons", "leptonai/gpud: components/accelerator/nvidia/hw-slowdown"),
    ),
    Cause(
        code="GPU009",
        name="gpu-memory-worn",
        summary="A GPU has bad memory that it has set aside, wants to set aside at the next reset, or cannot.",
        what_happens="The driver takes bad rows (Ampere and later) or pages (before) out of use. The replacement takes "
        "effect only when the GPU is reset; until then the bad place may be used. When a bank has no spare rows left, "
        "the replacement fails.",
        shows_before="`Pending: Yes` or `Remapping Failure Occurred: Yes` in `nvidia-smi -q -d ROW_REMAPPER`, "
        "`Pending Page Blacklist: Yes` in PAGE_RETIREMENT; uncorrectable errors in the aggregate count.",
        shows_during="Nothing, until the bad place is read: then Xid 48, 63, 64, 94 or 95, and the rank dies.",
        shows_after="`CUDA error: uncorrectable ECC error encountered` on one rank.",
        known_misses="Corrected errors and rows that were replaced in time are normal in a large fleet and no finding. "
        "GPUs without ECC say nothing of their memory.",
        remedies=(
            Remedy(text="Look at the counters.", command="nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT",
                   safety=Safety.AUTOMATIC),
            Remedy(text="Reset the GPU while nothing uses it; the replacement then takes effect.",
                   command="nvidia-smi --gpu-reset -i INDEX", safety=Safety.DISRUPTIVE),
            Remedy(text="Have the GPU exchanged where a replacement failed, or bad rows come back."),
            DRAIN,
        ),
        sources=("NVIDIA: GPU memory error management (row remapping)", "NVIDIA: Dynamic page retirement"),
    ),
    Cause(
        code="GPU010",
        name="gpu-link-degraded",
        summary="A GPU has lost PCIe lanes, NVLinks, or the direct way to its neighbours: it works, and talks slowly.",
        what_happens="A link trains with fewer lanes after a bad contact or a riser, an NVLink stays down, or peer "
        "access is refused for some pairs. NCCL builds its rings over what is there, so that the whole ring has the "
        "speed of its worst link.",
        shows_before="Current width below the maximum in `nvidia-smi -q` (the link's speed falls at rest and says "
        "nothing then), inactive links in `nvidia-smi nvlink -s`, pairs that differ in `nvidia-smi topo -p2p r`.",
        shows_during="Every collective of the host is slow; `holdfast bench` is below its baseline on groups with this "
        "GPU. NCCL_DEBUG=INFO shows rings over SHM or PHB that are P2P elsewhere.",
        shows_after="Nothing, but for the throughput.",
        known_misses="A slot that has fewer lanes by design looks the same: the maximum is then also lower on some "
        "boards, not on all. Virtual machines hide the bridges.",
        remedies=(
            Remedy(text="Compare the links of all GPUs.", command="nvidia-smi topo -m; nvidia-smi nvlink -s",
                   safety=Safety.AUTOMATIC),
            Remedy(text="Reseat the board or exchange the riser; for NVLinks reset all GPUs of the host together."),
            DRAIN,
        ),
        sources=("NVIDIA NCCL user guide: Troubleshooting", "stas00/ml-engineering: compute/accelerator/nvidia"),
    ),
    Cause(
        code="GPU011",
        name="gpu-in-use",
        summary="Somebody computes on a GPU that the job is to have, or holds its memory.",
        what_happens="A process of an earlier job that was not ended, another user's, or a notebook keeps memory and "
        "computes. The new job runs out of memory on that device, or is slow on it, and nobody sees why.",
        shows_before="Processes in `nvidia-smi`, or memory in use without any: a process of another container, or one "
        "that died and whose context the driver still holds.",
        shows_during="Out of memory on one rank at a size that fits elsewhere, or one rank that is always last.",
        shows_after="`torch.OutOfMemoryError ... GPU 3 has a total capacity of ... of which ... is free`, with a "
        "process that is not yours in the sentence.",
        known_misses="Inside a container only its own processes can be named. A GPU that is shared on purpose (MPS, "
        "a display) is reported too.",
        remedies=(
            Remedy(text="See who computes there.", command="nvidia-smi pmon -c 1; fuser -v /dev/nvidia*",
                   safety=Safety.AUTOMATIC),
            Remedy(text="End what is left of an earlier job by its pid; a zombie goes when its parent is ended."),
        ),
        sources=("pytorch/pytorch#127123", "NVIDIA NVML: nvmlDeviceGetComputeRunningProcesses"),
    ),
    Cause(
        code="GPU012",
        name="gpu-renumbered",
        summary="The numbers of GPUs in the program are not those that nvidia-smi shows.",
        what_happens="CUDA_VISIBLE_DEVICES gives what it leaves the numbers from 0 on: leaving GPU 0 out makes GPU 1 "
        "cuda:0. Where GPUs differ, CUDA also puts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID. A person who "
        "then looks for `GPU 3` of a message looks at another device.",
        shows_before="The variable is set to anything but 0, 1, 2 … in this order; GPUs of several kinds in a host.",
        shows_during="The wrong GPU is looked at, drained, or left out of the next job.",
        shows_after="A fault that moves to another number when a GPU is left out.",
        known_misses="What a scheduler or container hides below CUDA (cgroups, --gpus) renumbers too, and is not seen.",
        remedies=(
            Remedy(text="Count as nvidia-smi does.", command="export CUDA_DEVICE_ORDER=PCI_BUS_ID",
                   safety=Safety.DISRUPTIVE),
            Remedy(text="Name GPUs by UUID where one is to be left out.",
                   command="CUDA_VISIBLE_DEVICES=GPU-UUID,GPU-UUID holdfast run train.py", safety=Safety.DISRUPTIVE),
        ),
        sources=("CUDA C++ Programming Guide: CUDA environment variables", "torch: torch/cuda/__init__.py"),
    ),
    Cause(
        code="GPU013",
        name="gpu-settings",
        summary="A GPU is set so that it cannot be used, is slower than its neighbours, or starts slowly.",
        what_happens="Compute mode prohibited or exclusive, MIG slices, a power limit below the default, error "
        "correction switched off or persistence mode off were set by somebody, or lost at the last boot.",
        shows_before="`nvidia-smi -q` shows it: compute mode, MIG mode, power limits, ECC mode, persistence mode.",
        shows_during="`all CUDA-capable devices are busy or unavailable` at the first CUDA call (compute mode), a rank "
        "that is always last (power limit), or seconds of silence at each start (persistence).",
        shows_after="The first of these as an error of CUDA; of the others nothing.",
        known_misses="Application clocks and limits below the board (a rack's power capping) are not read.",
        remedies=(
            Remedy(text="Set it back, as root, on the host.",
                   command="nvidia-smi -pm 1; nvidia-smi -c DEFAULT; nvidia-smi -pl WATTS", safety=Safety.DISRUPTIVE),
            Remedy(text="Let nvidia-persistenced do it at each boot.", command="systemctl enable nvidia-persistenced"),
        ),
        sources=("NVIDIA: nvidia-smi manual", "NVIDIA: Driver persistence"),
    ),
)  # fmt: skip
