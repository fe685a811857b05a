"""Run a program that may not use ptrace(2) and process_vm_readv(2), as container runtimes forbid."""

import ctypes
import errno
import os
import struct

from tests.forked_programs import run_forking

_SYSCALLS = {"x86_64": (101, 310), "aarch64": (117, 270)}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PTRACE_ATTACH = 38, 22, 16


class _Filter(ctypes.Structure):
    _fields_ = [("size", ctypes.c_ushort), ("lines", ctypes.c_void_p)]


def run_without_ptrace(*command):
    """Run ``-m MODULE …`` or ``SCRIPT …`` in this process."""
    syscalls = _SYSCALLS[os.uname().machine]
    lines = [(0x20, 0, 0, 0)]  # load the number of the system call
    lines += [(0x15, len(syscalls) - at, 0, number) for at, number in enumerate(syscalls)]
    lines += [(0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | errno.EPERM)]  # allow; fail
    program = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(program)
    refuse = _Filter(len(lines), ctypes.cast(buffer, ctypes.c_void_p))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(refuse), 0, 0) == 0
    assert libc.ptrace(_PTRACE_ATTACH, os.getppid(), 0, 0) == -1
    assert ctypes.get_errno() == errno.EPERM
    run_forking(*command)
