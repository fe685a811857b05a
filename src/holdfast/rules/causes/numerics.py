"""NUM: the job runs, and its numbers are wrong."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import COMPARE_SEQUENCES

CAUSES = (
    Cause(
        code="NUM001",
        name="mixed-precision-nan",
        summary="NaN or Inf in the loss or the gradients stopped the training.",
        what_happens="A float16 overflow, a learning rate that is too high, a division by a count of zero, bad data, "
        "or one rank with damaged memory makes a NaN; the gradient all-reduce gives it to everybody. With a loss "
        "scaler the scale falls until the program gives up; without one the parameters are NaN after one step.",
        shows_before="float16 without a scaler, log or sqrt of unclamped values, losses averaged over zero tokens.",
        shows_during="No hang, if all ranks decide alike. If a rank that saw a NaN skips the step alone, the others "
        "wait for it: then rank-skips-collective is the verdict.",
        shows_after="`loss is nan`, `Gradient overflow. Skipping step, loss scaler ... reducing loss scale`, `Current "
        "loss scale already at minimum`, on all ranks from the same step on.",
        known_misses="holdfast records sizes and types, not values: a NaN is known only if the program says so "
        "(`loop.report(loss=loss)` does, for all ranks). On which rank it arose cannot be seen after the all-reduce.",
        remedies=(
            Remedy(
                text="Find the first operation that makes it: `torch.autograd.set_detect_anomaly(True)`.",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Use bfloat16, or float32 where it overflows; clip the gradient; lower the learning rate."),
            Remedy(
                text="Check the local loss before the all-reduce, let all ranks learn of it, and skip together; or "
                "report it to `holdfast.loop`, and `holdfast run` goes back and leaves those batches out."
            ),
        ),
        sources=("torch.amp.GradScaler", "pytorch/pytorch#136009"),
    ),
    Cause(
        code="NUM002",
        name="silent-corruption-by-misaligned-collectives",
        summary="Ranks paired collectives that do not belong together, and got wrong values without an error.",
        what_happens="Back ends pair calls by their number in the group and do not compare them. If a rank is one "
        "behind and the next call has the same size, its gradients are added to another step's; SUM meets MAX; int32 "
        "meets float32; 4 elements meet 5. gloo on torch 2.13 returned wrong sums in each of these, and everything "
        "went on.",
        shows_before="All that can make ranks part: exceptions swallowed in the loop, collectives under conditions on "
        "local data, reduce operations chosen at run time.",
        shows_during="The boxes show calls at one sequence whose sites, sizes or types differ while both completed. "
        "Nothing stands still, so that nobody asks.",
        shows_after="A loss that goes wrong from one step on, replicas that differ, and perhaps a time-out at the end "
        "of the epoch, when one rank has a call left over.",
        known_misses="The watcher compares the ranks when the job stands still or dies, not while it runs well. Calls "
        "with equal signature and line cannot be told apart at all.",
        remedies=(
            COMPARE_SEQUENCES,
            Remedy(
                text="Compare the parameters of all ranks now and then: `dist.all_gather_object(sums, [float(p.sum()) "
                "for p in model.parameters()])`."
            ),
            Remedy(
                text="Go back to a checkpoint from before the ranks parted; later ones hold the damage.",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("torch 2.13.0 with gloo, measured", "NVIDIA-NeMo/Automodel#2468"),
    ),
    Cause(
        code="NUM003",
        name="replicas-diverge",
        summary="Ranks that should hold equal state (parameters, scale, step count, learning rate) no longer do.",
        what_happens="State is updated from local data: a scaler that sees overflow on one rank, a schedule driven by "
        "the local loader, buffers that are not broadcast, a random generator used for the model, a damaged value from "
        "one device. No collective fails; each rank trains a slightly different model.",
        shows_before="Decisions from local values that are not reduced; gradients unscaled or checked before they are "
        "averaged; parameters changed outside the wrapper.",
        shows_during="Nothing, until a decision taken from that state makes ranks part: then one of the SYNC causes is "
        "named, and this stands behind it.",
        shows_after="Checkpoints of two ranks that differ; an evaluation that depends on the rank; a jump of the loss "
        "on resume.",
        known_misses="holdfast does not compare values; only the program, or two checkpoints side by side, can.",
        remedies=(
            Remedy(
                text="Compare a checksum of the state over the ranks every so many steps: "
                "`dist.all_gather_object(sums, [float(p.sum()) for p in model.parameters()])`."
            ),
            Remedy(
                text="Set all ranks to one state again, after mending the reason: `for p in model.parameters(): "
                "dist.broadcast(p.data, src=0)`.",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("pytorch/pytorch#136009", "karpathy/nanochat#857", "dylanyunlon/Neuron_SP#2"),
    ),
    Cause(
        code="NUM004",
        name="collective-result-wrong",
        summary="A collective ended well, and elements of its result are not what they have to be.",
        what_happens="Bits were changed on the way: by memory without error correction, a faulty GPU, adapter or cable "
        "whose checksums do not see it, or by a bug of the backend for this size, dtype or alignment. Training goes "
        "on with wrong gradients.",
        shows_before="`holdfast bench` fills the buffers with numbers whose result is known and counts the elements "
        "that differ (`#wrong`).",
        shows_during="Nothing, or a loss that jumps; replicas may come to differ.",
        shows_after="Results that cannot be repeated; NaN without a reason in the model.",
        known_misses="A fault that strikes rarely is not seen in one run: repeat it, for hours where it is suspected.",
        remedies=(
            Remedy(
                text="Repeat it by pairs of hosts, to find the one that is in all wrong ones.",
                command="holdfast bench all --iters 1000",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Take the host out of the pool, and test its memory and GPUs."),
        ),
        sources=("NVIDIA/nccl-tests: verifiable/", "Dixit et al., Silent Data Corruptions at Scale, arXiv 2102.11245"),
    ),
    Cause(
        code="NUM005",
        name="loss-jumped",
        summary="The loss rose far above what it was, and stayed there.",
        what_happens="A learning rate that is too high for where training has come to, a run of bad batches, a moment "
        "of the optimizer that grew too large, or values changed by a fault in the hardware push the parameters away; "
        "the loss does not come back, or takes thousands of steps to.",
        shows_before="Gradient norms that grow over some steps; warm-up that is too short; no clipping of gradients.",
        shows_during="`holdfast.loop` compares the mean loss over all ranks with the median of the last 128 steps: "
        "three steps in a row that lie ten deviations above it (median absolute deviation, at least a twentieth of "
        "the median) end all ranks alike with LossSpike, before the next checkpoint is written.",
        shows_after="`holdfast.errors.LossSpike` on all ranks; a curve of the loss with a step in it.",
        known_misses="A slow divergence is none. A change of the data or of the loss on purpose (a curriculum) looks "
        "the same: give `holdfast.loop(spike=None)`. Nothing is judged in the first 64 steps after a start, so that "
        "a jump that comes right after a resume is not seen.",
        remedies=(
            Remedy(
                text="Go back to a checkpoint from before the jump, and leave those batches out: `holdfast run` does "
                "so by itself where the script uses `holdfast.loop`.",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Clip gradients, lengthen the warm-up, or lower the learning rate or Adam's beta2."),
        ),
        sources=("Chowdhery et al., PaLM, arXiv 2204.02311, section 5.1", "Molybog et al., arXiv 2304.09871"),
    ),
    Cause(
        code="NUM006",
        name="failed-evaluation-counted",
        summary="An evaluation failed, and its failure was counted as a score.",
        what_happens="The evaluation is wrapped in `except Exception: return 0.0`, so that a full disk, a time-out of "
        "a judge or a wrong shape gives a number like any other. Early stopping counts it as no progress, a schedule "
        "lowers the learning rate, and where less is better the worst checkpoint is kept as the best one. With several "
        "ranks it is the number of one of them alone, and they decide differently.",
        shows_before="A wide handler around an evaluation that gives 0, and a comparison with the best so far.",
        shows_during="A score of exactly 0 among others that are far from it; a warning in one rank's log, or nothing.",
        shows_after="Training that ended early, or a best checkpoint from a step at which nothing was measured.",
        known_misses="A score that really is 0 looks the same.",
        remedies=(
            Remedy(text="Let the exception through, or give None and decide nothing by it."),
            Remedy(
                text="With several ranks let all of them learn of the failure first: `dist.all_reduce(failed, "
                "op=dist.ReduceOp.MAX)`."
            ),
        ),
        sources=("torch.optim.lr_scheduler.ReduceLROnPlateau.step", "lightning.pytorch.callbacks.EarlyStopping"),
    ),
    Cause(
        code="NUM007",
        name="mean-of-local-means",
        summary="A metric is the mean of the ranks' means, although ranks counted different numbers of samples.",
        what_happens="Each rank divides its sum by its own count (tokens that are no padding, samples that passed a "
        "filter), and the quotients are summed and divided by the number of ranks. A rank with ten samples weighs as "
        "much as one with a thousand. The number depends on how the data fell to the ranks.",
        shows_before="A division by a local count before all_reduce, and one by the world size after it.",
        shows_during="Nothing.",
        shows_after="The metric changes with the number of ranks, or differs from that of one process on the same "
        "data.",
        known_misses="Where all counts are the same the two are equal, and a number for a log may be near enough.",
        remedies=(
            Remedy(
                text="Reduce the sum and the count, and divide afterwards: `pair = torch.stack([total, count]); "
                "dist.all_reduce(pair); mean = pair[0] / pair[1]`."
            ),
        ),
        sources=("verl-project/verl#1508", "modelscope/ms-swift#10088"),
    ),
)
