"""SYNC: a rank is not where the others are. That they made different calls at one place is in ``mismatch.py``."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import COMPARE_SEQUENCES, RESTART, WATCH

CAUSES = (
    Cause(
        code="SYNC002",
        name="rank-missing-collective",
        summary="A rank never entered the collective that the others wait in.",
        what_happens="A collective completes when every member of the group has entered it. One rank is elsewhere in "
        "Python: asleep, in a lock, in a wait for another process, in work that does not end. The others block inside "
        "the collective until its time-out, 10 minutes by default with NCCL and 30 with gloo. This is the general "
        "cause; where more is known of why the rank is missing, one of its special forms is named instead.",
        shows_before="Little by itself: any call that can block on one rank alone (a lock, a queue, a download, "
        "input()) between two collectives is a candidate.",
        shows_during="The boxes show the others entered and not completed at one (group, sequence), and this rank's "
        "last entry before it. Its process lives and uses little CPU; two stack samples a second apart show the same "
        "line, and that line is the place.",
        shows_after="Every waiting rank reports a time-out of a collective it did enter: `Watchdog caught collective "
        "operation timeout` (NCCL), `Timed out waiting ...ms for recv operation` (gloo). The missing rank reports "
        "nothing. torchrun's table names whoever died first: in 30 of 30 measured hangs it was the healthy rank 0.",
        known_misses="A rank that makes collectives through a library that never passes torch's dispatcher is seen as "
        "missing. Where ptrace is refused and the recorder's own dump fails too, the rank is named without a line. A "
        "rank that would have come back later than the stall limit is called missing while it is only slow, unless its "
        "stack, its CPU time or a phase says so.",
        remedies=(
            Remedy(
                text="Look at the named line, and bound whatever waits there; let the other ranks learn of its failure "
                "instead of waiting."
            ),
            Remedy(
                text="If the rank may take that long, give the work a phase with a budget: `with "
                "holdfast.phase('evaluation', budget='20m'): ...`."
            ),
            RESTART,
        ),
        sources=("pytorch/pytorch#113546", "NVIDIA/nccl#1260", "NVIDIA/nccl#1911", "huggingface/accelerate#4139"),
    ),
    Cause(
        code="SYNC003",
        name="uneven-inputs",
        summary="Ranks had different numbers of batches; the one with fewer left the loop first.",
        what_happens="Each batch costs a fixed number of collectives, so that ranks with more batches wait in the next "
        "gradient all-reduce for a rank that has left the loop. That rank either ends, or enters whatever follows the "
        "loop (a barrier, an evaluation), and then two different collectives meet.",
        shows_before="A loop over a loader without DistributedSampler, a split by ceil(len/n), drop_last=False with a "
        "remainder, filters that drop samples by content, an iterable data set sharded by file.",
        shows_during="One rank's box ends with the last collective of the loop and the end of the script, or it sits "
        "in a collective whose call site lies after the loop in which the others wait.",
        shows_after="The hang comes at the end of an epoch, the same step each time. gloo: `Connection closed by peer` "
        "if the early rank has gone; NCCL: a watchdog time-out on the ranks with more data. The exit status of the "
        "early rank is 0, so that nobody suspects it.",
        known_misses="An exception swallowed in the loop also makes a rank arrive early at its end: where a handler "
        "around the loop's body is seen in the source, rank-skips-collective is named instead. Without the source file "
        "the two cannot be told apart.",
        remedies=(
            Remedy(
                text="Give every rank the same number of batches: `DataLoader(..., sampler=DistributedSampler(dataset, "
                "drop_last=True), drop_last=True)`."
            ),
            Remedy(
                text="Or let ranks that are through shadow the others' collectives (DDP, not for models with "
                "collectives of their own in forward): `with model.join(): ...`."
            ),
            Remedy(
                text="For iterable data agree on the smallest number of batches with one all-reduce before the loop."
            ),
        ),
        sources=("pytorch/pytorch#38174", "pytorch/pytorch#42577", "dmlc/dgl#2539", "torch: generic Join"),
    ),
    Cause(
        code="SYNC004",
        name="rank-guarded-collective",
        summary="A collective is reached by some ranks only, because of a condition on the rank.",
        what_happens="Code under `if rank == 0:` (validate, log, save, download) contains a collective, openly or "
        "inside a library: a broadcast, a metric's compute(), the state dict of a sharded model, the forward of a "
        "wrapped model. The guarded rank waits there; the others go on and wait in the next collective. Both sides "
        "wait for ever, or, if the two calls happen to fit, exchange each other's data.",
        shows_before="In the source: a collective, or a call that contains one, inside a branch on get_rank(), RANK, "
        "is_main_process or the like, without an equal call on the other side.",
        shows_during="At one sequence of the group the boxes show two different calls, and the minority's call site "
        "lies under a test of the rank. The verdict quotes that test.",
        shows_after="A time-out on all ranks, with different operations at the same sequence number; often after a "
        "save or an evaluation. The majority's ranks are blamed because rank 0 is the one that is awaited.",
        known_misses="The test is found by reading the source around the call site: a condition hidden in a caller far "
        "above, in a decorator or in a value such as self.should_log is not seen, and mismatched-operation is named. "
        "If the guarded call has the same signature as the others' next one, nothing stops: see "
        "silent-corruption-by-misaligned-collectives.",
        remedies=(
            Remedy(text="Move the collective out of the branch: all ranks call it, rank 0 alone uses the result."),
            Remedy(
                text="On rank 0 alone use the bare module, whose forward makes no collective (DDP; not FSDP): "
                "`model.module(batch)`."
            ),
            Remedy(text="Saving a sharded model: every rank calls the save; the library lets one of them write."),
            COMPARE_SEQUENCES,
        ),
        sources=(
            "huggingface/trl#1103",
            "pytorch/pytorch#73383",
            "deepspeedai/DeepSpeed#797",
            "neuralmagic/sparseml#1246",
        ),
    ),
    Cause(
        code="SYNC005",
        name="rank-skips-collective",
        summary="A rank left out a collective that the others made, and is one behind ever after.",
        what_happens="An exception is caught with `continue`, a batch is dropped for a NaN, a handler retries: this "
        "rank misses one collective and meets the others' call n with its own call n+1. As long as the signatures "
        "agree nothing fails and wrong values are exchanged; it stops at the first pair that does not fit, or at the "
        "end, when the others make one call more.",
        shows_before="In a loop: `try` around forward and backward with `except ...: continue` (or pass), or a "
        "`continue` under a condition on the rank's own data, with a collective in what is skipped.",
        shows_during="From some sequence on, this rank's calls are those of the others shifted by one: the verdict "
        "shows the left-out call. Where its calls all look alike, the swallowed exception in its loop is what gives it "
        "away.",
        shows_after="A time-out far from the fault, often at the end of the epoch; a loss curve that goes wrong before "
        "it. Sequence numbers differ by one between the rank and the others.",
        known_misses="The ring of a box holds the last calls only: a skip older than that leaves a mismatch, not its "
        "place. If every call of the loop has the same line and signature, the step at which it happened cannot be "
        "known.",
        remedies=(
            Remedy(
                text="Do not skip alone: let all ranks learn of the failure, and skip together: "
                "`dist.all_reduce(failed, op=dist.ReduceOp.MAX)`."
            ),
            Remedy(text="Keep the exception: let it end the rank, and let the launcher restart the job."),
            Remedy(
                text="Distrust what was trained since the skip; go back to a checkpoint from before it.",
                safety=Safety.DISRUPTIVE,
            ),
            RESTART,
        ),
        sources=("NVIDIA-NeMo/Automodel#2468", "pytorch/audio#3749", "ai2cm/ace#850", "NovaSky-AI/SkyRL#1370"),
    ),
    Cause(
        code="SYNC006",
        name="collective-order-inversion",
        summary="Ranks entered collectives of two groups in opposite order and wait for each other in a circle.",
        what_happens="Rank a is in a collective of group A, whose other member b is in one of group B, for which a is "
        "awaited. Nobody is slow, dead or missing, and nobody can go on. It comes from dictionaries and sets iterated "
        "in different order, from collectives issued by several threads or autograd hooks, and from pipelines that mix "
        "groups.",
        shows_before="Two groups with common members, and loops over a set, a dict filled in different order, or "
        "os.listdir; collectives from a background thread.",
        shows_during="The wait-for graph has a cycle: each of its ranks is inside a collective and awaited in another. "
        "The verdict lists the circle with both lines.",
        shows_after="Time-outs in two or more groups at once, each naming members that were busy in the other. torch's "
        "analyzer prints one `missing ranks` block for each group and does not say that they form a circle.",
        known_misses="Two NCCL communicators can also block each other on the device although all ranks call them in "
        "the same order; the graph has no cycle then and the picture is that of network-fabric-fault. A cycle that "
        "runs through a lock or a queue in Python is only seen in part.",
        remedies=(
            Remedy(text="Enter the groups in one order on all ranks: iterate over sorted keys, never over a set."),
            Remedy(text="Issue all collectives from one thread."),
            RESTART,
        ),
        sources=("meta-pytorch/torchrec#4149", "NVIDIA/nccl#195", "NVIDIA/nccl#574", "NVIDIA/nvalchemi-toolkit#143"),
    ),
    Cause(
        code="SYNC010",
        name="new-group-by-some-ranks",
        summary="new_group() was called by some ranks only, or in another order than on the others.",
        what_happens="Every rank of the job has to call new_group() for every group, members or not, in one order. "
        "Calls are numbered, and the number is part of the keys in the store: a rank that creates only its own group "
        "waits there for members that never come, or pairs its first group with another's second.",
        shows_before="new_group() under a test of the rank, or in a loop that skips groups of which the rank is no "
        "member.",
        shows_during="Some ranks are inside new_group, waiting in the store; the others are past it, in an ordinary "
        "collective. The box has the entry into new_group with its line.",
        shows_after="`wait timeout after ...ms, keys: /default_pg/0//...` on the callers, a collective's time-out on "
        "the others. new_group ignores the default group's time-out: by default this takes 30 minutes with gloo, "
        "whatever init_process_group was given.",
        known_misses="A group of the caller alone completes; only the next new_group, whose number then differs, "
        "hangs. With NCCL, groups are made lazily: the wait moves to the first collective in them, and "
        "rank-missing-collective may be named.",
        remedies=(
            Remedy(
                text="Call new_group on all ranks, for all groups, in one order; keep the one that you are in: `groups "
                "= [dist.new_group(members) for members in all_members]`."
            ),
            Remedy(
                text="Or let only the members call, which all of them must do: `dist.new_group(members, "
                "use_local_synchronization=True)`."
            ),
            Remedy(text="Give each new_group its own timeout=...; it takes none from the default group."),
        ),
        sources=("pytorch/pytorch#25390", "torch.distributed.new_group"),
    ),
    Cause(
        code="SYNC011",
        name="p2p-without-partner",
        summary="A send or a receive waits for a partner that never posts its side.",
        what_happens="A recv waits for a send with the same source, destination, tag and group. The partner skipped "
        "it, used another tag, or waits in a blocking send itself: two ranks that both send first, or both receive "
        "first, wait for each other.",
        shows_before="Blocking send and recv in the same order on both sides; a send under a condition that the "
        "receiver does not share; pipeline schedules with an odd stage.",
        shows_during="The box of the waiting rank shows the send or recv, its peer and its line; the peer's box shows "
        "something else, its own receive, or its end.",
        shows_after="gloo: `Timed out waiting ...ms for recv operation to complete` without a rank. torch's flight "
        "recorder does not record send and recv on gloo at all, so that its dump shows only a barrier that somebody "
        "misses.",
        known_misses="A small gloo send completes without its partner, so that a missing recv is noticed later or "
        "never. recv from any source waits for nobody in particular, and the graph has no edge for it.",
        remedies=(
            Remedy(
                text="Post both directions together, so that the order does not matter: `for work in "
                "dist.batch_isend_irecv([send_op, recv_op]): work.wait()`."
            ),
            Remedy(text="Make the condition for sending and for receiving one and the same, known to both ranks."),
            RESTART,
        ),
        sources=("NVIDIA/nccl#479", "NVIDIA/nccl#784"),
    ),
    Cause(
        code="SYNC012",
        name="rank-exits-early",
        summary="A rank left the program with status 0 while the others went on.",
        what_happens="sys.exit(0), os._exit(0) or a return from main on one rank: its patience is used up, its time "
        "budget is over, its part is done. To the launcher this is success. The others wait for it, or lose the "
        "connection to it.",
        shows_before="exit() or return under a condition that each rank evaluates for itself: early stopping on a "
        "local loss, a wall-clock limit, a signal flag.",
        shows_during="The process is gone with status 0, its box ends with `sys.exit` and the line; the others are "
        "inside the next collective.",
        shows_after="gloo's survivors fail within a second with `Connection closed by peer`; NCCL's may wait for the "
        "whole time-out. torchrun lists the survivors as failed and says nothing of the rank that left.",
        known_misses="os._exit gives no chance to record the line; the last collective's line stands for it. A rank "
        "that runs off the end of its script is uneven-inputs, which is what that mostly is.",
        remedies=(
            Remedy(
                text="Decide together: reduce the wish to stop, and let all ranks leave in the same step: "
                "`dist.all_reduce(stop, op=dist.ReduceOp.MAX)`."
            ),
            Remedy(text="Let rank 0 measure the time budget and broadcast the decision."),
            RESTART,
        ),
        sources=("isi-nlp/rtg#11", "pytorch/pytorch#83289"),
    ),
    Cause(
        code="SYNC013",
        name="store-wait",
        summary="A rank waits in the rendezvous store for others, in init_process_group, new_group or a store barrier.",
        what_happens="Making a group exchanges addresses through the job's TCPStore. A rank that arrives waits there "
        "for the keys of the others. If one never started, died before, or makes the groups in another order, it waits "
        "for the whole time-out of the group or store.",
        shows_before="Ranks that start minutes apart (image pulls, cold file systems), a world size larger than the "
        "number of processes that start, set-up work on one rank between process start and init_process_group.",
        shows_during="The box shows the entry into init_process_group or new_group and no collective after it; the "
        "stack ends in the store client. The ranks that are awaited have no such entry yet: they are the ones to look "
        "at.",
        shows_after="`wait timeout after ...ms, keys: ...` or `n/m clients joined`. The last digits of a gloo key are "
        "the number of the rank whose address was missing.",
        known_misses="A rank that has not even started leaves no box; only its absence is reported. Behind the wait "
        "may stand any NET cause.",
        remedies=(
            Remedy(text="Look at the rank that is awaited: is it started, alive, and on its way to the same call?"),
            Remedy(
                text="If a slow start is normal here, allow for it: `dist.init_process_group(backend, "
                "timeout=timedelta(minutes=60))`."
            ),
            WATCH,
        ),
        sources=("torch: torch/csrc/distributed/c10d/TCPStore.cpp", "pytorch/pytorch#88103"),
    ),
    Cause(
        code="SYNC014",
        name="result-used-too-early",
        summary="A collective that runs aside was started, nobody waits for it, and its buffer is used.",
        what_happens="With async_op=True, isend and irecv the call returns a handle at once, and the tensor is filled "
        "or sent later. Without `wait()` the next operation reads what was there before, half of the new, or changes "
        "what is still to be sent; with NCCL the stream of the computation is told of the collective by wait() alone.",
        shows_before="A call with async_op=True whose value goes nowhere, and the tensor in the lines below it.",
        shows_during="Nothing hangs. Values differ from run to run and between ranks, most where the load is high; "
        "replicas drift apart. A process that ends while a message is under way leaves its peer without one.",
        shows_after="A loss that cannot be repeated; right results under CUDA_LAUNCH_BLOCKING=1 or a debugger.",
        known_misses="A small collective mostly ends in time, so that tests pass. What waits for the whole device "
        "(torch.cuda.synchronize) makes up for it.",
        remedies=(
            Remedy(
                text="Keep the handle and wait before the buffer is used: `work = dist.all_reduce(x, async_op=True); "
                "...; work.wait()`."
            ),
            Remedy(text="Where nothing runs in between, leave async_op out."),
        ),
        sources=(
            "torch.distributed: Synchronous and asynchronous collective operations",
            "torch.distributed.isend, irecv: modifying the tensor before the request is done",
        ),
    ),
)
