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
    Cause(
        code="CKPT005",
        name="checkpoint-unfinished",
        summary="A folder that was to become a checkpoint was never finished, and is none.",
        what_happens="The job died or was stopped while it saved, or the disk was full. holdfast writes into a folder "
        "called `.staging-…`, and gives it the name of a checkpoint by one rename after all bytes were synced, so that "
        "what it leaves is never taken for one. Other tools write in place and leave a folder that looks whole.",
        shows_before="Nothing. Space for fewer than two checkpoints makes it likely.",
        shows_during="A folder `.staging-…` beside the checkpoints; it is the one that is being written, if any is.",
        shows_after="A `.staging-…` folder that nobody writes, or a `step-…` folder without a manifest.",
        known_misses="A staged folder that is being written by a job that still runs looks the same from outside.",
        remedies=(
            Remedy(
                text="Nothing: the next save of a job with this folder removes it, and loading passes over it.",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="If it takes space and no job writes here, remove it.", command="rm -r CHECKPOINTS/.staging-*"),
        ),
        sources=("holdfast.manifest", "rename(2), fsync(2)"),
    ),
    Cause(
        code="CKPT006",
        name="checkpoint-of-another-model",
        summary="The checkpoint was saved by another model, or with another optimizer, than the one it is loaded into.",
        what_happens="Names or shapes of parameters changed between the saving and the loading: another configuration, "
        "a layer more or less, a wrapper that changes names, other groups of parameters, or simply the folder of "
        "another run.",
        shows_before="The configuration that stands in the checkpoint differs from the job's.",
        shows_during="Every rank raises while loading; `holdfast.Checkpoint` names each difference and takes nothing.",
        shows_after="`CheckpointMismatch` with the names; torch's `Missing key(s) in state_dict` or `size mismatch`.",
        known_misses="Two models with the same names and shapes cannot be told apart.",
        remedies=(
            Remedy(text="Give the job the configuration that the checkpoint was saved with, or another folder."),
            Remedy(
                text="Where only a part is to be taken (a new head on an old body), say so: "
                "`checkpoint.load(strict=False)` takes what both have."
            ),
        ),
        sources=("torch.nn.Module.load_state_dict", "torch.distributed.checkpoint, default_planner.py"),
    ),
    Cause(
        code="CKPT007",
        name="checkpoint-of-newer-version",
        summary="The checkpoint was written by a newer holdfast, in a form that this one does not know.",
        what_happens="Part of the cluster, or a job that was moved, has an older installation than the one that saved.",
        shows_before="Hosts or images with different versions of holdfast.",
        shows_during="Loading passes over the checkpoint and says so; a folder that was asked for by name is refused.",
        shows_after="`it is of the form 'holdfast/checkpoint/…'`; a job that goes on from an older one, or anew.",
        known_misses="The tensors themselves are in torch's form: a torch too old for them fails in its own words.",
        remedies=(
            Remedy(
                text="Install the same holdfast everywhere, at least as new as the one that saved.",
                command="pip install --upgrade holdfast",
                safety=Safety.BY_HAND,
            ),
            Remedy(
                text="The tensors can be read without holdfast: `torch.distributed.checkpoint.load(state, "
                "checkpoint_id=FOLDER)`."
            ),
        ),
        sources=("holdfast.manifest",),
    ),
    Cause(
        code="CKPT008",
        name="checkpoint-runs-code",
        summary="A checkpoint is loaded in a way that runs whatever code its file contains, on every rank.",
        what_happens="A file of torch.save is a pickle, and a pickle may name any function to be called while it is "
        "read. With `weights_only=False` torch calls it. Who can write to the folder, or to the page from which "
        "the file was downloaded, then has the rights of the job on all of its hosts.",
        shows_before="`torch.load(..., weights_only=False)`; or no word of it and torch older than 2.6, whose default "
        "that was.",
        shows_during="Nothing: the weights are right as well.",
        shows_after="Nothing in the job's own output. Processes, connections and files that the script did not make.",
        known_misses="A file that only the job itself can write is no danger, and nobody sees that from the source. "
        "What a library loads within itself is not looked at.",
        remedies=(
            Remedy(
                text="Save state dicts and plain values, and load them with `torch.load(path, weights_only=True)`; a "
                "class that has to be in the file is allowed by name: `torch.serialization.add_safe_globals([Config])`."
            ),
            Remedy(
                text="See what a file asks for before it is loaded: "
                "`torch.serialization.get_unsafe_globals_in_checkpoint(path)`."
            ),
            Remedy(text="Weights that others publish: take them as safetensors, which holds no code."),
        ),
        sources=("torch.load: weights_only", "pytorch/pytorch#86812", "pytorch/pytorch#31875"),
    ),
)
