"""PERF: slow but alive. None of these is a hang by itself; two of them end as one when a time-out strikes."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import DRAIN

CAUSES = (
    Cause(
        code="PERF001",
        name="straggler",
        summary="One rank is slower than the others in every step; nobody hangs, everybody waits for it.",
        what_happens="A collective is as fast as its slowest member. A throttled GPU, a busy core, a slow disk or more "
        "work than the others makes one rank arrive last each time, and all GPUs run at its pace.",
        shows_before="Clocks, temperatures, power limits or PCIe widths that differ from the neighbours'; other jobs "
        "on the host; a rank 0 that logs and evaluates as well.",
        shows_during="Steps advance. The boxes show the same rank entering each collective last, by about the same "
        "time, and it computes in between with a changing stack. holdfast waits for it, and does not call it a hang.",
        shows_after="Throughput below what it was or should be; no error. On the device, all others show high "
        "utilisation, which is their waiting.",
        known_misses="A rank that waits for a peer outside the boxes (storage, a lock) has the same picture. Pipeline "
        "stages are late by design. A straggler that becomes slow enough to cross a time-out is "
        "watchdog-timeout-straggler.",
        remedies=(
            Remedy(
                text="Compare clocks, temperatures and throttle reasons over the hosts.",
                command="nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Look for work that this rank alone does, and move it behind the step or to another process."),
            DRAIN,
        ),
        sources=("ByteRobust, arXiv 2509.16293", "NVIDIA/Megatron-LM#4662", "deepspeedai/DeepSpeed#1617"),
    ),
    Cause(
        code="PERF002",
        name="computing-long",
        summary="A rank computes outside of collectives for long, while the others wait.",
        what_happens="The rank burns CPU: it tokenises, sorts, compiles, builds an index, or runs an endless loop. The "
        "others are in the next collective. If it ends, the job goes on; if not, no tool can know that for certain.",
        shows_before="Heavy work on one rank between two collectives; the first step with torch.compile; data sets "
        "that are prepared on first use.",
        shows_during="The process uses a core or more, its stack changes between samples, or stays inside one native "
        "call that uses CPU. holdfast says so in a line and goes on waiting; it does not call it a hang.",
        shows_after="Nothing, if it ended in time. Otherwise a time-out on the others, which says nothing of the "
        "reason.",
        known_misses="A busy-wait or an endless loop is computing too, and is not called a hang however long it lasts: "
        "the process group's time-out ends it.",
        remedies=(
            Remedy(
                text="See what it computes.", command="py-spy dump --nonblocking --pid PID", safety=Safety.AUTOMATIC
            ),
            Remedy(
                text="If it is meant to take long, say so with a budget: `with holdfast.phase('index', budget='1h'): "
                "...`."
            ),
            Remedy(text="Do the work before the job, or in all ranks' shares."),
        ),
        sources=("pytorch/pytorch#46076", "intelligent-machine-learning/dlrover#1727"),
    ),
    Cause(
        code="PERF003",
        name="watchdog-timeout-straggler",
        summary="A rank was healthy but too slow (slow GPU or host, a long stall), and the others' time-out struck.",
        what_happens="The slow rank would have come. A garbage collection, a page cache that was emptied, a swapped "
        "host, a throttled GPU or a busy file system made it late by more than the limit of the collective, and the "
        "watchdog of the ranks that were in time ended the job.",
        shows_before="A limit that was shortened to find hangs quickly; step times with a long tail.",
        shows_during="The awaited rank computes or moves data, with a changing stack; its lateness grows.",
        shows_after="Watchdog time-outs on the ranks that were in time; the late rank's log goes on after them, or its "
        "box shows it entering the very collective that the others gave up. Before that, throughput falls.",
        known_misses="If the late rank was killed before it could arrive, lateness and absence leave the same log: "
        "only its box, or its log's time stamps, tell.",
        remedies=(
            Remedy(
                text="Give the group more time than the longest healthy stall: `dist.init_process_group(backend, "
                "timeout=timedelta(minutes=30))`."
            ),
            Remedy(text="Look for the reason of the stall on that host: throttling, swap, storage, other jobs."),
            DRAIN,
        ),
        sources=("bigscience-workshop/bigscience: chronicles of tr11", "pytorch/torchtitan#2899"),
    ),
    Cause(
        code="PERF004",
        name="rank0-long-work-timeout",
        summary="One rank, mostly 0, did long legitimate work while the others waited in a collective, until it timed "
        "out.",
        what_happens="Rank 0 evaluates, preprocesses, downloads or saves for longer than the collective may last, and "
        "the others stand in the barrier behind it. Nothing is wrong but the limit, or the place of the work.",
        shows_before="`if rank == 0:` with unbounded work in front of a barrier, under the default limit of 10 (NCCL) "
        "or 30 minutes (gloo).",
        shows_during="Rank 0 is outside of any collective, in the same function for long, with changing frames or "
        "moving bytes; all others are in one barrier. The budgets for checkpoints, evaluation and compilation apply.",
        shows_after="The barrier's time-out on all other ranks after 10 or 30 minutes to the second. Rank 0's log "
        "shows work going on, or the end of it.",
        known_misses="Work that sleeps (waits for a server) is not told from a rank that hangs, unless a phase says "
        "what it is.",
        remedies=(
            Remedy(text="Give the work a phase with a budget: `with holdfast.phase('evaluation', budget='1h'): ...`."),
            Remedy(
                text="Let the others wait in a group whose limit fits: `waiting = dist.new_group(backend='gloo', "
                "timeout=timedelta(hours=2))`."
            ),
            Remedy(text="Share the work over all ranks, or do it before the job starts."),
        ),
        sources=("intelligent-machine-learning/dlrover#1727", "ray-project/ray#22349"),
    ),
    Cause(
        code="PERF005",
        name="collectives-slower-than-before",
        summary="Collectives take longer than in a baseline that was measured on the same kind of machines.",
        what_happens="A link runs at a lower rate or loses packets, a collective takes another way than before "
        "(another version, variable or interface), a processor is slower or shared, or something else uses the link. "
        "Every step of every job on these machines pays for it.",
        shows_before="`holdfast bench --baseline FILE` takes longer than the file says, by more than the tolerance, "
        "and for several sizes.",
        shows_during="Steps take longer, on all ranks alike, and nobody hangs.",
        shows_after="Throughput below what it was; no error.",
        known_misses="A measurement while another job runs is slow for that reason alone: measure again when the "
        "machines are idle. Small messages vary by more than large ones.",
        remedies=(
            Remedy(
                text="Measure again, with nothing else running, and each pair of ranks by itself.",
                command="holdfast bench --pairs --baseline FILE",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Look at the interfaces: rate, errors, drops, and which one is used.",
                command="ip -statistics link; holdfast check",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Compare versions of torch, NCCL and the driver, and variables, with those of the baseline."),
        ),
        sources=("NVIDIA/nccl-tests: NCCL_TESTS_MIN_BW", "deepspeedai/DeepSpeed#1617", "NVIDIA/Megatron-LM#4662"),
    ),
    Cause(
        code="PERF006",
        name="collectives-below-line-rate",
        summary="The fastest collective reaches less than half of what the link between the ranks could do.",
        what_happens="Bandwidth on the bus is defined so that it can be held against the link's own rate. Far below "
        "it, something else is the limit: copies on the processor (gloo over loopback), one connection on a fast "
        "network, small messages, PCIe instead of NVLink, TCP instead of RDMA.",
        shows_before="`holdfast bench` shows the share that was reached.",
        shows_during="Collectives of large tensors take several times as long as bytes by line rate.",
        shows_after="Nothing but the time.",
        known_misses="The rate that the kernel names may be that of a virtual interface, which means nothing. On one "
        "host it is that of a copy in memory, which no collective over sockets comes near to.",
        remedies=(
            Remedy(
                text="See if another way is faster here.",
                command="holdfast bench --way all --max-bytes 64M",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="See which transport NCCL takes: NET/Socket on hosts with InfiniBand is the usual find.",
                command="NCCL_DEBUG=INFO torchrun --nproc-per-node 8 -m holdfast bench",
                safety=Safety.AUTOMATIC,
            ),
        ),
        sources=("NVIDIA/nccl-tests: doc/PERFORMANCE.md",),
    ),
    Cause(
        code="PERF010",
        name="gpu-awaited-each-step",
        summary="The script asks the GPU for a value in every step, and waits until it has computed all that came "
        "before.",
        what_happens="Python only hands work to the GPU and runs ahead of it. `loss.item()`, `float(loss)`, "
        "`loss.cpu()` and `print(loss)` need the number itself, so that Python stands still until the GPU has no work "
        "left, and the GPU then waits for Python. Every rank pays in every step, and all of them for the slowest.",
        shows_before="Such a call in the loop that calls backward, under no test such as `step % 50 == 0`.",
        shows_during="Gaps between kernels in a profile, each behind a cudaStreamSynchronize or cudaMemcpy; "
        "utilisation below full although batches are ready.",
        shows_after="Nothing but the time: steps are slower by the time in which Python prepares the next one.",
        known_misses="Where a step takes long and hands over little, the gap is too short to matter: measure before "
        "and after. A loss that has to be looked at in each step (a limit for NaN) has its price rightly.",
        remedies=(
            Remedy(
                text="Add up on the device, and ask now and then: `total += loss.detach()`, and `if step % 50 == 0: "
                "print(total.item() / 50)`."
            ),
            Remedy(
                text="See where Python waits: `torch.cuda.set_sync_debug_mode('warn')` names each such call.",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=(
            "PyTorch performance tuning guide: Avoid unnecessary CPU-GPU synchronization",
            "torch.cuda.set_sync_debug_mode",
        ),
    ),
    Cause(
        code="PERF011",
        name="precision-without-hardware",
        summary="Numbers are kept in a form for which a GPU has no units: it computes them by many other instructions.",
        what_happens="bf16 needs compute capability 8.0, fp8 needs 8.9. On a GPU below that torch does not refuse: it "
        "converts, multiplies in fp32 and converts back, at a fraction of the rate of fp16's units. In a job with GPUs "
        "of several kinds everybody waits for those that lack it.",
        shows_before="A setup with bf16 on V100, T4 or RTX 20 cards, or with fp8 on A100. The name of a GPU is no "
        "test, and `torch.cuda.is_bf16_supported()` says yes where it is emulated; the compute capability is.",
        shows_during="Steps several times as long as planned, with the GPU busy throughout.",
        shows_after="Nothing but the time: results are right.",
        known_misses="Memory-bound operations lose little by it; a model that is small and waits for data anyway does "
        "not show it.",
        remedies=(
            Remedy(
                text="Take what all GPUs have: fp16 with a gradient scaler below capability 8.0, bf16 from there "
                "on. `holdfast.agree_precision` lets all ranks agree on it and tells each why."
            ),
            Remedy(
                text="See which a GPU has.",
                command="nvidia-smi --query-gpu=name,compute_cap --format=csv",
                safety=Safety.AUTOMATIC,
            ),
        ),
        sources=("NVIDIA: CUDA C++ Programming Guide, compute capabilities", "torch.cuda.is_bf16_supported"),
    ),
    Cause(
        code="PERF012",
        name="tensor-parallel-across-nodes",
        summary="Ranks that share each layer's matrices stand in several nodes, and meet there over the network.",
        what_happens="Tensor parallelism sums up activations several times in each layer, and nothing can be computed "
        "meanwhile. Within a node that goes over NVLink; between nodes over a network that is 10 to 30 times as slow.",
        shows_before="A tensor degree above the number of GPUs in a node, or ranks ordered so that a tensor group does "
        "not stand within one.",
        shows_during="GPUs wait in all-reduce or reduce-scatter in every layer; utilisation is low and even.",
        shows_after="Throughput far below that of the same job with tensor parallelism inside the node.",
        known_misses="Racks whose NVLink joins many nodes (GB200 NVL72) are one node in this sense.",
        remedies=(
            Remedy(
                text="Keep the tensor degree at most at the GPUs of a node, and divide between nodes by pipeline "
                "stages, FSDP, or both."
            ),
            Remedy(
                text="Order ranks so that those of a tensor group are neighbours: the innermost dimension of the mesh."
            ),
        ),
        sources=(
            "D. Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters (SC21), takeaway 1",
        ),
    ),
)
