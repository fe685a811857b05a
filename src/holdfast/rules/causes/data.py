"""DATA: what comes into the job: loader workers, files, downloads."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import RESTART

CAUSES = (
    Cause(
        code="DATA001",
        name="dataloader-worker-died",
        summary="A data-loader worker of a rank died, or is dead-locked since its fork.",
        what_happens="Workers are processes of their own. One is killed (memory, /dev/shm, a crash in a decoder), and "
        "the rank raises or waits for a batch that will not come. Or it never worked: fork copied a lock that another "
        "thread held (OpenCV, gRPC, a logging handler, CUDA), and it waits for a thread that does not exist in it. The "
        "rank then waits in its loader, and the others wait for the rank.",
        shows_before="num_workers above 0 with fork, and threads or CUDA in use before the loader starts; timeout=0 "
        "(the default), with which the loader waits for ever; memory that does not allow ranks x workers x prefetch.",
        shows_during="The rank's stack ends in torch/utils/data/dataloader.py, waiting on the queue; among its "
        "children one is missing or a zombie. If all live, a dead-lock is likely: their stacks do not change.",
        shows_after="`DataLoader worker (pid ...) is killed by signal: Killed / Bus error / Segmentation fault`, "
        "`DataLoader worker (pid(s) ...) exited unexpectedly`, or silence. The other ranks report time-outs.",
        known_misses="A worker that is only slow looks like a dead-locked one until it delivers: while its stack or "
        "CPU time changes it is not called dead. Loaders that are not torch's are seen as rank-missing-collective at "
        "their line.",
        remedies=(
            Remedy(text="Let the loader fail instead of waiting: `DataLoader(..., timeout=120)`."),
            Remedy(
                text="Start workers without copying locks: `DataLoader(..., multiprocessing_context='forkserver')`."
            ),
            Remedy(
                text="Run once without workers: what was hidden in them is then a plain exception: `DataLoader(..., "
                "num_workers=0)`.",
                safety=Safety.DISRUPTIVE,
            ),
            RESTART,
        ),
        sources=("pytorch/pytorch#1355", "pytorch/pytorch#75147", "bigscience-workshop/Megatron-DeepSpeed#282"),
    ),
    Cause(
        code="DATA002",
        name="file-io-blocked",
        summary="A rank waits in a file read or write: slow or dead storage, a lock, or a pipe without a partner.",
        what_happens="The main thread is in a system call on a file, a pipe or a lock that does not return: a FIFO "
        "that nobody writes, a file lock that a dead process holds, a full pipe to a logger, storage that is "
        "overloaded. The others wait in the next collective.",
        shows_before="Reads from network storage between two collectives on one rank; file locks on NFS; output that "
        "is piped into something that may stop reading.",
        shows_during="State S, no CPU time, no bytes moved; /proc/<pid>/syscall shows read, write, flock or the like, "
        "and its first argument is the descriptor whose path /proc/<pid>/fd gives. The stack ends at the line that "
        "touches the file.",
        shows_after="Only time-outs on the other ranks. If the storage comes back the rank goes on as if nothing had "
        "been.",
        known_misses="While bytes move, the rank is slow and not blocked. Memory-mapped files block in page faults, "
        "without a system call: only the stack shows them. In state D it is rank-uninterruptible-io; slow checkpoints "
        "have checkpoint-io-slow-timeout.",
        remedies=(
            Remedy(
                text="See which file it is, and who else has it open.",
                command="ls -l /proc/PID/fd; cat /proc/PID/syscall",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Copy the data to local storage before training, or read it in loader workers with a time-out."
            ),
            RESTART,
        ),
        sources=("man 5 proc, /proc/pid/syscall", "NVIDIA/nvidia-resiliency-ext#373"),
    ),
    Cause(
        code="DATA003",
        name="model-download-race",
        summary="Ranks raced on, or failed in, downloading, unpacking or caching the same model or data set.",
        what_happens="All ranks of a host start the same download into one cache. One reads what another has half "
        "written, or removes a lock file that another waits for; a hub limits the rate and some ranks get errors; rank "
        "0 downloads for longer than the others' time-out.",
        shows_before="from_pretrained or load_dataset on every rank with an empty cache; local ranks of several hosts "
        "sharing one network cache; no barrier between the download on rank 0 and the reading elsewhere.",
        shows_during="Ranks sit in urllib, requests, huggingface_hub or a file lock; the others are in the barrier, or "
        "in the first collective.",
        shows_after="JSON or safetensors files `cut short`, `FileNotFoundError` for a cached file on some ranks, HTTP "
        "429, or a time-out at the first barrier. A second start works, for the cache is full by then.",
        known_misses="A download that goes on is a phase with a budget of its own and not called a hang before that is "
        "spent. In a log only the corrupt file is seen, not who wrote it.",
        remedies=(
            Remedy(
                text="Fill the cache before the job, and train offline.",
                command="hf download MODEL && HF_HUB_OFFLINE=1 holdfast run train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Let one rank of each host download first, and the others after a barrier that all reach."),
            Remedy(text="Remove the half-written file from the cache, after checking that no process still writes it."),
        ),
        sources=("GaTech-RL2/EgoVerse#250", "huggingface/transformers-bloom-inference#40"),
    ),
    Cause(
        code="DATA004",
        name="sampler-epoch-not-set",
        summary="A DistributedSampler that shuffles was never told the epoch: all epochs have the same order.",
        what_happens="The sampler shuffles by its seed plus the epoch, which stays 0 until set_epoch is called. "
        "Each rank sees the same samples in the same order in every epoch, and the samples of other ranks never. "
        "Training goes on and comes out worse.",
        shows_before="A loop over epochs around a loop over a loader with a DistributedSampler, and no set_epoch.",
        shows_during="Nothing stops. The first batch of each epoch is the same one.",
        shows_after="Validation gets worse than with one process, and nobody knows why.",
        known_misses="Accelerate, Lightning and Transformers call set_epoch by themselves; loaders that were handed to "
        "them are not meant. Samplers of other libraries are not known.",
        remedies=(
            Remedy(text="Before each epoch: `loader.sampler.set_epoch(epoch)`; holdfast.loop does it by itself."),
            Remedy(text="If the order is to be the same, say so: `DistributedSampler(..., shuffle=False)`."),
        ),
        sources=("torch.utils.data.distributed.DistributedSampler", "huggingface/transformers#4398"),
    ),
    Cause(
        code="DATA005",
        name="file-written-by-all-ranks",
        summary="All ranks write the same file at the same time.",
        what_happens="Every rank opens one path for writing, which cuts the file short under the hands of those that "
        "came first, and each writes from its beginning. What remains is a mixture of several copies, or a good file "
        "where all of them happened to be the same and in step.",
        shows_before="torch.save, open(..., 'w') or json.dump without a test of the rank, at a path that does not name "
        "it; or under a test of the rank within the node, with a file system that all nodes share.",
        shows_during="Nothing, or a burst of writing at once on a slow file system.",
        shows_after="The file cannot be loaded, sometimes: `storage has wrong size`, `invalid header or archive is "
        "corrupted`, JSON that ends in the middle. With one process the same program is fine.",
        known_misses="Files on a disk of each node's own are not shared, and small ones that all ranks write alike "
        "come out right nearly always.",
        remedies=(
            Remedy(text="Let one rank write: `if dist.get_rank() == 0: torch.save(state, path)`."),
            Remedy(text="Or give each rank a file of its own: `f'{folder}/rank{dist.get_rank()}.json'`."),
        ),
        sources=("NVIDIA/apex#886", "bytedance/ibot#15", "DLLXW/baby-llama2-chinese#56"),
    ),
    Cause(
        code="DATA006",
        name="data-not-shared-out",
        summary="Every rank goes over the whole data set, instead of a part of it.",
        what_happens="A loader without a DistributedSampler gives each rank all samples. Where ranks shuffle alike, or "
        "not at all, all of them compute the same gradient of the same batch, and N devices train as fast as one; "
        "where they shuffle differently, an epoch is N epochs long.",
        shows_before="A model in DDP and a DataLoader with neither a sampler nor data of the rank's own.",
        shows_during="The number of steps in an epoch does not fall as ranks are added, and the loss is the same on "
        "all ranks.",
        shows_after="Scaling that looks perfect in samples a second and does nothing for the time to a given loss.",
        known_misses="Data that each rank draws at random are fine without a sampler. Accelerate and Lightning share "
        "out the loaders that they are given.",
        remedies=(
            Remedy(
                text="Share the data out: `DataLoader(dataset, sampler=DistributedSampler(dataset))`, with `set_epoch` "
                "before each epoch and without shuffle=True."
            ),
        ),
        sources=("torch.utils.data.distributed.DistributedSampler", "Parskatt/RoMa#32"),
    ),
    Cause(
        code="DATA007",
        name="ranks-draw-the-same",
        summary="All ranks draw the same random numbers where each should draw its own, and the work is done once for "
        "all of them.",
        what_happens="Every process seeds its generator with the same number, so that sampled images, noise or "
        "roll-outs are the same on all ranks. What is gathered has as many copies of each as there are ranks.",
        shows_before="`torch.manual_seed(seed)` without the rank in it, followed by torch.randn or the like whose "
        "value is gathered.",
        shows_during="Nothing stops. Samples of two ranks are equal.",
        shows_after="A set of samples in which each is there world-size times, and measures (FID, diversity, variance) "
        "that are worse than with one process.",
        known_misses="Weights have to be drawn from the same seed where nothing sends them to the others: seed again, "
        "with the rank, after the model is made.",
        remedies=(
            Remedy(text="After the model is made: `torch.manual_seed(seed + dist.get_rank())`."),
            Remedy(
                text="Or give the draw a generator of its own: `torch.randn(size, "
                "generator=torch.Generator().manual_seed(seed + rank))`."
            ),
        ),
        sources=("torch.manual_seed", "facebookresearch/DiT: sample_ddp.py"),
    ),
)
