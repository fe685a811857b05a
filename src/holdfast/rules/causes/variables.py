"""ENV: variables that are set and do something else than they seem to say, or nothing at all."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety

CAUSES = (
    Cause(
        code="ENV007",
        name="variable-value-unusable",
        summary="A variable has a value that its reader takes for something else, ignores, or refuses.",
        what_happens="Every library reads text in its own way. NCCL takes the digits at the beginning and does not "
        "look at the rest: NCCL_IB_DISABLE=true is 0, NCCL_BUFFSIZE=8M is 8 bytes, 010 is eight. Names of distances "
        "(NCCL_P2P_LEVEL) count in capitals alone. An algorithm that NCCL does not know makes its set-up fail since "
        "2.24. torch's C++ raises on words that it does not know, gloo knows no ^ and no = in names of interfaces, and "
        "TORCH_DISTRIBUTED_DEBUG with another word makes the import of torch.distributed fail.",
        shows_before="The value in the environment or in a launch script, next to the form that its reader wants: "
        "`holdfast env` compares them, `holdfast explain NAME` prints the form.",
        shows_during="Mostly nothing: the job runs with another setting than was asked for, such as InfiniBand that is "
        "still on, or one gigantic number of tiny buffers.",
        shows_after="Where the value was refused: an error at import or in the first collective, on all ranks alike. "
        "With NCCL_DEBUG=INFO, NCCL prints `NAME set by environment to N`, where N is what it understood.",
        known_misses="Values that a script puts together at run time are not judged. Ranges are those of the newest "
        "releases.",
        remedies=(
            Remedy(text="See which form is read.", command="holdfast explain NCCL_IB_DISABLE", safety=Safety.AUTOMATIC),
            Remedy(text="Give numbers without units, and 1 or 0 for yes or no.", command="export NCCL_IB_DISABLE=1",
                   safety=Safety.DISRUPTIVE),
        ),
        sources=("NVIDIA/nccl: src/misc/param.cc, src/graph/paths.cc", "torch: torch/csrc/distributed/c10d/Utils.hpp"),
    ),
    Cause(
        code="ENV008",
        name="variable-of-another-version",
        summary="A variable is set that the installed release does not read: it was removed, or came later.",
        what_happens="Launch scripts live longer than libraries. NCCL dropped some thirty names over the years "
        "(NCCL_TREE_THRESHOLD in 2.5.6), declares others and consults them nowhere, and brings new ones with each "
        "release; torch 2.13 pins NCCL 2.29.7, which knows nothing of what came with 2.30. A few are worse than "
        "useless: libfabric of today aborts where FI_EFA_MTU_SIZE is set.",
        shows_before="The name in the environment, and the releases that read it, next to the version that is "
        "installed.",
        shows_during="Nothing: the job behaves as if the variable were not there.",
        shows_after="Nothing, but for those that abort: the process ends at its first use of the fabric.",
        known_misses="The version is that of the package beside torch; an NCCL that LD_LIBRARY_PATH or LD_PRELOAD "
        "puts in front of it is another (nccl-version-mismatch). Of libfabric, UCX and plugins no version is looked "
        "at.",
        remedies=(
            Remedy(text="Take it out of the script, or use the release that reads it.", command="unset "
                   "NCCL_TREE_THRESHOLD", safety=Safety.DISRUPTIVE),
        ),
        sources=("NVIDIA/nccl: release tags v1.2.1 to v2.30.7, scanned", "libfabric: prov/efa/src/efa_env.c"),
    ),
    Cause(
        code="ENV009",
        name="variables-contradict",
        summary="Two variables do not go with each other: one makes the other useless, or they say opposite things.",
        what_happens="A setting that was added in one search for a fault stays beside the one of the next: "
        "InfiniBand is turned off and its card named, peer-to-peer is off and its level set, a lower bound is above "
        "the upper one, an old and a new name have different values. The reader takes one of them, by rules that "
        "nobody remembers; where NCCL_NET asks for a network that is turned off, NCCL cannot start at all.",
        shows_before="Both names in one environment or script.",
        shows_during="The job is slower than it should be, or the history of calls that was asked for is empty.",
        shows_after="`Error: network IB not found`, or a time-out without the dump that was asked for.",
        known_misses="Variables that come together only at run time, from a script and from the scheduler, are seen "
        "in the environment and not in files.",
        remedies=(
            Remedy(text="Decide which of them is meant, and take the other out.", command="unset NCCL_IB_DISABLE",
                   safety=Safety.DISRUPTIVE),
        ),
        sources=("NVIDIA/nccl: src/transport/net_ib/init.cc, src/graph/paths.cc", "torch: FlightRecorder.hpp"),
    ),
    Cause(
        code="ENV010",
        name="variable-harmful",
        summary="A variable is set that costs speed, hides errors, or was left on after a search for a fault.",
        what_happens="NCCL_P2P_DISABLE=1, a forced NCCL_ALGO, CUDA_LAUNCH_BLOCKING=1 or TORCH_DISTRIBUTED_DEBUG=DETAIL "
        "help to find where a fault lies. Left in a script they cost a multiple of the time, and forums hand them on "
        "as cures. TORCH_NCCL_ASYNC_ERROR_HANDLING=0 and TORCH_NCCL_BLOCKING_WAIT=1 take away what ends a job that "
        "hangs.",
        shows_before="The variable in the environment, in a script or in an image.",
        shows_during="Low bandwidth, GPUs that wait for each other, no overlap of communication with computing.",
        shows_after="Nothing in the log but a job that was too slow, or a hang that nobody ended.",
        known_misses="Some hosts need one of them (peer-to-peer through a virtual machine's IOMMU hangs); then it is "
        "right, and the finding may be left alone.",
        remedies=(
            Remedy(text="Take it out, and measure before and after.", command="holdfast bench",
                   safety=Safety.DISRUPTIVE),
        ),
        sources=("NVIDIA NCCL user guide: Environment Variables", "torch: torch/distributed/distributed_c10d.py"),
    ),
    Cause(
        code="ENV011",
        name="variable-set-too-late",
        summary="The program sets a variable after its reader has read it, so that it has no effect.",
        what_happens="Most variables are read once: OMP_NUM_THREADS and TORCH_DISTRIBUTED_DEBUG when torch is "
        "imported, CUDA_VISIBLE_DEVICES at the first use of CUDA, MASTER_ADDR, TORCH_NCCL_* and GLOO_* by "
        "init_process_group, NCCL_* when NCCL makes its first communicator. os.environ can be written at any time, "
        "and says nothing.",
        shows_before="In the source: the assignment stands below the import or the call. `holdfast env --scan` reads "
        "the order.",
        shows_during="Nothing: the job behaves as if the variable were not there.",
        shows_after="Nothing. With NCCL_DEBUG=INFO, what NCCL did take is printed.",
        known_misses="The order is read in one file, without what imported modules do; what is done in threads, in "
        "callbacks and by frameworks is not followed.",
        remedies=(
            Remedy(text="Set it where the job is started, or at the top of the program, above `import torch`.",
                   command="env OMP_NUM_THREADS=8 holdfast run train.py", safety=Safety.DISRUPTIVE),
        ),
        sources=("torch: torch/distributed/distributed_c10d.py, rendezvous.py", "NVIDIA/nccl: src/misc/param.cc"),
    ),
    Cause(
        code="ENV012",
        name="variable-differs-between-hosts",
        summary="A variable has another value on some hosts, or is set on some of them alone.",
        what_happens="Launchers differ in what they hand on: ssh hands on nothing, DeepSpeed's launcher the names "
        "that begin with NCCL, PYTHON, MV2, UCX or MLFLOW and what stands in .deepspeed_env, srun all of them. Ranks "
        "that disagree on the address, the number of ranks, the network or the algorithm wait for each other; with "
        "less weighty ones the slowest host sets the pace.",
        shows_before="`holdfast check` over several hosts compares their environments.",
        shows_during="All ranks stand in the first collective, or one host is slower than the others.",
        shows_after="`nccl internal error`, a connection that was closed, or a time-out; nothing names the variable.",
        known_misses="Values that have to differ (ranks, visible devices, file names) are left out by a list of names. "
        "What the program itself sets is not seen.",
        remedies=(
            Remedy(text="Set it in the one place that all hosts read: the job's script with srun, or .deepspeed_env.",
                   safety=Safety.DISRUPTIVE),
            Remedy(text="Compare the hosts.", command="srun --ntasks-per-node=1 sh -c 'env | grep -E "
                                                      "\"NCCL|GLOO|TORCH\"'",
                   safety=Safety.AUTOMATIC),
        ),
        sources=("deepspeedai/DeepSpeed: deepspeed/launcher/runner.py, EXPORT_ENVS", "pytorch/pytorch#108212"),
    ),
    Cause(
        code="ENV013",
        name="variable-not-handed-on",
        summary="A script sets a variable without exporting it, so that the programs it starts do not get it.",
        what_happens="In a shell, `NCCL_DEBUG=INFO` on a line of its own makes a variable of the shell. Children get "
        "it only after export, or where it stands in front of the command on the same line. In a Dockerfile, what "
        "RUN exports is gone with the next line; ENV keeps it.",
        shows_before="In the script: an assignment alone on its line, and no export of that name.",
        shows_during="Nothing: the job behaves as if the variable were not there.",
        shows_after="Nothing. /proc/<pid>/environ of a rank does not have the name.",
        known_misses="A name that was exported before, in a file that this one was sourced from, is handed on "
        "without being exported again.",
        remedies=(
            Remedy(text="Export it.", command="export NCCL_DEBUG", safety=Safety.DISRUPTIVE),
        ),
        sources=("POSIX.1-2024: Shell Command Language, 2.5.3 Shell Variables, export",),
    ),
    Cause(
        code="ENV020",
        name="variable-not-sent",
        summary="A script sets a variable, and the launcher that it starts does not send it to the ranks.",
        what_happens="DeepSpeed's launcher starts the ranks of several hosts by pdsh, which is a login on each of "
        "them, also on the own one. Of the environment it sends what begins with NCCL, PYTHON, MV2, UCX or MLFLOW, and "
        "each line of the file .deepspeed_env. GLOO_SOCKET_IFNAME, TORCH_NCCL_* and OMP_NUM_THREADS are not among "
        "them, though they stand in the script, in front of the command or exported.",
        shows_before="In the script: a variable that is set before a line with `deepspeed --hostfile`, and in no "
        ".deepspeed_env. `holdfast env --scan` reads both.",
        shows_during="The ranks behave as if the variable were not there: gloo takes another interface and connects "
        "nowhere, each rank takes all processors of its host.",
        shows_after="Nothing that names the variable. /proc/<pid>/environ of a rank does not have it.",
        known_misses="A .deepspeed_env in the home folder, and one that DS_ENV_FILE names, are not read. Without a "
        "hostfile on the line, the launcher takes /job/hostfile, and nothing is said. With one host, with --no_ssh, "
        "--launcher slurm, mpich or impi, the ranks have the whole environment, and nothing is said.",
        remedies=(
            Remedy(text="Write it into .deepspeed_env, in the folder in which the launcher is started, or in the home "
                   "folder.", command="echo GLOO_SOCKET_IFNAME=eth0 >> .deepspeed_env", safety=Safety.DISRUPTIVE),
            Remedy(text="Compare the hosts.", command="holdfast check --nnodes 2 --rdzv-endpoint node0:29500",
                   safety=Safety.AUTOMATIC),
        ),
        sources=("deepspeedai/DeepSpeed 0.19.8: deepspeed/launcher/runner.py, EXPORT_ENVS",
                 "deepspeedai/DeepSpeed 0.19.8: accelerator/cuda_accelerator.py, export_envs"),
    ),
)  # fmt: skip
