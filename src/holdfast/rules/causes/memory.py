"""MEM: memory of the devices and of the hosts, shared memory and locked memory."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import RESTART

CAUSES = (
    Cause(
        code="MEM001",
        name="gpu-oom-all-ranks",
        summary="The workload does not fit into GPU memory; the ranks run out of it alike.",
        what_happens="Parameters, gradients, optimizer state, activations and buffers together exceed the device. "
        "Every rank allocates the same, so all fail at the same place within moments: at model creation, in the first "
        "backward, or with the first long sequence.",
        shows_before="An estimate of the memory per rank near or above that of the device. A job that fitted an 80 GB "
        "card moved to a 40 GB one; sharding configured after the model was made, so that each rank holds all of it.",
        shows_during="Nothing hangs: the ranks raise within seconds of each other, with the same operation last in the "
        "box.",
        shows_after="torch.OutOfMemoryError (`CUDA out of memory. Tried to allocate ...`) on several ranks. The "
        "allocation that failed may be small: it is the last drop, not the cause. torchrun prints one rank in its "
        "table.",
        known_misses="If the launcher ends the others quickly, the log holds only one rank's error and it looks like "
        "oom-on-one-rank-then-timeout. The box of each rank holds its own last exception and settles it.",
        remedies=(
            Remedy(
                text="Smaller micro-batch, activation checkpointing, or sharding of parameters and optimizer state."
            ),
            Remedy(
                text="Reduce fragmentation, where `reserved but unallocated` in the message is large.",
                command="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="Make the sharding configuration before the model (DeepSpeed ZeRO-3, FSDP on the meta device)."
            ),
        ),
        sources=("torch: CUDA semantics, memory management",),
    ),
    Cause(
        code="MEM002",
        name="oom-on-one-rank-then-timeout",
        summary="One rank alone runs out of memory; the others wait for it, then lose their connection or time out.",
        what_happens="Inputs differ over ranks: one gets the longest sequence, more experts' tokens or the rank-0 "
        "extras (logging, the gathered state dict). It raises. If the exception ends the process, the others report a "
        "lost peer; if the program catches it and skips the batch, this rank is one collective behind and the job "
        "hangs.",
        shows_before="An `except torch.OutOfMemoryError` around the step with collectives inside or after it; batches "
        "whose size depends on the data; retries that halve the batch on one rank only.",
        shows_during="The rank has raised, which its box records with the line, or sits in its handler; the others are "
        "inside the next collective.",
        shows_after="One rank with `CUDA out of memory` (or MemoryError, or the CPU allocator's `can't allocate "
        "memory`), and many with `Connection closed by peer` or a watchdog time-out. The many are consequences.",
        known_misses="A handler that swallows the error and prints nothing leaves no text: then the skipped collective "
        "is seen (rank-skips-collective), and why it was skipped is not.",
        remedies=(
            Remedy(
                text="Decide together: let all ranks learn of the shortage before any of them skips or retries: "
                "`dist.all_reduce(failed, op=dist.ReduceOp.MAX)`."
            ),
            Remedy(
                text="Bound the input: cap the tokens per batch, or sort the longest sequences into the first step."
            ),
            RESTART,
        ),
        sources=("mosaicml/composer#2117", "mosaicml/composer#3016", "mosaicml/composer#3510"),
    ),
    Cause(
        code="MEM003",
        name="host-oom-killed",
        summary="Host memory, or the cgroup's limit on it, was exceeded, and the kernel killed the process with "
        "SIGKILL.",
        what_happens="Loader workers times ranks, cached data sets, checkpoints assembled in host memory or pinned "
        "buffers exceed the limit. The out-of-memory killer picks a process of the cgroup, often a rank or a loader "
        "worker, and ends it without a chance to say anything.",
        shows_before="memory.max of the cgroup little above what one rank uses times the ranks; `--mem` of the "
        "scheduler smaller than the data that every rank caches.",
        shows_during="memory.current near memory.max; memory.pressure high; ranks in reclaim, slow before they die.",
        shows_after="Exit status -9 (137 from a shell or container) and the counter oom_kill in the cgroup's "
        "memory.events, or the kernel's `Out of memory: Killed process ...`, or the scheduler's OUT_OF_MEMORY. "
        "torchrun shows -9 and no reason; the survivors' traces about a closed connection are longer.",
        known_misses="Decided by the counters: -9 with a raised counter is this, without one it is rank-killed. A "
        "counter counts for the whole cgroup, so that a loader worker killed at the same time can be taken for the "
        "rank. Kernel logs are mostly not readable from a container.",
        remedies=(
            Remedy(
                text="Read the counters of the job's cgroup.",
                command="cat /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory.max",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Fewer loader workers or a smaller prefetch factor; a memory-mapped data set instead of copies."
            ),
            Remedy(text="Ask the scheduler for more memory per task, and count the loader workers in."),
            RESTART,
        ),
        sources=("Linux: Documentation/admin-guide/cgroup-v2.rst, memory.events", "pytorch/pytorch#13246"),
    ),
    Cause(
        code="MEM004",
        name="shm-too-small",
        summary="The shared memory in /dev/shm is too small for what loader workers and NCCL put there.",
        what_happens="Loader workers hand batches over through /dev/shm, and NCCL's shared-memory transport keeps its "
        "buffers there. Containers get 64 MB by default. A write beyond the end is a bus error (SIGBUS) in whoever "
        "writes.",
        shows_before="`df /dev/shm` shows 64 MB, or less than workers x prefetch x batch; left-over files of dead jobs "
        "in it.",
        shows_during="The file system /dev/shm is full. holdfast itself says that its boxes went to the run's folder "
        "instead.",
        shows_after="`DataLoader worker (pid ...) is killed by signal: Bus error`, `unable to write to file "
        "</torch_...>`, `failed to extend /dev/shm/nccl-...`, or a plain SIGBUS (-7) of a rank.",
        known_misses="The worker's message can look like dataloader-worker-died; the bus error or `No space left on "
        "device` beside a /dev/shm path decides. By the time someone looks, the files are gone and it is empty again.",
        remedies=(
            Remedy(
                text="Give the container more, or the whole of the host with --ipc=host.",
                command="docker run --shm-size=32g IMAGE",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="In Kubernetes mount an emptyDir of medium Memory at /dev/shm: `emptyDir: {medium: Memory, "
                "sizeLimit: 32Gi}`.",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Until then: fewer workers, or none (num_workers=0)."),
        ),
        sources=("NVIDIA/nccl#290", "NVIDIA/nccl#342", "torch.utils.data: multi-process data loading"),
    ),
    Cause(
        code="MEM005",
        name="memlock-limit",
        summary="RLIMIT_MEMLOCK is too low to register memory for RDMA.",
        what_happens="InfiniBand and RoCE adapters need pinned memory. When the limit on locked memory is small, "
        "registering the buffers fails with `Cannot allocate memory`, although plenty is free.",
        shows_before="`ulimit -l` is a number of kilobytes and not unlimited, as the job sees it: services, ssh and "
        "the scheduler's daemon each have limits of their own.",
        shows_during="Nothing hangs long: the first collective over the adapter fails.",
        shows_after="`Call to ibv_reg_mr failed with error Cannot allocate memory` or ibv_create_cq with the same, and "
        "`unhandled system error`, on all ranks of the hosts with the low limit.",
        known_misses="Real shortage of memory gives the same errno; `ulimit -l` inside the job decides.",
        remedies=(
            Remedy(
                text="Raise the limit where the job starts.", command="ulimit -l unlimited", safety=Safety.DISRUPTIVE
            ),
            Remedy(
                text="Make it permanent: limits.conf, LimitMEMLOCK=infinity of the scheduler's daemon, --ulimit of "
                "docker.",
                command="docker run --ulimit memlock=-1 IMAGE",
                safety=Safety.BY_HAND,
            ),
        ),
        sources=("NVIDIA/nccl-tests#206", "openucx/ucx#8229", "NVIDIA NCCL user guide: Troubleshooting, InfiniBand"),
    ),
    Cause(
        code="MEM008",
        name="gpu-memory-fragmented",
        summary="torch had enough free GPU memory in all, but no piece of it was large enough.",
        what_happens="torch's allocator takes segments from the driver and cuts them up. Tensors of many sizes "
        "leave gaps between those that live on; a request that is larger than the largest gap fails, although the gaps "
        "together would hold it. Before it gives up it returns segments that are empty as a whole, so that what is "
        "still reserved and unallocated lies between living tensors, or waits for another stream.",
        shows_before="Sequence lengths or image sizes that change from batch to batch, evaluation between training "
        "steps, an allocator without expandable segments.",
        shows_during="`torch.cuda.memory_reserved()` stays far above `memory_allocated()`; "
        "`torch.cuda.memory_stats()['num_alloc_retries']` rises, and steps with a retry take longer.",
        shows_after="`CUDA out of memory` with `reserved by PyTorch but unallocated` and what the driver had free "
        "together larger than what was asked for. In a memory snapshot: no idle block as large as the request.",
        known_misses="The message does not tell the largest piece: memory in pools of CUDA graphs or of other streams "
        "counts as unallocated, too, and expandable segments do not join it. A snapshot decides.",
        remedies=(
            Remedy(
                text="Let segments grow, so that gaps are joined (torch 2.1 and later).",
                command="export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Bring batches to few sizes: pad to multiples, or sort by length into buckets."),
            Remedy(text="Empty the cache where the work changes (after evaluation): torch.cuda.empty_cache()."),
        ),
        sources=(
            "torch: c10/cuda/CUDACachingAllocator.cpp, release_cached_blocks",
            "torch: CUDA semantics, optimizing memory usage with PYTORCH_CUDA_ALLOC_CONF",
        ),
    ),
    Cause(
        code="MEM009",
        name="gpu-memory-taken-by-others",
        summary="Other processes hold the memory of this GPU that the job was to have.",
        what_happens="The GPU has room for one of them. It may be a rank of an earlier run that did not end, another "
        "user's job, an inference server, or the job's own other ranks, each of which has a context (some 0.5 GiB) or "
        "a copy of the checkpoint on GPU 0 because its device was set too late.",
        shows_before="nvidia-smi lists processes on the GPU before the job starts; `torch.load` without map_location, "
        "no torch.cuda.set_device(LOCAL_RANK).",
        shows_during="nvidia-smi shows more memory in use than torch has reserved; several processes of the job on "
        "GPU 0.",
        shows_after="`CUDA out of memory` with `Process N has ... memory in use` for others than this process, and "
        "little `allocated by PyTorch`.",
        known_misses="In a container the driver does not tell of processes outside of it, and numbers are those of "
        "the host: torch then lists this very process among the others. What MIG or MPS set aside is not listed.",
        remedies=(
            Remedy(
                text="See who holds it; end what an earlier run has left.",
                command="nvidia-smi --query-compute-apps=gpu_uuid,pid,process_name,used_memory --format=csv",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Where they are ranks of this job: set each one's device before anything touches CUDA, and load "
                'checkpoints with map_location="cpu".'
            ),
            Remedy(text="Ask the scheduler for whole GPUs, or put the job on one that is free."),
        ),
        sources=("torch: c10/cuda/CUDACachingAllocator.cpp, reportProcessMemoryInfo",),
    ),
    Cause(
        code="MEM010",
        name="tensors-kept-over-steps",
        summary="Tensors of earlier steps stay alive, so that each step needs more GPU memory than the one before.",
        what_happens="Something holds on to a tensor of each step: a sum of losses without `.item()` or `.detach()` "
        "keeps the whole graph behind it, a list of outputs or metrics keeps the outputs, a hook or a cache grows. "
        "Memory rises by the same amount each step until a request fails, anywhere.",
        shows_before="`total += loss`, `losses.append(loss)`, `outputs.append(output)` in the loop without `.item()` "
        "or `.detach()`; retain_graph=True; a cache of tensors without a bound.",
        shows_during="`torch.cuda.memory_allocated()` at the same place of each step rises steadily.",
        shows_after="`CUDA out of memory` after many good steps, at a place that is not the largest. In a memory "
        "snapshot: activations that were made before the optimizer's last steps and are still held.",
        known_misses="Seen in a snapshot alone, and there only where its events reach back over three steps and the "
        "optimizer allocates something in each. Growth because inputs grow (longer sequences, a curriculum) is none.",
        remedies=(
            Remedy(text="Keep numbers, not tensors: `total += loss.detach()` or `.item()` every so many steps."),
            Remedy(text="Move what is collected to the host at once: `outputs.append(output.detach().cpu())`."),
            Remedy(
                text="Record a snapshot over a few steps, and look who holds the oldest blocks: "
                "torch.cuda.memory._record_memory_history(max_entries=100_000)."
            ),
        ),
        sources=("torch: Frequently Asked Questions, my model reports cuda runtime error: out of memory",),
    ),
)
