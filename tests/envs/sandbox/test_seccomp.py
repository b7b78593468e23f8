"""The filters, run by a small model of the kernel's machine: which call gets which answer."""

from __future__ import annotations

import errno
import platform
import struct

import pytest

from srpo_envs.sandbox.keeper import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def answer(program: bytes, number: int, first: int = 0, *, arch: int) -> int:
    """What the filter returns for a call."""
    data = {0: number, 4: arch, 16: first}
    instructions = list(struct.iter_unpack("=HBBI", program))
    at, word = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x20:
            word = data[value]
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[code]
            at += if_true if holds else if_false


@pytest.fixture(params=ARCHITECTURES)
def machine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(platform, "machine", lambda: request.param)
    return str(request.param)


def filters() -> dict[str, bytes]:
    return {
        "box": seccomp.box_filter(),
        "program": seccomp.program_filter(may_signal_itself=True),
        "weak": seccomp.program_filter(may_signal_itself=False),
    }


@pytest.mark.parametrize(
    ("name", "box", "program", "weak"),
    [
        ("mount", EPERM, EPERM, EPERM),
        ("ptrace", EPERM, EPERM, EPERM),
        ("socket", EPERM, EPERM, EPERM),
        ("unshare", EPERM, EPERM, EPERM),
        ("bpf", EPERM, EPERM, EPERM),
        ("io_uring_setup", EPERM, EPERM, EPERM),
        ("execve", ALLOW, EPERM, EPERM),
        ("kill", ALLOW, EPERM, EPERM),
        ("memfd_create", ALLOW, EPERM, EPERM),
        ("setsid", ALLOW, EPERM, EPERM),
        ("tgkill", ALLOW, ALLOW, EPERM),
        ("clone3", ENOSYS, ENOSYS, ENOSYS),
    ],
)
def test_named_calls(machine: str, name: str, box: int, program: int, weak: int) -> None:
    number = seccomp._numbers()[name]
    given = [answer(item, number, arch=ARCHITECTURES[machine]) for item in filters().values()]
    assert given == [box, program, weak]


def test_every_refused_call_is_refused_and_every_other_is_let_through(machine: str) -> None:
    refused = {number for name, number in seccomp._numbers().items() if name not in ("clone", "clone3")}
    weak = filters()["weak"]
    for number in set(range(463)) - {seccomp._numbers()["clone"], 435}:
        expected = EPERM if number in refused else ALLOW
        assert answer(weak, number, arch=ARCHITECTURES[machine]) == expected, number


@pytest.mark.parametrize("number", [463, 1000, 0x40000039, 0xFFFFFFFF])
def test_calls_beyond_the_known_do_not_exist(machine: str, number: int) -> None:
    assert {answer(item, number, arch=ARCHITECTURES[machine]) for item in filters().values()} == {ENOSYS}


def test_another_architecture_is_killed(machine: str) -> None:
    assert {answer(item, 1, arch=0x40000003) for item in filters().values()} == {KILL}


@pytest.mark.parametrize(
    ("flags", "box", "program"),
    [
        (0x003D0F00, ALLOW, ALLOW),  # a thread of glibc
        (0x01200011, ALLOW, EPERM),  # a fork of glibc
        (0x10000011, EPERM, EPERM),  # a user namespace
        (0x00020011, EPERM, EPERM),  # a mount namespace
    ],
)
def test_clone_is_judged_by_its_flags(machine: str, flags: int, box: int, program: int) -> None:
    number, arch = seccomp._numbers()["clone"], ARCHITECTURES[machine]
    assert answer(seccomp.box_filter(), number, flags, arch=arch) == box
    assert answer(seccomp.program_filter(may_signal_itself=True), number, flags, arch=arch) == program


def test_unknown_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "mips")
    with pytest.raises(seccomp.UnsupportedMachine, match="'mips'"):
        seccomp.box_filter()
