"""ENV, MEM, CKPT and PERF: what a look at one host finds before a job: its clock, limits, processors, disks, memory."""

from __future__ import annotations

from holdfast.findings import Cause, Remedy, Safety

CAUSES = (
    Cause(
        code="ENV014",
        name="process-limit",
        summary="There is no room for the processes and threads of a job, by a limit of the user, the control group or "
        "the kernel.",
        what_happens="Ranks, loader workers, the threads of OpenMP, NCCL and the autograd engine all count against "
        "RLIMIT_NPROC, the pids controller of the control group and kernel.threads-max. At the limit fork and "
        "pthread_create fail with EAGAIN wherever they happen to be called.",
        shows_before="A small pids.max (Kubernetes sets one for every pod, docker with --pids-limit), `ulimit -u` of a "
        "few thousand on a login host, a small stack limit.",
        shows_during="Some ranks never come up, or a loader starts fewer workers; pids.current is near pids.max.",
        shows_after="`Resource temporarily unavailable`, `can't start new thread`, `OpenBLAS blas_thread_init: "
        "pthread_create failed`, or libgomp's `Thread creation failed`, on whichever rank asked last.",
        known_misses="How many threads a job will have is an estimate. Root is not bound by RLIMIT_NPROC, and a limit "
        "of another user namespace is not seen.",
        remedies=(
            Remedy(
                text="See limit and use of the control group.",
                command="cat /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids.current; ulimit -u",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Start the container with more.",
                command="docker run --pids-limit=-1 IMAGE",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Fewer threads a rank.", command="export OMP_NUM_THREADS=4", safety=Safety.DISRUPTIVE),
        ),
        sources=("Linux: Documentation/admin-guide/cgroup-v2.rst, PID", "setrlimit(2)"),
    ),
    Cause(
        code="ENV015",
        name="clock-unsynchronized",
        summary="The clock of a host is wrong, or nobody keeps it right.",
        what_happens="Without NTP a clock drifts by seconds a week. Training does not need the time, but logs, traces "
        "and dumps of several hosts are put in order by it, certificates and cloud tokens are checked by it, and file "
        "servers and `make`-like caches compare it.",
        shows_before="`timedatectl` says `System clock synchronized: no`; `chronyc tracking` says `Not synchronised` "
        "or a large offset.",
        shows_during="Messages of one host seem to be earlier than their causes on another.",
        shows_after="A wrong rank is blamed by whoever sorts the logs by time; downloads fail with certificates `not "
        "yet valid` or `RequestTimeTooSkewed`.",
        known_misses="chrony without `rtcsync` keeps the clock right and does not tell the kernel; a virtual machine "
        "may have its clock set by its host. How far hosts are apart is measured only by comparing them.",
        remedies=(
            Remedy(
                text="See who keeps the clock, and how well.",
                command="timedatectl; chronyc tracking",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="Let chrony or systemd-timesyncd run on every host.", command="systemctl enable --now chronyd"),
        ),
        sources=("adjtimex(2)", "chrony: chronyc(1), tracking"),
    ),
    Cause(
        code="ENV016",
        name="package-installed-twice",
        summary="Two versions of a package are on the path, and which one is imported depends on its order.",
        what_happens="A user's site-packages, a PYTHONPATH or a system folder has another version of a package than "
        "the environment. Python takes the first on sys.path; a launcher, a shell and a batch system can have "
        "different orders, so that ranks of one job import different code.",
        shows_before="The same distribution with two versions in folders of sys.path; PYTHONPATH set in a profile; "
        "`pip install --user` beside a container's own packages.",
        shows_during="Usually nothing; or one host behaves otherwise than the others, with the same image.",
        shows_after="ImportError or AttributeError for names that the installed version does have, or different "
        "results on one host.",
        known_misses="What a program puts on sys.path later is not seen, nor code beside the script that hides a "
        "package.",
        remedies=(
            Remedy(
                text="See which one is imported.",
                command="python -c \"import sys; print(*sys.path, sep='\\n')\"; python -m pip list --verbose",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Keep the user's packages and PYTHONPATH out of jobs.",
                command="export PYTHONNOUSERSITE=1; unset PYTHONPATH",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("Python: site, sys.path and PYTHONNOUSERSITE",),
    ),
    Cause(
        code="ENV017",
        name="tracing-refused",
        summary="Processes of a job may not be looked into from outside on this host.",
        what_happens="Stacks of a stuck rank are taken by reading its memory, which needs ptrace's rights. Yama's "
        "ptrace_scope, a container without CAP_SYS_PTRACE or another user id refuse it. holdfast then asks the rank "
        "itself, which a rank inside a long native call cannot answer.",
        shows_before="`/proc/sys/kernel/yama/ptrace_scope` of 2 or 3, or of 1 without CAP_SYS_PTRACE.",
        shows_during="`holdfast attach` and py-spy say that the stack is refused.",
        shows_after="A verdict that has no line of a rank that hangs in native code.",
        known_misses="A filter of system calls (seccomp) can refuse it too and is not read; `holdfast run` starts the "
        "ranks itself and lets its watcher trace them where Yama allows that at all.",
        remedies=(
            Remedy(
                text="Start the container with the right to trace.",
                command="docker run --cap-add SYS_PTRACE IMAGE",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Let processes of one user trace each other.", command="sysctl -w kernel.yama.ptrace_scope=0"),
        ),
        sources=("Linux: Documentation/admin-guide/LSM/Yama.rst", "py-spy: README, permissions"),
    ),
    Cause(
        code="MEM006",
        name="host-swapping",
        summary="The host keeps memory in swap, or processes wait for memory.",
        what_happens="A page that is in swap comes back from a disk at a thousandth of the speed of memory. A rank "
        "that touches one is late, and every other rank waits for it in the next collective.",
        shows_before="Much of SwapTotal in use, or `some` in /proc/pressure/memory above some per cent.",
        shows_during="Step times with a long tail on one host; its ranks in state D; `si` and `so` of vmstat not 0.",
        shows_after="A straggler, or a watchdog time-out of the others, with nothing in the log of the late rank.",
        known_misses="Old pages that nobody touches again do no harm in swap: only the pressure tells that somebody "
        "waits, and kernels before 4.20 do not count it.",
        remedies=(
            Remedy(
                text="See whether pages move now.",
                command="vmstat 1 5; cat /proc/pressure/memory",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(text="End what fills the memory, or train with fewer loader workers."),
            Remedy(text="Put everything back into memory, where it fits.", command="swapoff -a && swapon -a"),
        ),
        sources=("Linux: Documentation/accounting/psi.rst", "proc(5), /proc/swaps"),
    ),
    Cause(
        code="MEM007",
        name="huge-pages-unsuited",
        summary="Memory is set aside as huge pages that nobody uses, or the kernel stalls programs to make some.",
        what_happens="Huge pages that are reserved (vm.nr_hugepages) are lost to all other uses. With transparent huge "
        "pages and `defrag` at `always` a page fault may wait until the kernel has moved memory together, for "
        "milliseconds, whenever a tensor is allocated.",
        shows_before="HugePages_Free large in /proc/meminfo; `[always]` in /sys/kernel/mm/transparent_hugepage/defrag.",
        shows_during="Less memory available than the sum of its uses explains; compact_stall of /proc/vmstat grows.",
        shows_after="Out of memory on a host that seems to have some; late steps on one host without a reason.",
        known_misses="Some programs (DPDK, databases, Gaudi's driver) reserve huge pages and use them later.",
        remedies=(
            Remedy(text="Give the reserved pages back.", command="sysctl -w vm.nr_hugepages=0"),
            Remedy(
                text="Let only programs that ask for them wait for huge pages.",
                command="echo madvise > /sys/kernel/mm/transparent_hugepage/defrag",
            ),
        ),
        sources=(
            "Linux: Documentation/admin-guide/mm/transhuge.rst",
            "Linux: Documentation/admin-guide/mm/hugetlbpage.rst",
        ),
    ),
    Cause(
        code="CKPT004",
        name="checkpoint-folder-unusable",
        summary="The folder for checkpoints cannot be written to, has too little room, or does not outlive the job.",
        what_happens="A path that is not mounted on this host, a read-only file system, a full one, one without free "
        "inodes, or one in memory. Hours of training go by before the first checkpoint finds out.",
        shows_before="The path does not exist or lies on an overlay or tmpfs; `df` and `df -i` show little left.",
        shows_during="Nothing until the first save. Then the writing rank raises, and the others wait in the barrier.",
        shows_after="`No space left on device`, `Read-only file system`, `Permission denied` on one rank; a time-out "
        "on the others; or a checkpoint that is gone with its container.",
        known_misses="Quotas of a user or project are not seen in free bytes. The user of the job may be another than "
        "the one who checks.",
        remedies=(
            Remedy(text="Name a folder on the shared storage that every host has mounted."),
            Remedy(text="Delete old checkpoints, or keep fewer."),
        ),
        sources=("statvfs(3)", "tmpfs(5)"),
    ),
    Cause(
        code="PERF007",
        name="processors-too-few",
        summary="The workers of a host have too few processors, or share them with others.",
        what_happens="A rank computes on the host too: it launches kernels, sums over gloo, decodes data. More ranks "
        "and loader workers than cores wait for each other; a quota (cpu.max) stops the whole group until its period "
        "is over, up to 100 ms; an affinity that was inherited keeps all ranks on a few cores.",
        shows_before="`nproc` below the number of workers; `nr_throttled` in cpu.stat; a load above the number of "
        "processors before the job starts.",
        shows_during="All ranks are slow alike, or those of one host are; GPUs idle in between.",
        shows_after="Throughput below that of other hosts, and no error.",
        known_misses="Threads are more than workers: OMP_NUM_THREADS times the ranks counts. A load can be that of "
        "processes that wait for a disk.",
        remedies=(
            Remedy(
                text="See what may be used, and who uses it.",
                command="nproc; uptime; top -b -n 1 | head -20",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Ask the scheduler for more cores a task.",
                command="sbatch --cpus-per-task=8 job.sh",
                safety=Safety.DISRUPTIVE,
            ),
            Remedy(text="Fewer threads a rank.", command="export OMP_NUM_THREADS=1", safety=Safety.DISRUPTIVE),
        ),
        sources=("Linux: Documentation/scheduler/sched-bwc.rst", "sched_setaffinity(2)"),
    ),
    Cause(
        code="PERF008",
        name="clock-source-slow",
        summary="The kernel reads the time from a slow device.",
        what_happens="Normally a program reads the processor's own counter without entering the kernel, in some 20 ns. "
        "Where the kernel found that counter unreliable it reads a device (hpet, acpi_pm) in a system call, for 1 to "
        "5 us, and all readers wait for each other.",
        shows_before="`hpet`, `acpi_pm` or `jiffies` in "
        "/sys/devices/system/clocksource/clocksource0/current_clocksource; `Marking clocksource 'tsc' as unstable` in "
        "the kernel's log.",
        shows_during="Much time in the kernel under clock_gettime; profilers, recorders and busy polling are slow.",
        shows_after="One host slower than the others by some per cent, without an error.",
        known_misses="A virtual machine's source (kvm-clock, Hyper-V's page) is quick and not reported.",
        remedies=(
            Remedy(
                text="See why the kernel left the processor's counter.",
                command="dmesg | grep -iE 'clocksource|tsc'",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Choose it again, if the other hosts use it.",
                command="echo tsc > /sys/devices/system/clocksource/clocksource0/current_clocksource",
            ),
        ),
        sources=("Linux: Documentation/virt/kvm/x86/timekeeping.rst", "vdso(7)"),
    ),
    Cause(
        code="PERF009",
        name="memory-on-another-node",
        summary="Processes run on one NUMA node of the host and use memory, or devices, of another.",
        what_happens="Each node has its own memory; that of another is reached over a link that is slower and shared. "
        "A launcher that does not bind ranks lets them wander; one that binds all to one node leaves the others idle. "
        "A node without free memory sends its allocations to the next.",
        shows_before="An affinity that covers one of several nodes for several ranks; a node with hardly any free "
        "memory beside one with much; vm.zone_reclaim_mode that is not 0; automatic balancing that moves pages.",
        shows_during="Ranks differ in speed by their node; copies to GPUs run at a fraction of PCIe's rate.",
        shows_after="Throughput that changes from start to start, with the placement.",
        known_misses="What each rank is bound to once it runs is not seen from here, only what it would inherit.",
        remedies=(
            Remedy(
                text="See nodes, memory and devices.",
                command="numactl --hardware; lscpu | grep -i numa",
                safety=Safety.AUTOMATIC,
            ),
            Remedy(
                text="Bind each rank to the node of its GPU; torchrun of torch 2.9 and later does it.",
                command="torchrun --numa-binding=node --nproc-per-node=8 train.py",
                safety=Safety.DISRUPTIVE,
            ),
        ),
        sources=("Linux: Documentation/admin-guide/sysctl/vm.rst, zone_reclaim_mode", "torch: torch/numa/binding.py"),
    ),
)
