"""A realtime clock shared by all processes of a job that can be shifted while they run.

A library preloaded before libc (``LD_PRELOAD``) adds the seconds stored in a file to the kernel's
time. Monotonic clocks and kernel timeouts are not affected, as in a real clock jump.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.core.errors import WorldError

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

int clock_gettime(clockid_t clock, struct timespec *result) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, result);
    int realtime = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    if (!failed && shift && realtime) result->tv_sec += *shift;
    return failed;
}

int gettimeofday(struct timeval *restrict result, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    result->tv_sec = now.tv_sec;
    result->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""


def unsupported_reason() -> str:
    """Return why the clock cannot be built here; '' if it can."""
    return "" if shutil.which("cc") else "a shiftable clock needs a C compiler (cc)"


def create_clock(folder: Path) -> Mapping[str, str]:
    """Create an unshifted clock in ``folder``; return the variables that activate it.

    Raises:
        WorldError: it cannot be compiled.
    """
    source, library, file = folder / "clock.c", folder / "clock.so", folder / _FILE
    file.write_bytes(struct.pack("q", 0))
    source.write_text(_SOURCE)
    command = [
        "cc",
        "-shared",
        "-fPIC",
        f'-DFILE_NAME="{file.resolve()}"',
        "-o",
        str(library),
        str(source),
        "-ldl",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise WorldError(
            "compiling the clock of a scenario failed",
            why=done.stderr.strip().splitlines()[-1][:200],
        )
    return {"LD_PRELOAD": str(library.resolve())}


def shift_clock(folder: Path, seconds: float) -> None:
    """Set the shift of the clock in ``folder`` to ``seconds``, rounded to full seconds."""
    with (folder / _FILE).open("r+b") as stream:
        stream.write(struct.pack("q", int(seconds)))
