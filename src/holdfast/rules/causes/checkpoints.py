"""CKPT: writing, reading and trusting checkpoints."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import RESTART

CAUSES = (
    Cause(
        code="CKPT001",
        name="checkpoint-io-slow-timeout",
        summary="Writing or reading a checkpoint was slow or stuck (full disk, slow file system), and the others timed "
        "out.",
        what_happens="One rank, mostly rank 0, writes for longer than the limit of the collective in which the others "
        "wait; or the disk is full and the writer retries; or all ranks read one file from overloaded storage at the "
        "start.",
        shows_before="A checkpoint's size divided by the measured speed of the disk near the group's time-out; less "
        "free space than two checkpoints need; saving on rank 0 followed by a barrier.",
        shows_during="The awaited rank's stack is in torch.save, torch.distributed.checkpoint or a file write; bytes "
        "move (slow) or do not (stuck). With a phase `checkpoint` its budget applies before anybody is called stuck.",
        shows_after="`No space left on device` or nothing on the writer, a watchdog time-out on all others, and a "
        "checkpoint that is cut short. The rank in torchrun's table is one that waited.",
        known_misses="A writer inside another library's thread pool shows a waiting main thread only. A checkpoint "
        "that ends just within the limit is not reported; how near it came is not measured.",
        remedies=(
            Remedy(
                text="Look at space and speed of the target.",
                command="df -h CHECKPOINT_DIR; dd if=/dev/zero of=CHECKPOINT_DIR/.speed bs=16M count=64 conv=fsync; rm "
                "CHECKPOINT_DIR/.speed",
                safety=Safety.BY_HAND,
            ),
            Remedy(
                text="Say how long it may take, so that neither the watcher nor a collective cuts it short: `with "
                "holdfast.phase('checkpoint', budget='30m'): ...`."
            ),
            Remedy(text="Write sharded (every rank its part) or to local storage first, and copy in the background."),
        ),
        sources=("NVIDIA/nvidia-resiliency-ext#373", "torch.distributed.checkpoint"),
    ),
    Cause(
        code="CKPT002",
        name="checkpoint-corrupt",
        summary="A checkpoint is damaged: bytes changed, a file is cut short or missing.",
        what_happens="A disk, a copy or a process that died while writing damages the file. A missing or shortened "
        "file is refused by every loader; a flipped bit is accepted silently by torch.load, safetensors, DCP and "
        "DeepSpeed alike (measured, six of six), since none of them checks the payload.",
        shows_before="Checkpoints written in place, without a checksum, and no second one to fall back to.",
        shows_during="Nothing hangs: ranks raise while loading, or training goes on with wrong numbers.",
        shows_after="`PytorchStreamReader failed`, `invalid header`, `EOFError`, on the ranks that read the damaged "
        "shard; or a loss after resuming that is not the one before.",
        known_misses="Without checksums written at saving time nobody can tell damaged numbers from trained ones.",
        remedies=(
            Remedy(
                text="Go back to the checkpoint before it, and move the bad one away instead of deleting it.",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="Write each file beside its place, fsync, checksum, and rename; keep at least two: "
                "`os.replace(temporary, final)`."
            ),
        ),
        sources=("torch 2.13.0, safetensors 0.8, deepspeed 0.19.8, measured", "NVIDIA/nvidia-resiliency-ext#349"),
    ),
    Cause(
        code="CKPT003",
        name="checkpoint-half-written",
        summary="A checkpoint holds parts of two different saves, because one of them was interrupted.",
        what_happens="Saving again under the same name replaces the shards one by one. If a rank dies in between, new "
        "and old shards stand side by side, and DCP and ZeRO load the mixture without a word. DeepSpeed's `latest` "
        "names a new tag before all ranks have written it.",
        shows_before="Saves into a fixed folder that overwrite (the default of DCP in 2.13, with a warning only); no "
        "marker that is written last.",
        shows_during="Nothing to see at the time: the job was killed or stopped in a checkpoint.",
        shows_after="Modification times of the shards in two clusters; after resuming, a loss that is slightly or "
        "badly wrong. No error.",
        known_misses="If all shards have the same size and their times were lost in a copy, only checksums or a "
        "manifest of the save can tell.",
        remedies=(
            Remedy(
                text="Resume from the last checkpoint that was finished before the incident.", safety=Safety.DISRUPTIVE
            ),
            Remedy(
                text="Save every checkpoint into a folder of its own, and write the marker of completeness last, after "
                "a barrier."
            ),
            RESTART,
        ),
        sources=("torch 2.13.0 DCP and deepspeed 0.19.8, measured", "deepspeed: engine.save_checkpoint"),
    ),
)
