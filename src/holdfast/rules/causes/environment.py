"""ENV: libraries, versions, variables and limits that a process finds when it starts."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety

CAUSES = (
    Cause(
        code="ENV001",
        name="nccl-version-mismatch",
        summary="The NCCL library that is loaded is not the one the program was built for, or ranks load different "
        "ones.",
        what_happens="torch is built against one NCCL, but the loader takes the first libnccl.so.2 it meets: on "
        "LD_PRELOAD, on LD_LIBRARY_PATH, in another pip package, or in the system. A library that is too old lacks "
        "symbols and `import torch` fails; libraries that differ between ranks are refused when the communicator is "
        "made, or make its set-up hang.",
        shows_before="More than one libnccl.so.2 on the host, LD_LIBRARY_PATH or LD_PRELOAD naming one of them, a "
        "nvidia-nccl-cu* package of another version than torch's metadata pins, or hosts whose images differ.",
        shows_during="/proc/<pid>/maps of each rank shows which library file is really loaded; with NCCL_DEBUG=VERSION "
        "each process prints the version. In a hang all ranks stand in the first collective and nobody is behind.",
        shows_after="`undefined symbol: nccl...` at import, alike on all ranks that share the image, or an NCCL "
        "warning about mismatched versions of two ranks with `ncclInvalidUsage`. torchrun blames whichever rank it "
        "reaped first.",
        known_misses="Two builds with the same version number but different patches look alike. Without "
        "NCCL_DEBUG=VERSION a job that hangs in set-up cannot be told from a broken network by its log.",
        remedies=(
            Remedy(
                text="Print which libraries the processes have loaded, on every host.",
                command="grep -ho '/[^ ]*libnccl[^ ]*' /proc/*/maps 2>/dev/null | sort | uniq -c",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Start without the foreign library on the path, so that torch's own package is found.",
                command="env -u LD_PRELOAD -u LD_LIBRARY_PATH holdfast run train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Use one image on all hosts, with torch and the nvidia-nccl package that torch pins."),
        ),
        sources=("NVIDIA NCCL user guide: Troubleshooting", "torch 2.13.0 pins nvidia-nccl-cu13 2.29.7"),
    ),
    Cause(
        code="ENV002",
        name="nccl-plugin-missing",
        summary="A NCCL network or tuner plugin that the job needs is absent, or cannot be loaded.",
        what_happens="NCCL loads the network of some clouds and fabrics (EFA, GPUDirect-TCPX, SHARP) from a separate "
        "libnccl-net*.so. If the file or a library that it needs is missing, NCCL falls back to its own transports, "
        "which may be slow TCP or no route at all; if NCCL_NET names the plugin's network, set-up fails instead.",
        shows_before="NCCL_NET_PLUGIN or NCCL_NET set and no such libnccl-net*.so on LD_LIBRARY_PATH, or `ldd` of the "
        "plugin reporting a library as not found. A plugin variable that differs between hosts is the usual form.",
        shows_during="With NCCL_DEBUG=INFO: `NET/Plugin` lines and then `Using network Socket` where another network "
        "was expected. The job is alive and many times too slow, or all ranks wait in the first collective.",
        shows_after="`Error: network ... not found` and `ncclInvalidUsage` at the first collective, or nothing at all "
        "but low throughput. The rank that reports it is not special: it was the first to ask.",
        known_misses="`No plugin found (libnccl-net.so), using internal implementation` is normal where no plugin is "
        "needed; only the bandwidth, or NCCL_NET, tells that one was. Without NCCL_DEBUG=INFO nothing is printed.",
        remedies=(
            Remedy(
                text="See what NCCL loads, and why not, on one host.",
                command="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,ENV holdfast run train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Install the plugin into the image, and put its folder on LD_LIBRARY_PATH on all hosts alike."),
            Remedy(
                text="Where the fabric works without it, keep NCCL to its built-in transports.",
                command="unset NCCL_NET; export NCCL_NET_PLUGIN=none",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("NVIDIA/nccl: src/plugin/net.cc", "aws/aws-ofi-nccl"),
    ),
    Cause(
        code="ENV003",
        name="fd-limit",
        summary="A process reached its limit on open files, so that sockets, files or shared memory cannot be opened.",
        what_happens="Sockets to every peer, files of the data set, and each tensor that a data-loader worker hands "
        "over (torch's default sharing strategy passes a file descriptor) count against RLIMIT_NOFILE. At the limit "
        "the next open fails, wherever it happens to be: in the loader, in gloo, in NCCL or in logging.",
        shows_before="`ulimit -n` of 1024 or so together with many ranks, many loader workers or many shards. The "
        "limit in a login shell says little: services and containers have their own.",
        shows_during="/proc/<pid>/fd of one rank holds nearly as many entries as /proc/<pid>/limits allows, and their "
        "number grows from step to step.",
        shows_after="`Too many open files` (errno 24), or `received 0 items of ancdata` from the data loader, in an "
        "ordinary exception of one rank; the others report a lost connection or a time-out.",
        known_misses="The traceback names whatever opened the last file, which is rarely what holds the others. The "
        "box records the exception, not the number of files.",
        remedies=(
            Remedy(text="Raise the limit for the job.", command="ulimit -n 1048576", safety=Safety.DISRUPTIVE),
            Remedy(
                text="Let loader workers share tensors by name instead of by descriptor (needs room in /dev/shm): "
                "`torch.multiprocessing.set_sharing_strategy('file_system')`."
            ),
            Remedy(
                text="Do not keep batches of a loader alive in a list; clone what is kept, so that the rest is freed."
            ),
        ),
        sources=("pytorch/pytorch#973", "pytorch/pytorch#11201", "pytorch/pytorch#34768"),
    ),
    Cause(
        code="ENV004",
        name="nccl-timeout-ignored",
        summary="NCCL_TIMEOUT is set, and nothing in NCCL or torch reads it.",
        what_happens="The limit on a collective is that of its process group: 10 minutes for NCCL, 30 for gloo, unless "
        "init_process_group(timeout=...) says otherwise. NCCL_TIMEOUT, TORCH_NCCL_TIMEOUT and GLOO_TIMEOUT look like "
        "that limit and are read by no release of NCCL and not by torch 2.13; a few training programs read the name "
        "themselves.",
        shows_before="The variable is set, and the program passes no timeout to init_process_group. new_group() is a "
        "trap of its own: it ignores the default group's time-out and takes the back end's default again.",
        shows_during="A hang lasts 10 or 30 minutes although the variable says less, or a long checkpoint is cut off "
        "although it says more.",
        shows_after="`Watchdog caught collective operation timeout` with Timeout(ms)=600000, or gloo's `Timed out "
        "waiting 1800000ms`: the defaults, not the number in the variable.",
        known_misses="A framework may read the variable and pass it on; then it does have an effect. What the program "
        "passes to its groups is not recorded.",
        remedies=(
            Remedy(
                text="Give the limit to the process group, and to every new_group() too: "
                "`dist.init_process_group(backend, timeout=timedelta(seconds=1200))`."
            ),
            Remedy(
                text="Remove the variable, so that nobody relies on it.",
                command="unset NCCL_TIMEOUT",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Frameworks have their own switch: DEEPSPEED_TIMEOUT (minutes), Megatron's "
                "--distributed-timeout-minutes, Accelerate's InitProcessGroupKwargs."
            ),
        ),
        sources=("NVIDIA/nccl, tags v1.2.1 to v2.30.7: no match", "torch 2.13.0 wheel: no match"),
    ),
    Cause(
        code="ENV005",
        name="variable-renamed",
        summary="A variable is set under its old name, which is deprecated, overruled or no longer complete.",
        what_happens="torch 2.2 gave its NCCL_* variables the prefix TORCH_: NCCL_ASYNC_ERROR_HANDLING, "
        "NCCL_BLOCKING_WAIT, NCCL_DESYNC_DEBUG, NCCL_ENABLE_TIMING. The old names still work in 2.13 with a warning, "
        "but the new name wins, and the elastic agent exports TORCH_NCCL_ASYNC_ERROR_HANDLING=1 to its workers, so "
        "that the old spelling of this one has no effect under torchrun.",
        shows_before="Old names in the environment of the launcher or in job scripts. TORCH_NCCL_TRACE_BUFFER_SIZE is "
        "a special case: deprecated for TORCH_FR_BUFFER_SIZE, yet the only name that the NCCL group's dump gate reads.",
        shows_during="A warning about a deprecated variable at the start; error handling, waiting or tracing behaves "
        "as if the setting were absent.",
        shows_after="No dump, or no teardown, where the setting should have given one. No log line says that the "
        "variable was overruled.",
        known_misses="A deprecated name that does work is only worth a note. Old torch releases know nothing but the "
        "old name, so the advice depends on the version that the job really runs.",
        remedies=(
            Remedy(
                text="Set the new name; keep both with the same value where torch before 2.2 is still in use.",
                command="export TORCH_NCCL_ASYNC_ERROR_HANDLING=$NCCL_ASYNC_ERROR_HANDLING",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="Set the flight recorder's size under both of its names, as the presets do.",
                command="export TORCH_FR_BUFFER_SIZE=20000 TORCH_NCCL_TRACE_BUFFER_SIZE=20000",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("torch 2.13.0: ProcessGroupNCCL.hpp, FlightRecorder.hpp", "torch: local_elastic_agent.py"),
    ),
    Cause(
        code="ENV006",
        name="variable-never-read",
        summary="A variable is set that no library in this job reads, usually a misspelling or the opposite of a real "
        "one.",
        what_happens="Names copied from forums and vendors' pages do nothing: NCCL_IB_ENABLE, NCCL_P2P_ENABLE and "
        "NCCL_NVLS_DISABLE have the wrong polarity, NCCL_BUFFER_SIZE and NCCL_DEBUG_LEVEL are misspelt, "
        "NCCL_SOCKET_TIMEOUT never existed. torchrun's own NNODES and NPROC_PER_NODE need the prefix PET_.",
        shows_before="The name is in the environment and in no library's list. Values can be as empty as names: NCCL "
        "reads numbers up to the first foreign character, so that NCCL_IB_DISABLE=true means 0 and InfiniBand stays "
        "on.",
        shows_during="Nothing: the job behaves as if the variable were not there.",
        shows_after="Nothing. With NCCL_DEBUG=INFO, NCCL prints the variables that it did take from the environment; "
        "one that is missing there was not read.",
        known_misses="The program itself, or a plugin, may read any name. Such a variable is reported as a note, and "
        "never as an error.",
        remedies=(
            Remedy(
                text="Remove it, or set the variable that was meant: NCCL_IB_DISABLE=1, NCCL_BUFFSIZE, NCCL_DEBUG.",
                command="unset NCCL_IB_ENABLE NCCL_P2P_ENABLE NCCL_BUFFER_SIZE",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("NVIDIA/nccl: all release tags, scanned", "torch: torch/distributed/argparse_util.py"),
    ),
    Cause(
        code="ENV018",
        name="software-differs-between-hosts",
        summary="Hosts of one job have different versions of Python, torch, NCCL, the driver or other packages.",
        what_happens="One host was built from another image, missed an upgrade, or has a package in a home folder that "
        "comes first on the path. Ranks whose torch or NCCL differ may order or cut collectives in another way and "
        "wait for each other, refuse each other's handshake, or unpickle what the other side has never heard of. Of "
        "other packages the results drift apart, or one rank alone raises an error.",
        shows_before="`holdfast check` over the hosts compares a fingerprint of all packages and names those that "
        "differ. Nothing in torch or torchrun compares them.",
        shows_during="A hang in the first collective, or an error on the ranks of one host alone.",
        shows_after="NCCL's `Mismatched NCCL version detected`, an AttributeError or a failed unpickling on one host, "
        "or no sign but results that differ.",
        known_misses="Packages with one version number and other contents (local builds, patched files) look alike. "
        "Libraries beside Python (CUDA, OFED, libfabric) are not compared, but for the driver.",
        remedies=(
            Remedy(text="Start all hosts from one image, or one lock file."),
            Remedy(
                text="See what differs, host by host.",
                command="srun --ntasks-per-node=1 sh -c 'hostname; python -m pip list --format=freeze | sha256sum'",
                safety=Safety.AUTOMATIC,
            ),
        ),
        sources=("pytorch/pytorch#108212", "NVIDIA/nccl: src/bootstrap.cc, src/init.cc, ncclVersion of the peers"),
    ),
    Cause(
        code="ENV019",
        name="code-differs-between-hosts",
        summary="The training program is not the same on all hosts: another commit, or files that were changed.",
        what_happens="Hosts without a shared file system have copies of the code, and one of them is old, or was "
        "edited in place. The ranks then run different programs: other collectives in another order, other shapes, "
        "another number of steps.",
        shows_before="`holdfast check` in the folder of the program compares a fingerprint of its Python files, and "
        "the commit. `git status` on one host says nothing of the others.",
        shows_during="Whatever different programs do: mostly a hang, with ranks at lines that make no sense together.",
        shows_after="Calls that differ between the ranks of two hosts (collective-mismatch), or stacks whose line "
        "numbers point to other code than yours.",
        known_misses="Compared are the Python files of the folder in which check was started, and its commit; data, "
        "configuration files and packages that are installed elsewhere are not.",
        remedies=(
            Remedy(text="Bring all hosts to one commit, or start from one shared folder."),
            Remedy(
                text="Compare the commits.",
                command="srun --ntasks-per-node=1 sh -c 'hostname; git rev-parse HEAD; git status --short'",
                safety=Safety.AUTOMATIC,
            ),
        ),
        sources=("pytorch/pytorch#72768", "holdfast: facts/source_tree.py"),
    ),
)
