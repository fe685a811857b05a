"""CKPT: what stands in checkpoints whose files are all whole."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety

_BEFORE = Remedy(
    text="Go back to the newest checkpoint that `holdfast ckpt verify` finds nothing in.",
    command="for one in CHECKPOINTS/*; do holdfast ckpt verify $one; done",
    safety=Safety.DISRUPTIVE,
)

CAUSES = (
    Cause(
        code="CKPT009",
        name="checkpoint-numbers-not-finite",
        summary="Weights or optimizer states in a checkpoint are NaN or infinite.",
        what_happens="The loss or a gradient overflowed, or a bad device wrote nonsense, and the step was taken all "
        "the same. Everything that is computed with such a weight is NaN too, so that resuming from this checkpoint "
        "repeats the failure at once. A moment that is infinite holds its weight still for good.",
        shows_before="fp16 without a loss scaler, a learning rate without warm-up, no check of the loss before saving.",
        shows_during="The loss is NaN from some step on, while checkpoints go on being written.",
        shows_after="NaN from the first step after resuming; every loader takes the file without a word.",
        known_misses="Buffers that hold infinities on purpose (attention masks) are told by holding nothing but those "
        "and zeros. A weight that is merely huge is not reported.",
        remedies=(
            _BEFORE,
            Remedy(text="Refuse the step, and the save, while the loss or the norm of the gradient is not finite."),
        ),
        sources=("IEEE 754", "torch.amp.GradScaler", "holdfast.loop"),
    ),
    Cause(
        code="CKPT010",
        name="checkpoint-weights-all-zero",
        summary="A weight, or the part of it that one rank wrote, is nothing but zeros.",
        what_happens="A shard was never filled: memory that was given and not written, a file that kept its length "
        "and lost its pages when the machine went down, a gather in which one rank's part was missing. Converters "
        "do it as well: torch's consolidation of Hugging Face shards writes every tensor without dimensions as 0.0.",
        shows_before="Files that are not synced (fsync) before the job says that they are saved.",
        shows_during="Nothing.",
        shows_after="The model answers badly or not at all; the loss after resuming is far above what it was.",
        known_misses="Weights that begin as zeros and were not trained yet (the second matrix of LoRA, an output "
        "projection) look the same; that is why this is a warning where the whole weight is zero.",
        remedies=(
            _BEFORE,
            Remedy(
                text="Where it was converted, convert it again from the source: `holdfast ckpt convert` reads back "
                "what it wrote and holds it against the source."
            ),
        ),
        sources=("torch 2.13.0: distributed/checkpoint/_consolidate_hf_safetensors.py, measured", "ext4(5): delalloc"),
    ),
    Cause(
        code="CKPT011",
        name="checkpoint-copies-differ",
        summary="Numbers that a checkpoint holds twice are not the same in both places.",
        what_happens="The copies come from two saves (one rank wrote, another was killed before it did), ranks had "
        "drifted apart before they saved, or bytes of one copy changed on the disk. A loader takes one of the two, "
        "which one depends on the rank and the number of ranks.",
        shows_before="Replicas that were never compared; saves into a folder that already holds one.",
        shows_during="Nothing: each copy is a whole file.",
        shows_after="The model after resuming depends on how many ranks load it; tied weights are tied no more; 16-bit "
        "weights are not those of the optimizer's fp32 ones.",
        known_misses="Tied weights are known where the format says so. A checkpoint that holds everything once cannot "
        "tell of it.",
        remedies=(
            _BEFORE,
            Remedy(text="See which ranks drifted, and when: compare replicas while training (`holdfast.loop`)."),
        ),
        sources=("torch 2.13.0 DCP and deepspeed 0.19.8, measured", "deepspeed: mp_rank_00_model_states.pt"),
    ),
    Cause(
        code="CKPT012",
        name="checkpoint-tensor-incomplete",
        summary="The shards of a tensor do not add up to its shape.",
        what_happens="Some of its elements stand in no file, or a shard reaches beyond its edges: a shard is missing, "
        "shards of runs with different numbers of ranks stand in one folder, or an index is of another save.",
        shows_before="A folder that is used again with another number of ranks, without being emptied.",
        shows_during="Loaders that put shards end to end either raise, or take the wrong elements.",
        shows_after="`size mismatch`, a ragged last dimension, or weights that are partly of another run.",
        known_misses="Shards that add up by chance. Pieces of formats in which boxes and flat runs are mixed are not "
        "judged.",
        remedies=(
            Remedy(
                text="Find the shards that are missing, or the folder in which they were left, and copy the whole save "
                "again."
            ),
            _BEFORE,
        ),
        sources=("torch.distributed.checkpoint.metadata", "deepspeed: zero/stage3.py, partitions and padding"),
    ),
    Cause(
        code="CKPT013",
        name="checkpoints-not-alike",
        summary="Two checkpoints that were held against each other do not hold the same.",
        what_happens="Tensors are in one of them alone, have another shape or dtype, or other numbers: another step, "
        "another run, a conversion that lost something, or the same run twice without the same seeds and kernels.",
        shows_before="Nothing; only who compares knows whether they ought to be alike.",
        shows_during="Nothing.",
        shows_after="`holdfast ckpt diff` names what differs, by patterns of names, and by how much.",
        known_misses="Tensors that were renamed are one that is missing and one that is too many, unless the names "
        "differ by what wrappers put in front.",
        remedies=(
            Remedy(text="Where one was converted from the other, convert it again, and without `--no-verify`."),
            Remedy(
                text="Where both are of one run, look at the steps they were saved at.",
                command="holdfast ckpt inspect CHECKPOINT",
            ),
        ),
        sources=("holdfast.facts.checkpoints.examining.comparing",),
    ),
)
