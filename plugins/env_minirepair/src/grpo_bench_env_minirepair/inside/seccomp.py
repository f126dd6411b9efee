"""The system calls candidate code may make: an allow list, everything else is EPERM.

What is left is computing, memory, reading open descriptors, writing to them, clocks, and opening files for reading
where the view of the file system is shut. No process or thread creation, no exec, no sockets, no signals to anyone, no
ptrace, no mounts, no limits, no writing opens. Known for x86_64 and aarch64; elsewhere :func:`build` says why not.
"""

from __future__ import annotations

import ctypes
import struct

from . import kernel

# Each entry: call, its number on x86_64, its number on aarch64.
_ALLOWED = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, lseek 8 62, close 3 57,
dup3 292 24, fstat 5 80, newfstatat 262 79, readlinkat 267 78, faccessat 269 48,
faccessat2 439 439, statx 332 291, getdents64 217 61, getcwd 79 17, mmap 9 222, mprotect 10 226,
munmap 11 215, mremap 25 216, madvise 28 233, brk 12 214, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, sigaltstack 131 132, futex 202 98, sched_yield 24 124,
sched_getaffinity 204 123, nanosleep 35 101, clock_nanosleep 230 115, restart_syscall 219 128,
clock_gettime 228 113, clock_getres 229 114, gettimeofday 96 169, times 100 153, getrusage 98 165,
sysinfo 99 179, uname 63 160, getpid 39 172, getppid 110 173, gettid 186 178, getuid 102 174,
geteuid 107 175, getgid 104 176, getegid 108 177, getrandom 318 278, ppoll 271 73, pselect6 270 72,
rseq 334 293, exit 60 93, exit_group 231 94, stat 4 -, lstat 6 -, poll 7 -, select 23 -,
access 21 -, dup2 33 -, readlink 89 -
"""
_ENTRIES = [entry.split() for entry in _ALLOWED.split(",")]
# Machine name -> AUDIT_ARCH value, column of the table, calls that open files -> which argument holds the flags.
_MACHINES = {"x86_64": (0xC000_003E, 1, {257: 2, 2: 1}), "aarch64": (0xC000_00B7, 2, {56: 2})}
# O_WRONLY | O_RDWR | O_CREAT | O_TRUNC | O_APPEND | __O_TMPFILE: the same bits on both machines.
_WRITING = 0o3 | 0o100 | 0o1000 | 0o2000 | 0o20000000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _EPERM, _KILL = 0x7FFF_0000, 0x0005_0001, 0x8000_0000
_NR, _ARCH, _ARGUMENTS = 0, 4, 16


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


class Filter:
    """A compiled filter; :meth:`install` binds the calling process and all its offspring, for good."""

    def __init__(self, code: bytes) -> None:
        self._code = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.addressof(self._code))

    def install(self) -> None:
        kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.addressof(self._program))


def build(may_open: bool) -> tuple[Filter | None, str]:
    """The filter and "", or None and the reason why there is none for this machine."""
    if kernel.MACHINE not in _MACHINES or struct.calcsize("P") != 8:
        return None, f"no system call table for {kernel.MACHINE}"
    arch, column, opens = _MACHINES[kernel.MACHINE]
    allowed = [int(entry[column]) for entry in _ENTRIES if entry[column] != "-"]
    code: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NR)]
    for position, number in enumerate(allowed):
        last = len(allowed) - position - 1
        code.append((_EQUAL, last, 0 if last else 1, number))
    code.append((_RETURN, 0, 0, _ALLOW))
    for number, argument in opens.items() if may_open else ():
        code += [(_EQUAL, 0, 4, number), (_LOAD, 0, 0, _ARGUMENTS + 8 * argument), (_ANY_BIT, 1, 0, _WRITING),
                 (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _EPERM)]
    code.append((_RETURN, 0, 0, _EPERM))
    return Filter(b"".join(struct.pack("<HBBI", *item) for item in code)), ""

