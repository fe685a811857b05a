"""A wall clock that all processes of a job read, and that can be moved while they run.

A library is loaded in front of libc (``LD_PRELOAD``), which adds to what the kernel says the seconds that stand in a
file. Monotonic clocks are left alone, as a real jump leaves them; so are times that the kernel itself waits for.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import WorldError

_FILE = "clock"
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static const volatile long long *shift;

__attribute__((constructor)) static void begin(void) {
    int fd = open(FILE_NAME, O_RDONLY | O_CLOEXEC);
    void *found = fd < 0 ? MAP_FAILED : mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) shift = found;
}

int clock_gettime(clockid_t clock, struct timespec *told) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, told);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) told->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *restrict told, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    told->tv_sec = now.tv_sec;
    told->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *told) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (told) *told = now.tv_sec;
    return now.tv_sec;
}
"""


def why_not() -> str:
    """Why there can be no such clock here; empty where there can be."""
    return "" if shutil.which("cc") else "a clock that can be moved needs a C compiler, cc"


def make(folder: Path) -> Mapping[str, str]:
    """Make a clock in ``folder`` that is right; the variables that make programs read it.

    Raises:
        WorldError: it cannot be compiled.
    """
    source, library, file = folder / "clock.c", folder / "clock.so", folder / _FILE
    file.write_bytes(struct.pack("q", 0))
    source.write_text(_SOURCE)
    command = ["cc", "-shared", "-fPIC", f'-DFILE_NAME="{file.resolve()}"', "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorldError("the clock of a scenario cannot be compiled", why=done.stderr.strip().splitlines()[-1][:200])
    return {"LD_PRELOAD": str(library.resolve())}


def move(folder: Path, seconds: float) -> None:
    """Let all that reads the clock of ``folder`` read it so many whole seconds later than it is."""
    with (folder / _FILE).open("r+b") as stream:
        stream.write(struct.pack("q", int(seconds)))
