"""GPU: devices, their drivers, the links between them, and which rank uses which."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import DRAIN, RESTART

_KERNEL_LOG = Remedy(
    text="Read what the driver said, on the host of the rank that failed first.",
    command="dmesg -T | grep -iE 'NVRM|Xid|nvlink'",
    safety=Safety.AUTOMATIC,
)

CAUSES = (
    Cause(
        code="GPU001",
        name="gpu-hw-fault",
        summary="A GPU or its NVLink is bad, and no Xid or ECC line of the driver says so.",
        what_happens="The device computes wrongly, hangs in a kernel, or loses a link now and then. Programs see an "
        "unknown CUDA error, an out-of-memory error at a barrier that allocates nothing, an illegal access in code "
        "that ran for weeks, or one GPU that is slower than its neighbours.",
        shows_before="Sometimes nothing. Otherwise remapped rows pending, NVLink replay counters, a narrower PCIe "
        "link, or a short matrix-multiply test that is slow or wrong on this device only.",
        shows_during="The same host is involved each time, whatever rank runs there. All ranks stand in one "
        "collective, or the rank on that device sits in a CUDA call (synchronize, item) with an unchanged stack.",
        shows_after="`CUDA error: unknown error`, `unspecified launch failure` or a refused memory copy on one rank; "
        "the others time out. The job runs on other hosts: that is the evidence by which such faults are found.",
        known_misses="From one failure it cannot be told from a bug in a kernel: what speaks is that the fault stays "
        "with the host, not with the rank. CUDA errors are reported later than they happen, so the line in the "
        "traceback is seldom the place.",
        remedies=(
            Remedy(
                text="Run the vendor's diagnosis on the suspect host, with the job stopped.",
                command="dcgmi diag -r 3",
                safety=Safety.DISRUPTIVE,
            ),
            DRAIN,
            RESTART,
        ),
        sources=("bigscience-workshop/bigscience: chronicles of tr1 and tr11", "NVIDIA DCGM user guide: dcgmi diag"),
    ),
    Cause(
        code="GPU002",
        name="gpu-fell-off-bus-xid-ecc",
        summary="The driver itself reports the GPU as lost or corrupted: Xid, uncorrectable ECC, GSP time-out, off the "
        "bus.",
        what_happens="The driver notices that the device does not answer (Xid 79), that its firmware does not (119, "
        "120), that memory has an uncorrectable error (48, 63, 64, 94, 95) or that NVLink failed (74). Contexts on the "
        "device are torn down; every CUDA call of that rank fails from then on.",
        shows_before="Xid lines in the kernel log from earlier jobs, rows that wait for a reset to be remapped "
        "(`nvidia-smi -q -d ROW_REMAPPER`), a device missing from nvidia-smi.",
        shows_during="The rank dies or its CUDA calls fail; nvidia-smi on that host hangs or reports `No devices were "
        "found` for that slot. With Xid 119 the processes that touch the driver go into uninterruptible sleep.",
        shows_after="`NVRM: Xid (PCI:...): 79 ...` in the kernel log with the time of the failure, and on the rank "
        "`CUDA error: uncorrectable ECC error encountered` or `device not found`. Ranks elsewhere report a lost peer, "
        "or time out.",
        known_misses="Xid 13, 31 and 43 are usually the program's own fault (cuda-kernel-fault). In a container the "
        "kernel log is often not readable; then the CUDA message is all there is.",
        remedies=(
            _KERNEL_LOG,
            Remedy(
                text="Reset the device while nothing uses it; where it has fallen off the bus, only a reboot helps.",
                command="nvidia-smi --gpu-reset -i INDEX",
                safety=Safety.DISRUPTIVE,
            ),
            DRAIN,
        ),
        sources=("NVIDIA: XID Errors", "leptonai/gpud: components/accelerator/nvidia/xid"),
    ),
    Cause(
        code="GPU003",
        name="iommu-acs-p2p-hang",
        summary="The peer-to-peer path between GPUs is broken by IOMMU, PCIe ACS, the driver or the topology.",
        what_happens="The driver offers peer-to-peer copies over PCIe, but with the IOMMU translating, or with ACS "
        "routing every transaction through the root complex, they go nowhere or arrive corrupted. NCCL's first "
        "collective then stands still, or sums are wrong.",
        shows_before="IOMMU on (`intel_iommu=on` or `amd_iommu=on` without passthrough) and `ACSCtl: SrcValid+` on the "
        "bridges, with GPUs that talk over PCIe; virtual machines without the proper passthrough.",
        shows_during="All ranks of one host are in the same first collective, all GPUs show full utilisation and low "
        "power, and nothing completes.",
        shows_after="A watchdog time-out at sequence 1 or 2 on every rank of the host, with no error of the network. A "
        "two-GPU copy test that returns wrong data settles it.",
        known_misses="Looks like network-fabric-fault on a single host. That the job runs with NCCL_P2P_DISABLE=1 "
        "shows where the fault is, and is a test, not a cure: it costs bandwidth for ever.",
        remedies=(
            Remedy(
                text="See how the devices are connected, and whether ACS is on along the path.",
                command="nvidia-smi topo -m; lspci -vvv | grep -i acsctl",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Test once without peer-to-peer transfers; if it runs then, mend the path rather than keep this.",
                command="NCCL_P2P_DISABLE=1 holdfast run train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="Switch ACS off on the bridges, or boot with iommu=pt; in a virtual machine ask who runs the host."
            ),
        ),
        sources=("NVIDIA/nccl#2079", "NVIDIA/nccl#257", "NVIDIA NCCL user guide: Troubleshooting, PCI Access Control"),
    ),
    Cause(
        code="GPU004",
        name="cuda-driver-mismatch",
        summary="The driver is too old for the CUDA build, disagrees with its own parts, or a driver service is not "
        "ready.",
        what_happens="A CUDA runtime needs a minimum driver. The user-space library and the kernel module must be of "
        "one version: after an unattended upgrade they are not, until a reboot. On NVSwitch machines CUDA waits for "
        "the Fabric Manager, which has to match the driver as well.",
        shows_before="`nvidia-smi` fails or shows a lower CUDA version than torch was built for; "
        "/proc/driver/nvidia/version differs from the library; nvidia-fabricmanager is not active on an HGX host.",
        shows_during="Nothing hangs: the first CUDA call of every rank on that host fails.",
        shows_after="`The NVIDIA driver on your system is too old`, `Driver/library version mismatch`, `Error 802: "
        "system not yet initialized`, or torch.cuda.is_available() is False and the program goes on with the CPU.",
        known_misses="A job that falls back to the CPU shows nothing but slowness. Error 802 right after boot cures "
        "itself when the Fabric Manager has finished.",
        remedies=(
            Remedy(
                text="Compare kernel module, library and service.",
                command="cat /proc/driver/nvidia/version; nvidia-smi; systemctl status nvidia-fabricmanager",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Reboot after a driver upgrade, and start the Fabric Manager of the same version.",
                command="systemctl enable --now nvidia-fabricmanager",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Use a torch build for the CUDA version that the driver supports, or upgrade the driver."),
        ),
        sources=("pytorch/pytorch#35710", "NVIDIA: CUDA compatibility", "NVIDIA: Fabric Manager user guide"),
    ),
    Cause(
        code="GPU005",
        name="cuda-kernel-fault",
        summary="A kernel failed on the device: a device-side assert, an illegal or a misaligned address.",
        what_happens="An index out of range (a token beyond the vocabulary, a label beyond the classes) or a bug in a "
        "custom kernel faults on the device. The CUDA context is dead; each later call reports the same error, "
        "wherever it stands.",
        shows_before="In the source, little: indices come from data. Comparing the largest token with the rows of the "
        "embedding before training finds the common case.",
        shows_during="The rank fails at some later synchronising call; the others wait in the next collective.",
        shows_after="`device-side assert triggered` with an assertion and the block and thread in front of it, or `an "
        "illegal memory access was encountered`; then c10 frames and, under NCCL, an abort with exit status -6. The "
        "line of the traceback is where it was noticed, not where it happened.",
        known_misses="A memory error of the device gives the same message (gpu-hw-fault); it differs in that it moves "
        "with the host. Out of shared /dev/shm and mismatched collectives can also end in a segmentation fault.",
        remedies=(
            Remedy(
                text="Run it once with synchronous launches: the traceback then shows the right line. Much slower.",
                command="CUDA_LAUNCH_BLOCKING=1 holdfast run --nproc-per-node 1 train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Run the failing batch on the CPU: an index out of range is a plain exception there."),
        ),
        sources=("torch: c10/cuda/CUDAException.cpp",),
    ),
    Cause(
        code="GPU006",
        name="duplicate-gpu",
        summary="Two ranks were put on the same GPU.",
        what_happens="NCCL refuses a communicator in which two ranks of one host hold the same device. It comes from a "
        "device that is never set (all on cuda:0), from the global rank used modulo something, or from "
        "CUDA_VISIBLE_DEVICES that gives several ranks the same single device.",
        shows_before="No torch.cuda.set_device(LOCAL_RANK) before init_process_group and no device_id in it; more "
        "local ranks than visible devices.",
        shows_during="The first collective, often a barrier, fails at once. Until then memory fills on one device and "
        "the others stay empty.",
        shows_after="`Duplicate GPU detected : rank r and rank s both on CUDA device ...` with ncclInvalidUsage, "
        "naming both ranks and the bus address. All ranks of the communicator fail alike.",
        known_misses="gloo does not mind, and shares the device silently: only memory and speed tell. Two jobs on one "
        "device are not seen at all.",
        remedies=(
            Remedy(
                text="Bind each rank to its device before the group is made: "
                "`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`."
            ),
            Remedy(
                text="Start as many processes as there are GPUs.",
                command="holdfast run --nproc-per-node gpu train.py",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("NVIDIA/nccl: src/init.cc", "pytorch/pytorch#129385"),
    ),
    Cause(
        code="GPU007",
        name="invalid-device-ordinal",
        summary="A rank asked for a GPU index that its host or allocation does not have.",
        what_happens="More processes were started on the host than devices are visible, the global rank is used as an "
        "index on the second host, or the scheduler's CUDA_VISIBLE_DEVICES hides devices that the program counts on.",
        shows_before="nproc-per-node greater than the number of visible devices; RANK used where LOCAL_RANK is meant.",
        shows_during="The ranks with the high indices die in the first second; the others wait in the store or in the "
        "first collective.",
        shows_after="`CUDA error: invalid device ordinal` on those ranks alone, with an ordinary traceback; the "
        "survivors report a closed connection or a time-out.",
        known_misses="A device that was lost since boot (gpu-fell-off-bus-xid-ecc) gives the same error on the rank "
        "with the last index.",
        remedies=(
            Remedy(
                text="See what the processes of the job can see.",
                command='echo "$CUDA_VISIBLE_DEVICES"; nvidia-smi -L',
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Ask for as many devices as processes, and use LOCAL_RANK as the index: "
                "`torch.cuda.set_device(int(os.environ['LOCAL_RANK']))`."
            ),
        ),
        sources=("speechbrain/speechbrain#2506", "openai/gpt-oss#267"),
    ),
)
