"""PROC: processes that died, were stopped, or raised; and the job that did none of it.

How a rank that is gone is named: it raised (PROC001, PROC002), it crashed by itself (PROC003), everybody was told to
end (PROC004), it got a fatal signal from outside (PROC006, or MEM003 for lack of memory), it left with a status of its
own (PROC009). PROC005 is what remains where only the survivors' messages about it are known.
"""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety
from holdfast.rules.causes.remedies import DRAIN, RESTART, WATCH

CAUSES = (
    Cause(
        code="PROC000",
        name="no-failure",
        summary="Nothing failed: the job is healthy, or it printed warnings that only look grave.",
        what_happens="All ranks advance, or have ended with status 0. Many lines that look like failures are not: "
        "`Abort COMPLETE` and `Connection closed by localRank` at the end of a NCCL job, `No device id is provided`, "
        "`destroy_process_group() was not called`, `ibv_set_ece failed`, `Failed to open libibverbs`, `No plugin "
        "found`, socket warnings with errno 97, the OMP_NUM_THREADS notice of torchrun, a model that was `not saved` "
        "because the options say so, and a loss that spikes and recovers.",
        shows_before="Nothing, and nothing needs to.",
        shows_during="Some rank advances within the stall limit, or the one that is awaited is in a phase whose budget "
        "is not spent: first step, compilation, checkpoint, evaluation. A rank that computes is slow, not stuck.",
        shows_after="Exit status 0 on every rank, and a log that goes on, or ends, as that program ends.",
        known_misses="Healthy is what could be seen: wrong values (silent-corruption-by-misaligned-collectives, "
        "replicas-diverge) leave a job that looks well. A gloo rank that ends without destroy_process_group() "
        "sometimes aborts (-6) after all its work was done.",
        remedies=(
            Remedy(
                text="Nothing to do. To keep the log quiet, end with the group and name the device: "
                "`dist.destroy_process_group()`.",
                safety=Safety.AUTOMATIC,
            ),
        ),
        sources=("NVIDIA/nccl: NCCL INFO lines at communicator abort", "torch: distributed_c10d.py warnings"),
    ),
    Cause(
        code="PROC001",
        name="python-exception-on-one-rank",
        summary="An ordinary exception on one rank is the root; the others only follow.",
        what_happens="One rank raises: a broken file, a key that its shard lacks, a permission, an assertion on its "
        "data. Its process ends; the launcher ends the others, which by then report lost connections in longer "
        "messages than the root.",
        shows_before="Nothing in general: the data or the environment of one rank differs. Code that only rank 0 runs "
        "is where to look first.",
        shows_during="The rank's box records the exception, its text and the innermost frame of the user's code as it "
        "happens; the others are in the next collective.",
        shows_after="A traceback on one rank, exit status 1, and on the others `Connection closed by peer`, SIGTERM "
        "from the launcher, or a time-out. torchrun names the right rank, with `error_file: <N/A>` unless the script "
        "uses @record.",
        known_misses="If the exception is about the connection itself, it is an echo and never the root. A rank that "
        "catches the exception and hangs in its handler shows the handler's line. Interleaved output of many ranks can "
        "hide the text; the box has it whole.",
        remedies=(
            Remedy(text="Mend what the traceback says; it stands in the verdict, and in that rank's own log file."),
            Remedy(
                text="Let torchrun keep it too: decorate main with "
                "`torch.distributed.elastic.multiprocessing.errors.record`."
            ),
            RESTART,
        ),
        sources=("mosaicml/llm-foundry#749", "torch: torch/distributed/elastic/multiprocessing/errors"),
    ),
    Cause(
        code="PROC002",
        name="python-exception-all-ranks",
        summary="The same ordinary exception on every rank: a bad path, option, command, or a bug.",
        what_happens="All ranks run the same wrong line: a file that does not exist anywhere, a missing module, a "
        "shape error in the model, an argument that was renamed. They fail within moments of each other; whoever is "
        "first is listed.",
        shows_before="Often visible by running one process: the same command with --nproc-per-node 1.",
        shows_during="No hang. Every box ends with an exception of the same type at the same line.",
        shows_after="The same traceback from several ranks, cut into each other line by line or letter by letter; "
        "torchrun's table then names one rank as the `Root Cause (first observed failure)`, which suggests that it is "
        "special.",
        known_misses="If the launcher ended the slower ranks before they raised, only some show it: then one of them "
        "is named, as python-exception-on-one-rank, and the advice is the same.",
        remedies=(
            Remedy(
                text="Reproduce it with one process, where the traceback is not interleaved.",
                command="holdfast run --standalone --nproc-per-node 1 train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="A restart repeats it: mend the line first.", safety=Safety.BY_HAND),
        ),
        sources=("torch: torch/distributed/elastic/multiprocessing/errors/__init__.py",),
    ),
    Cause(
        code="PROC003",
        name="segfault-in-worker",
        summary="A rank crashed in native code (SIGSEGV, SIGABRT, SIGBUS, SIGFPE, SIGILL), and nothing says more "
        "exactly why.",
        what_happens="A C or C++ extension, a driver library, a mismatched binary or damaged memory ends the process "
        "from within. There is no Python traceback unless faulthandler is on.",
        shows_before="Binaries built for another torch, CUDA or CPU; native packages newer than the image.",
        shows_during="The process is gone with a negative status and the others wait or lose their connection. The "
        "last collective and its line are in the box.",
        shows_after="Exit status -11 (-6, -7, -8, -4), `Fatal Python error: Segmentation fault` with stacks where "
        "faulthandler is on, a core file, and a line in the kernel log with the library's name.",
        known_misses="Abort (-6) is also how torch's NCCL watchdog and gloo end a process: when the ranks parted "
        "before, that mismatch is named instead. SIGBUS with a full /dev/shm is shm-too-small. Out of memory is -9.",
        remedies=(
            Remedy(
                text="Get the stack of the crash.",
                command="PYTHONFAULTHANDLER=1 holdfast run train.py",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(
                text="Keep a core file and open it.",
                command="ulimit -c unlimited; gdb -batch -ex bt python CORE",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Rebuild native extensions against the torch that is installed."),
            RESTART,
        ),
        sources=("Python: faulthandler", "man 7 signal"),
    ),
    Cause(
        code="PROC004",
        name="signal-sigterm-preempted",
        summary="The scheduler or a person ended the job, or its launcher died: SIGTERM, SIGHUP or SIGINT from "
        "outside.",
        what_happens="Preemption, a time limit, scancel, a drained node, a closed terminal or Ctrl-C ends all "
        "processes. Nothing was wrong with the job.",
        shows_before="A time limit shorter than the run; a preemptible partition; a job started from a login shell "
        "without nohup.",
        shows_during="All ranks end within seconds, with a signal that a person or a program sends.",
        shows_after="Exit status -15 (143), `SignalException: ... got signal: 15`, `Sending process ... closing signal "
        "SIGTERM` for every rank, and a line of the scheduler (CANCELLED, DUE TO TIME LIMIT, PREEMPTED). torchrun "
        "forwards the signal and kills after 30 seconds.",
        known_misses="The launcher itself sends SIGTERM to the survivors of any other failure: only if no rank failed "
        "before is it the cause. A rank that catches SIGTERM and exits with 0 looks like rank-exits-early.",
        remedies=(
            Remedy(text="Start it again; it continues at the last checkpoint.", safety=Safety.DISRUPTIVE),
            Remedy(
                text="Have the scheduler warn some minutes ahead, and save on that signal, on all ranks together: "
                "`#SBATCH --signal=B:USR1@300 --requeue`."
            ),
        ),
        sources=("pytorch/pytorch#119856", "pytorch/pytorch#68258", "pytorch/pytorch#172596", "Slurm: sbatch --signal"),
    ),
    Cause(
        code="PROC005",
        name="peer-lost",
        summary="A peer process, pod or host is gone; only the survivors' messages about it are known.",
        what_happens="A rank on another host stops answering: its process was killed, its pod evicted, its host "
        "rebooted or cut off. The survivors see a closed or reset connection, a remote error, or a time-out, and all "
        "of them blame somebody else.",
        shows_before="Nothing: it happens to the host. Spot and preemptible machines give a notice to that host only.",
        shows_during="The summaries and the box of the lost rank are missing, or no longer change; the others stand in "
        "one collective in which it alone is absent.",
        shows_after="`Connection reset by peer`, `Connection closed by peer`, NCCL's `remote process exited or there "
        "was a network error`, `socketProgress: Connection closed by remote peer HOST`: the host in these lines is the "
        "one to look at. The lost rank's log simply ends.",
        known_misses="As soon as the exit status of the lost rank is known, its own cause is named instead "
        "(rank-killed, host-oom-killed, segfault-in-worker, ...), and the survivors' messages become consequences. A "
        "broken network and a dead host cannot be told apart from one side.",
        remedies=(
            Remedy(
                text="Ask the host, the scheduler or the cluster what became of it.",
                command="sacct -j JOB --format=JobID,State,ExitCode,NodeList; kubectl describe pod POD",
                safety=Safety.AUTOMATIC,
            ),
            DRAIN,
            RESTART,
        ),
        sources=("pytorch/pytorch#111646", "torch: gloo and NCCL remote errors"),
    ),
    Cause(
        code="PROC006",
        name="rank-killed",
        summary="A rank was killed by a signal from outside, and the kernel does not count it as out of memory.",
        what_happens="Somebody, a script, a container runtime or a health check sent SIGKILL (or another fatal "
        "signal). The process had no chance to say anything. The survivors lose their connection within a second with "
        "gloo, or wait.",
        shows_before="Nothing. Clean-up scripts that kill by name are the usual sender on shared hosts.",
        shows_during="The agent has the exit status of its child: minus the signal's number. The box survives and "
        "shows the last collective and line.",
        shows_after="torchrun: `failed (exitcode: -9)` with the right rank, and no reason. Survivors: `Connection "
        "reset by peer`, in the longest messages of the log. The counter oom_kill of the cgroup did not move.",
        known_misses="Who sent the signal is not recorded by the kernel unless auditing is on. Out-of-memory killers "
        "in user space (earlyoom, systemd-oomd, a kubelet's eviction) leave the counter alone and look like this. On a "
        "host whose exit statuses are not known it is peer-lost.",
        remedies=(
            Remedy(
                text="Look for the sender: the system's log of that minute, user-space memory killers, clean-up "
                "scripts.",
                command="journalctl --since '10 minutes ago' | grep -iE 'oom|kill|evict'",
                safety=Safety.AUTOMATIC,
            ),
            RESTART,
        ),
        sources=("man 7 signal", "systemd-oomd.service(8)"),
    ),
    Cause(
        code="PROC007",
        name="rank-stopped",
        summary="A rank is stopped: SIGSTOP, a debugger, or a frozen cgroup.",
        what_happens="The process exists and does not run. Its connections stay open, so that nobody gets an error: "
        "the others wait until the time-out. A tracer that was killed, Ctrl-Z, a paused container or a frozen cgroup "
        "leave a process like that.",
        shows_before="Nothing.",
        shows_during="State T or t in /proc/<pid>/stat (or cgroup.freeze 1 with state S or D and no CPU time); no "
        "thread of it advances, so that its stack can only be read from outside.",
        shows_after="Time-outs on all the others, `Timed out waiting ...ms for recv operation`, none with its number. "
        "The stopped rank does not react to SIGTERM: torchrun waits 30 s for it before SIGKILL, holdfast does not.",
        known_misses="A frozen cgroup is not shown by the state letter on every kernel. py-spy itself can leave a "
        "target stopped; holdfast sends SIGCONT after each sample. A virtual machine that was paused looks like a host "
        "that was lost.",
        remedies=(
            Remedy(text="Let it go on.", command="kill -CONT PID", safety=Safety.BY_HAND),
            Remedy(text="See who traces it.", command="grep TracerPid /proc/PID/status", safety=Safety.AUTOMATIC),
            RESTART,
        ),
        sources=("benfred/py-spy#390", "man 5 proc", "Linux: cgroup-v2.rst, cgroup.freeze"),
    ),
    Cause(
        code="PROC008",
        name="rank-uninterruptible-io",
        summary="A rank is in uninterruptible sleep: the kernel waits for a device or a network file system.",
        what_happens="A read, write, stat or page fault on storage that does not answer (NFS, Lustre, a failing disk), "
        "or a call into a GPU driver that waits for dead firmware, keeps the process in state D. Signals wait too, "
        "SIGKILL included.",
        shows_before="A network mount with the option hard and a server that is slow; `nfs: server ... not responding` "
        "in the kernel log.",
        shows_during="State D over both looks; /proc/<pid>/wchan and, as root, /proc/<pid>/stack name the kernel "
        "function. The Python line is the one that touches the file.",
        shows_after="The others time out. The process stays after SIGKILL until the device answers; a restart on the "
        "same host may meet the same mount. `task blocked for more than 120 seconds` in the kernel log.",
        known_misses="State D for a moment is normal in every read; only if it lasts over both samples is it named. A "
        "sandbox or container runtime may show S instead, and then file-io-blocked or rank-missing-collective is "
        "named.",
        remedies=(
            Remedy(
                text="See what the kernel waits for.",
                command="cat /proc/PID/wchan; cat /proc/PID/stack; mount | grep -E 'nfs|lustre'",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Mend or remount the file system; copy what is read often to local storage first."),
            DRAIN,
        ),
        sources=("man 5 proc, state D", "NVIDIA/nvidia-resiliency-ext#373"),
    ),
    Cause(
        code="PROC009",
        name="exit-nonzero",
        summary="A rank ended with a status other than 0, and neither an exception nor a signal explains it.",
        what_happens="sys.exit(3), os._exit(1), or a library that calls exit() on an error of its own. The reason is "
        "in what it printed before, if anywhere.",
        shows_before="Calls of sys.exit or os._exit with a number, on a path that one rank can take alone.",
        shows_during="The process is gone with that status; the box ends without an exception, with the line of "
        "sys.exit where there was one.",
        shows_after="torchrun: `failed (exitcode: N)` for that rank, no traceback. Survivors report a lost connection. "
        "137 and 143 from a wrapper script stand for signals 9 and 15.",
        known_misses="os._exit leaves no line. If the script runs under a shell wrapper, the status is the wrapper's.",
        remedies=(
            Remedy(text="Read the end of that rank's own log file in the run's folder, stderr first."),
            Remedy(
                text="Raise an exception instead of calling exit, so that the reason is recorded.",
                safety=Safety.BY_HAND,
            ),
            WATCH,
            RESTART,
        ),
        sources=("Python: sys.exit, os._exit",),
    ),
    Cause(
        code="PROC010",
        name="stalled-outside-collectives",
        summary="A rank stands still outside of any collective, and nobody waits for it in one.",
        what_happens="A rank sits in Python, or in the end of its process, while the others have ended or stand still "
        "as well: a metrics client that flushes to a server that is gone, an exit handler, a thread that is no daemon, "
        "a lock, a queue, an input that never comes. No process group's time-out runs, so that nothing ever ends it: "
        "the nodes stay booked.",
        shows_before="Clients of trackers and object stores without a time-out; `thread.join()` and `queue.get()` "
        "without one; threads started without `daemon=True`.",
        shows_during="No call is in flight on any rank; two stacks of the rank agree and it uses no CPU. Where the "
        "script has ended, the box says so, and the process is still there.",
        shows_after="Nothing, or the scheduler's time limit hours later. torchrun waits for the process for ever.",
        known_misses="A rank that serves requests, or waits for an upload that takes long, looks the same: it is given "
        "half an hour (HOLDFAST_ALONE_S), and what uses CPU or moves data is never named. Only the main thread's stack "
        "is shown; where the script has ended, that is the interpreter waiting for another thread.",
        remedies=(
            Remedy(text="Give the call at that line a time-out, and let it fail with a warning: training is over."),
            Remedy(text="Mark helper threads as daemons, or end them before the script ends.", safety=Safety.BY_HAND),
            Remedy(
                text='If the wait is meant, allow for it: HOLDFAST_ALONE_S=7200, or `holdfast.phase("upload", '
                'budget="2h")` around it.'
            ),
            WATCH,
        ),
        sources=(
            "Python: threading, at exit every thread that is no daemon is joined",
            "facebookresearch/fairseq#4619",
            "ultralytics/yolov5#5160",
            "wandb/wandb#4929",
        ),
    ),
    Cause(
        code="PROC011",
        name="stale-build-lock",
        summary="Ranks wait for the lock of an extension's build, and whoever held it is gone.",
        what_happens="torch builds C++ and CUDA extensions when they are first loaded (DeepSpeed's operators, "
        "load_inline, many custom kernels). One process builds, the others wait until the file `lock` in the build "
        "folder is gone. It is a plain file: a job that was killed while it built leaves it behind, and all ranks of "
        "every later job wait for it, without a word and without any time-out.",
        shows_before="A file `lock` in a folder of ~/.cache/torch_extensions (or TORCH_EXTENSIONS_DIR), older than the "
        "job.",
        shows_during="Every rank that loads the extension is in FileBaton.wait (torch/utils/file_baton.py), uses no "
        "CPU, and no process compiles.",
        shows_after="The others, if there are any, time out in their next collective.",
        known_misses="Another job that shares the folder, on this host or over a network file system, may be building "
        "just now; only the ranks of this job are looked at.",
        remedies=(
            Remedy(
                text="See that nobody builds there, and remove the lock.",
                command="find ${TORCH_EXTENSIONS_DIR:-~/.cache/torch_extensions} -name lock -mmin +10 -delete",
                safety=Safety.BY_HAND,
            ),
            Remedy(
                text="Build before training, in one process (DeepSpeed: DS_BUILD_OPS=1 at its installation), or give "
                "each job a folder of its own by TORCH_EXTENSIONS_DIR.",
                safety=Safety.BY_HAND,
            ),
            WATCH,
        ),
        sources=("torch: torch/utils/file_baton.py", "torch: torch/utils/cpp_extension.py, _jit_compile"),
    ),
    Cause(
        code="PROC012",
        name="group-left-at-exit",
        summary="A rank's script came to its end without destroy_process_group, and its process was aborted while "
        "Python shut down.",
        what_happens="The threads of a process group outlive the script that left it. One of them that wants Python's "
        "lock while the interpreter shuts down is made to end in the middle of C++ code (Python up to 3.13), which "
        "ends the whole process: `terminate called without an active exception`, SIGABRT. It is a race: the same "
        "program ends well most of the time (measured on torch 2.13 and gloo: three ranks that only reduce and end, "
        "aborted in 4 of 12 runs).",
        shows_before="A script that calls init_process_group and no destroy_process_group, or leaves before it.",
        shows_during="Nothing: training is over, and all steps were made.",
        shows_after="Exit status -6 of a rank whose script had ended, and that one sentence. The launcher counts it as "
        "a failure, ends the other ranks, and may start the whole job again.",
        known_misses="Without a box nobody knows that the script had ended: a thread of one's own that is not joined "
        "gives the same sentence. Where other ranks still wait for this one, that is named instead (rank-exits-early).",
        remedies=(
            Remedy(
                text="Call `dist.destroy_process_group()` as the script's last step, on every rank, also when it "
                "leaves early (try … finally)."
            ),
            Remedy(text="The work was done before: look if the last checkpoint is whole rather than start again."),
        ),
        sources=(
            "Python: C API, Thread State and the Global Interpreter Lock, at finalization",
            "pytorch/pytorch: docs/source/distributed.md, Shutdown",
        ),
    ),
    Cause(
        code="PROC013",
        name="python-lock-held",
        summary="A rank sleeps in native code and holds Python's lock, which a thread that it waits for may want.",
        what_happens="A thread that waits in C or C++ has to let go of the interpreter's lock (GIL) first. Where it "
        "does not, and what it waits for needs the lock, both wait for ever, and no other thread of the process runs. "
        "torch up to 2.13 does so: where DistributedDataParallel's reducer has the last reference to its gloo process "
        "group, because destroy_process_group came first, freeing the model joins the group's thread with the lock "
        "held, and that thread wants it to free the state of its last all-reduce. Mostly at the end of a script, in "
        "the function that had the model. Measured: of groups made, used once and dropped in a loop by two ranks, one "
        "of the first 20 hangs.",
        shows_before="destroy_process_group() in a function that still has the DDP model, or before `del model`.",
        shows_during="The rank uses no CPU, at a line that waits for nothing: the end of a function, a `del`, an "
        "assignment. py-spy says `idle` of a thread that owns the GIL.",
        shows_after="The others time out in their next collective; at the end of the script only the launcher waits.",
        known_misses="faulthandler, which is asked where nobody may trace the process, does not say who has the lock. "
        "A slow read or a lock in an extension of one's own looks alike as long as it takes.",
        remedies=(
            Remedy(
                text="See what it waits for in C++: std::thread::join under ~ProcessGroupGloo is the known case.",
                command="py-spy dump --native --pid PID",
            ),
            Remedy(
                text="Let go of the model before the group: train in a function of its own, which has returned when "
                "`dist.destroy_process_group()` is called; or `del model, optimizer` before it.",
                safety=Safety.BY_HAND,
            ),
            RESTART,
        ),
        sources=(
            "torch: torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, ~ProcessGroupGloo",
            "torch: torch/csrc/distributed/c10d/init.cpp, Reducer",
            "Python: C API, Releasing the GIL from extension code",
        ),
    ),
)
