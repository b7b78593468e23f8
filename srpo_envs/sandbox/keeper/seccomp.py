"""Filters of system calls, as programs for the kernel's packet filter machine.

Two filters exist. `box_filter` holds for everything in a box: no mounts, namespaces, tracing, kernel interfaces, shared
memory or sockets. `program_filter` is added on top for model-written code: no new processes, no exec, no signals to
others. A refused call fails with EPERM, so a program sees an ordinary error; numbers beyond the newest known call are
answered with ENOSYS, so calls that later kernels add are refused too.

Numbers: `arch/x86/entry/syscalls/syscall_64.tbl` and `include/uapi/asm-generic/unistd.h` of Linux 6.12.
"""

from __future__ import annotations

import errno
import platform
import struct

_LOAD_WORD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16

_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020080
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET and NEWTIME."""

_FIRST_UNKNOWN = 463
"""One beyond the newest call of Linux 6.12; higher numbers, those of the x32 interface among them, are refused."""

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_SAME_EVERYWHERE = {
    "pidfd_send_signal": 424,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "pidfd_open": 434,
    "clone3": 435,
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "statmount": 457,
    "listmount": 458,
}
_NUMBERS: dict[str, dict[str, int]] = {
    "x86_64": {
        "shmget": 29, "shmat": 30, "socket": 41, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62,
        "semget": 64, "msgget": 68, "ptrace": 101, "syslog": 103, "setpgid": 109, "setsid": 112, "rt_sigqueueinfo": 129,
        "mknod": 133, "uselib": 134, "personality": 135, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155,
        "_sysctl": 156, "adjtimex": 159, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
        "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172,
        "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "tkill": 200, "lookup_dcookie": 212,
        "clock_settime": 227, "tgkill": 234, "mq_open": 240, "kexec_load": 246, "add_key": 248, "request_key": 249,
        "keyctl": 250, "mknodat": 259, "unshare": 272, "move_pages": 279, "rt_tgsigqueueinfo": 297,
        "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "clock_adjtime": 305, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "finit_module": 313, "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "execveat": 322,
        "userfaultfd": 323,
    },
    "aarch64": {
        "lookup_dcookie": 18, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "vhangup": 58,
        "quotactl": 60, "acct": 89, "personality": 92, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "kill": 129, "tkill": 130,
        "tgkill": 131, "rt_sigqueueinfo": 138, "reboot": 142, "setpgid": 154, "setsid": 157, "sethostname": 161,
        "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "mq_open": 180, "msgget": 186, "semget": 190,
        "shmget": 194, "shmat": 196, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220,
        "execve": 221, "swapon": 224, "swapoff": 225, "move_pages": 239, "rt_tgsigqueueinfo": 240,
        "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264, "open_by_handle_at": 265,
        "clock_adjtime": 266, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272,
        "finit_module": 273, "memfd_create": 279, "bpf": 280, "execveat": 281, "userfaultfd": 282,
        "kexec_file_load": 294,
    },
}  # fmt: skip

_SIGNALS = {"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"}
_PROCESSES = {"fork", "vfork", "execve", "execveat", "setsid", "setpgid"}
_BY_ARGUMENT = {"clone", "clone3"}
_NEEDED_BY_THE_BOX = _SIGNALS | _PROCESSES | _BY_ARGUMENT | {"memfd_create"}


class UnsupportedMachine(Exception):
    """No system call numbers are known for this processor."""


def box_filter() -> bytes:
    """Return the filter of everything in a box: processes may be made, namespaces may not."""
    numbers = _numbers()
    refused = set(numbers) - _NEEDED_BY_THE_BOX
    return _assemble(numbers, refused, clone_jump=(_JUMP_ANY_BIT, _CLONE_NAMESPACES, 0, 1))


def program_filter(*, may_signal_itself: bool) -> bytes:
    """Return the filter of model-written code: threads may be made, processes may not.

    Args:
        may_signal_itself: leave `tgkill`, which `abort` needs. It reaches every process in sight, so it is for boxes
            that have process ids of their own.
    """
    numbers = _numbers()
    refused = set(numbers) - _BY_ARGUMENT - ({"tgkill"} if may_signal_itself else set())
    return _assemble(numbers, refused, clone_jump=(_JUMP_ANY_BIT, _CLONE_THREAD, 1, 0))


def _numbers() -> dict[str, int]:
    machine = platform.machine()
    if machine not in _NUMBERS:
        raise UnsupportedMachine(f"the sandbox knows no system calls of {machine!r}; known: {', '.join(_NUMBERS)}")
    return _NUMBERS[machine] | _SAME_EVERYWHERE


def _assemble(numbers: dict[str, int], refused: set[str], *, clone_jump: tuple[int, int, int, int]) -> bytes:
    """Return the instructions; `clone_jump` steps over the refusal when it likes the flags of `clone`."""
    program = [
        _statement(_LOAD_WORD, _ARCH_AT),
        _jump(_JUMP_EQUAL, _ARCHITECTURES[platform.machine()], 1, 0),
        _statement(_RETURN, _KILL),
        _statement(_LOAD_WORD, _NUMBER_AT),
        _jump(_JUMP_GREATER_EQUAL, _FIRST_UNKNOWN, 0, 1),
        _statement(_RETURN, _ERRNO | errno.ENOSYS),
        # The flags of clone3 lie behind a pointer; told that it does not exist, glibc falls back to clone.
        _jump(_JUMP_EQUAL, numbers["clone3"], 0, 1),
        _statement(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for number in sorted(numbers[name] for name in refused):
        program += [_jump(_JUMP_EQUAL, number, 0, 1), _statement(_RETURN, _ERRNO | errno.EPERM)]
    program += [
        _jump(_JUMP_EQUAL, numbers["clone"], 0, 3),
        _statement(_LOAD_WORD, _FIRST_ARGUMENT_AT),
        _jump(*clone_jump),
        _statement(_RETURN, _ERRNO | errno.EPERM),
        _statement(_RETURN, _ALLOW),
    ]
    return b"".join(program)


def _statement(code: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, 0, 0, value)


def _jump(code: int, value: int, if_true: int, if_false: int) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
