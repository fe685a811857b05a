"""CONF: settings and wrappers that ask for something that cannot work."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety

CAUSES = (
    Cause(
        code="CONF001",
        name="comm-config-bad",
        summary="A communication setting is wrong: a NCCL variable, an overlap option or the like.",
        what_happens="An algorithm or protocol that does not exist here, a forced transport, a communication-overlap "
        "option of a framework, a buffer or channel count out of range. Set-up fails, collectives hang, or they run at "
        "a fraction of the speed.",
        shows_before="Variables that force something: NCCL_ALGO, NCCL_PROTO, NCCL_NET, NCCL_P2P_LEVEL, NCCL_IB_*. "
        "Values that are read otherwise than meant: `8M` is 8, a leading 0 is octal, an unknown NCCL_ALGO fails since "
        "2.24. Settings that differ between hosts.",
        shows_during="All ranks stand in the same early collective and nothing is wrong with any of them; or the job "
        "runs and is slow.",
        shows_after="A watchdog time-out at a small sequence number on all ranks, or ncclInvalidUsage. The rank that "
        "reports first is arbitrary.",
        known_misses="By its picture this is network-fabric-fault: same collective, nobody missing. Only removing the "
        "setting tells. Switching P2P off or forcing tree `to be safe` is itself such a setting and costs bandwidth.",
        remedies=(
            Remedy(
                text="Start once with the forced settings removed; NCCL chooses by topology.",
                command="env -u NCCL_ALGO -u NCCL_PROTO -u NCCL_P2P_DISABLE -u NCCL_P2P_LEVEL -u NCCL_NET holdfast run "
                "train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="See which variables NCCL takes.",
                command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=ENV holdfast run train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Switch off the framework's overlap of communication, to find out whether it is that."),
        ),
        sources=("NVIDIA NCCL user guide: Environment variables",),
    ),
    Cause(
        code="CONF002",
        name="unused-parameters-ddp",
        summary="DistributedDataParallel waits for gradients of parameters that took no part in the loss.",
        what_happens="DDP reduces a bucket when all of its parameters have their gradient. A parameter that the "
        "forward pass did not use never gets one: the reduction of the iteration is not finished and the next forward "
        "raises. If the parameter is unused on some ranks only, these raise or wait alone.",
        shows_before="Branches in forward that depend on the input, auxiliary heads that the loss leaves out, frozen "
        "layers that are frozen after wrapping, a model wrapped twice.",
        shows_during="Usually an exception at the second iteration, not a hang. With data-dependent branches the ranks "
        "hang in DDP's all-reduce: their boxes show different buckets or one all-reduce less.",
        shows_after="`Expected to have finished reduction in the prior iteration before starting a new one` and the "
        "indices of the parameters, on every rank that left some unused.",
        known_misses="With find_unused_parameters=True the error is gone, and a data-dependent branch may still give "
        "ranks different collectives. A static graph that changes is reported with nearly the same words.",
        remedies=(
            Remedy(
                text="Let torch name the parameters.",
                command="export TORCH_DISTRIBUTED_DEBUG=INFO",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="If the unused parameters are intended, say so (costs a walk over the graph each iteration): "
                "`DistributedDataParallel(model, find_unused_parameters=True)`."
            ),
            Remedy(text="Better: use every parameter in the loss on every rank, or freeze it before wrapping."),
        ),
        sources=("torch: torch/csrc/distributed/c10d/reducer.cpp", "torch.nn.parallel.DistributedDataParallel"),
    ),
    Cause(
        code="CONF003",
        name="ddp-param-ready-twice",
        summary="DistributedDataParallel saw the gradient of one parameter become ready twice in an iteration.",
        what_happens="A parameter is used in several re-entrant backward passes (activation checkpointing with "
        "use_reentrant=True over shared layers), outside the wrapped forward, or in two branches whose graphs both "
        "reach it. DDP counts one gradient for each parameter and refuses the second.",
        shows_before="use_reentrant=True together with find_unused_parameters=True or tied weights; parameters used "
        "outside the module's forward.",
        shows_during="No hang: the backward pass of the first iteration raises, on all ranks that run the same code.",
        shows_after="`Expected to mark a variable ready only once`, with the parameter's index, or its name under "
        "TORCH_DISTRIBUTED_DEBUG=INFO.",
        known_misses="If only some ranks take the second branch, they raise and the others report lost peers; the "
        "message on the raising ranks is then the root.",
        remedies=(
            Remedy(
                text="Use the non-reentrant form of checkpointing: `torch.utils.checkpoint.checkpoint(block, x, "
                "use_reentrant=False)`."
            ),
            Remedy(
                text="If the graph is the same in every iteration, say so: `DistributedDataParallel(model, "
                "static_graph=True)`."
            ),
            Remedy(text="Detach the shared branch where its gradient is not wanted twice."),
        ),
        sources=("torch: torch/csrc/distributed/c10d/reducer.cpp", "torch.utils.checkpoint"),
    ),
    Cause(
        code="CONF004",
        name="local-rank-as-global",
        summary="LOCAL_RANK is taken for the rank in the job: each node has a process that believes itself the one.",
        what_happens="With one node the two numbers are the same, and it works. On two nodes two processes write the "
        "same checkpoint, create the same folder, log twice, or download twice into one shared cache.",
        shows_before="A function or variable called main, master or rank zero whose answer comes from LOCAL_RANK.",
        shows_during="Files that are written twice at once, `FileExistsError` on one node, doubled log lines.",
        shows_after="The job runs on one node and fails on two, at the first file that is made.",
        known_misses="Work that has to be done once a node (a local cache) rightly asks for LOCAL_RANK; its names "
        "mostly say so.",
        remedies=(
            Remedy(text="Ask for the rank in the job: `dist.get_rank() == 0`, or `os.environ['RANK'] == '0'`."),
            Remedy(text="Where once a node is meant, say it in the name: `is_local_main_process`."),
        ),
        sources=("speechbrain/speechbrain#2506", "torchrun: Environment Variables"),
    ),
)
