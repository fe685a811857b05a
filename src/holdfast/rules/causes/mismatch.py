"""SYNC, second half: the ranks of a group met in one place of its sequence with calls that do not fit together."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import COMPARE_SEQUENCES, RESTART

_SAME_LINE = Remedy(
    text="Compare the two calls that the verdict quotes: they stand at the same number in the group's sequence and "
    "should be one and the same call."
)

CAUSES = (
    Cause(
        code="SYNC001",
        name="collective-mismatch",
        summary="Ranks called different collectives, or with different sizes or types, or in a different order.",
        what_happens="Members of a group must issue the same collectives in the same order with fitting arguments. The "
        "back end does not check it: it moves bytes. Depending on the calls this hangs, crashes in native code, or "
        "returns wrong values without an error. What differs first has a name of its own: mismatched-operation, "
        "mismatched-shape, mismatched-dtype; this one stands for the rest and for logs that do not say which.",
        shows_before="Collectives under conditions on the rank or on the rank's own data; a broadcast whose src "
        "differs; buffers sized by local data.",
        shows_during="At one (group, sequence) the boxes hold different signatures. The minority is named; with as "
        "many on either side the verdict says that it is a tie.",
        shows_after="NCCL: watchdog time-outs with different OpType or NumelIn at the same SeqNum, or a crash. gloo: "
        "`preamble.length` and an abort, or a time-out. With DETAIL: `Detected mismatch between collectives on ranks`.",
        known_misses="The reduce operation (SUM against MAX) and the root of a broadcast are not part of the "
        "comparison. Calls that legally differ in size (gather, scatter, all_to_all) are not compared in size. A tie "
        "may be broken towards the innocent side.",
        remedies=(_SAME_LINE, COMPARE_SEQUENCES, RESTART),
        sources=("torch: ProcessGroupWrapper", "MUST (Hilbrich et al., SC'13)", "pytorch/pytorch#137006"),
    ),
    Cause(
        code="SYNC007",
        name="mismatched-shape",
        summary="Ranks entered the same collective with different numbers of elements.",
        what_happens="An all-reduce of 4 elements meets one of 5. NCCL waits for bytes that never come, crashes or "
        "writes past the end; gloo sums parts that do not belong together. On torch 2.13 with gloo a rank got a wrong "
        "sum back, without an error, and the job hung only at the next collective; a larger difference aborted it.",
        shows_before="Tensors sized by the local batch, by local maximum length or by the number of local keys, given "
        "to all_reduce or all_gather without padding; a last batch that is smaller on one rank.",
        shows_during="Same group, sequence and operation, another number of elements on the minority; the line is "
        "known on both sides.",
        shows_after="gloo: `op.preamble.length <= op.nbytes` and SIGABRT on a rank that may be innocent, or a time-out "
        "one collective later. NCCL: a time-out with different NumelIn, or SIGSEGV.",
        known_misses="The collective that hangs is often the one after the mismatch: the boxes still hold the earlier "
        "one, as long as the ring has not wrapped. Equal element counts in another shape do not hurt and are not "
        "reported.",
        remedies=(
            Remedy(
                text="Agree on the size first, pad to it, and cut afterwards: `dist.all_reduce(length, "
                "op=dist.ReduceOp.MAX)`."
            ),
            _SAME_LINE,
            Remedy(
                text="Distrust values reduced since the sizes first differed; go back to an earlier checkpoint.",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("huggingface/accelerate#167", "torch 2.13.0 with gloo, measured"),
    ),
    Cause(
        code="SYNC008",
        name="mismatched-dtype",
        summary="Ranks entered the same collective with tensors of different types.",
        what_happens="One rank reduces float32, another float64, bfloat16 or int: autocast on some ranks, a loss that "
        "is a Python number on one, a loaded checkpoint of another precision. With different widths gloo aborts a "
        "process; with equal widths (float32 and int32) it adds the bits and returns garbage to everybody.",
        shows_before="Tensors made from local Python values without dtype=; casts under a condition on local data.",
        shows_during="Same group, sequence and operation, another dtype on the minority. If gloo has aborted a rank by "
        "then, the boxes of all ranks still hold the two calls.",
        shows_after="`Received data size doesn't match expected size. Is there a distributed collective mismatch in "
        "your code?` and exit status -6 on one rank, often an innocent one; `Connection reset by peer` on the others.",
        known_misses="The rank that aborts is whichever received the longer message; it is named only if nothing else "
        "is known. Equal widths leave no trace but wrong values.",
        remedies=(
            Remedy(
                text="Say the type where the tensor is made: `torch.tensor(value, dtype=torch.float32, device=device)`."
            ),
            _SAME_LINE,
            COMPARE_SEQUENCES,
        ),
        sources=("torch 2.13.0 with gloo, measured", "gloo: gloo/transport/tcp/pair.cc"),
    ),
    Cause(
        code="SYNC009",
        name="mismatched-operation",
        summary="Ranks entered different operations at the same place of the group's sequence.",
        what_happens="One rank broadcasts while the others all-reduce: code paths that differ by rank or by data, or a "
        "call in an exception handler. Each back end pairs them by number: NCCL hangs, gloo hangs until the time-out "
        "or mixes the bytes.",
        shows_before="Branches whose two sides make different collectives; a collective in an except or finally block.",
        shows_during="At one (group, sequence) the minority's operation differs, and neither a test of the rank, nor a "
        "shift by one, nor a loop that was left explains it.",
        shows_after="A time-out on all ranks; NCCL's lines show different OpType at one SeqNum. torch's analyzer calls "
        "whoever differs from the first file `culprit`, which may be everyone else.",
        known_misses="SUM on one rank and MAX on another is the same operation to the back end: no error, no hang, "
        "wrong values. With two ranks there is no majority: both sides are shown, and the verdict says that it is a "
        "tie.",
        remedies=(
            _SAME_LINE,
            Remedy(
                text="Let both sides of the branch make the same collectives, or take the decision on one rank and "
                "broadcast it."
            ),
            COMPARE_SEQUENCES,
            RESTART,
        ),
        sources=("mosaicml/composer#2117", "torch: torch/distributed/flight_recorder"),
    ),
)
