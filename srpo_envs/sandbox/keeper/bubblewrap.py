"""The command lines of a box: what a program may see when namespaces exist, and the weaker form without them."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

SCRATCH = "/tmp"
"""The one folder a boxed program may write to; it lives in memory and dies with the box."""

_INSIDE = "/inside"
_PACKAGES = "/packages"
_ENVIRONMENT = {"HOME": SCRATCH, "LANG": "C.UTF-8", "MALLOC_ARENA_MAX": "1", "OPENBLAS_NUM_THREADS": "1"}
"""The whole environment. The two limits on arenas and threads keep a small address space enough for numpy."""

_NOBODY = 65534
_CODE = ("inside.py", "plain.py")


def environment(scratch: str) -> dict[str, str]:
    """Return the environment of a box without namespaces."""
    return _ENVIRONMENT | {"HOME": scratch}


def interpreter() -> str:
    """Return the real path of the interpreter that runs this process."""
    return os.path.realpath(sys.executable)


def python_command(folder: str) -> list[str]:
    """Return the command line of a box's first process."""
    return [interpreter(), "-E", "-s", "-S", "-B", "-X", "utf8", f"{folder}/inside.py"]


def code_folder() -> Path:
    """Return where `inside.py` lies on the host."""
    return Path(__file__).resolve().parent


def boxed_command(bwrap: str, *, packages: Sequence[str], filter_fd: int, scratch_bytes: int) -> list[str]:
    """Return the bubblewrap command line of a box.

    Args:
        bwrap: path of the bubblewrap executable.
        packages: host paths of packages that programs may import.
        filter_fd: descriptor of the system call filter of everything in the box.
        scratch_bytes: size of the scratch folder.
    """
    arguments = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--clearenv"]
    arguments += ["--uid", str(_NOBODY), "--gid", str(_NOBODY), "--hostname", "box", "--cap-drop", "ALL"]
    for name, value in _ENVIRONMENT.items():
        arguments += ["--setenv", name, value]
    # First, since the interpreter itself may lie below it on the host.
    arguments += ["--size", str(scratch_bytes), "--tmpfs", SCRATCH]
    arguments += python_mounts()
    for name in _CODE:
        arguments += ["--ro-bind", str(code_folder() / name), f"{_INSIDE}/{name}"]
    for path in packages:
        arguments += ["--ro-bind", path, f"{_PACKAGES}/{os.path.basename(path)}"]
    for device in ("/dev/null", "/dev/urandom"):
        arguments += ["--dev-bind", device, device, "--remount-ro", device]
    arguments += ["--symlink", "/proc/self/fd/0", "/dev/stdin", "--symlink", "/proc/self/fd/1", "/dev/stdout"]
    # Where boxes are root's, settings below /proc/sys and the modes of devices belong to their user, even without any
    # capability: all that is not scratch is read-only. The root itself is a tmpfs without a size.
    arguments += ["--proc", "/proc", "--remount-ro", "/proc", "--remount-ro", "/", "--chdir", SCRATCH]
    arguments += ["--seccomp", str(filter_fd), "--", *python_command(_INSIDE)]
    return arguments


def import_path(packages: Sequence[str], *, is_boxed: bool) -> list[str]:
    """Return what a program's `sys.path` starts with."""
    if not packages:
        return []
    return [_PACKAGES] if is_boxed else sorted({os.path.dirname(path) for path in packages})


def python_mounts() -> list[str]:
    """Return read-only mounts of the interpreter, its standard library and its shared libraries."""
    paths = needed_paths()
    arguments = [item for path in paths for item in ("--ro-bind", path, path)]
    for link in ("/lib", "/lib64"):
        if os.path.islink(link):
            arguments += ["--symlink", os.readlink(link), link]
    sites = {
        os.path.realpath(sysconfig.get_path(name, vars={"base": sys.base_prefix})) for name in ("purelib", "platlib")
    }
    for site in sorted(sites):
        if os.path.isdir(site) and any(_is_below(site, path) for path in paths):
            arguments += ["--tmpfs", site, "--remount-ro", site]
    return arguments


def needed_paths() -> list[str]:
    """Return the host paths that a bare interpreter reads, none below another."""
    paths = {interpreter(), *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))}
    paths |= {os.path.dirname(path) for path in _mapped_libraries()}
    paths |= {path for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache") if os.path.exists(path)}
    real = {os.path.realpath(path) for path in paths}
    return sorted(path for path in real if not any(_is_below(path, other) for other in real))


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _mapped_libraries() -> set[str]:
    """Return the shared libraries that this process, a bare interpreter itself, has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line[line.index("/") :] for line in lines if "/" in line and ".so" in line}


def drop_root(paths: Sequence[str]) -> bool:
    """Become nobody when this process is root and nobody can read these paths; returns whether root is gone.

    Boxes of an ordinary user are held to their number of threads by the kernel; root's never are.
    """
    if os.geteuid() != 0:
        return True
    os.seteuid(_NOBODY)
    can_read = all(os.access(path, os.R_OK | (os.X_OK * os.path.isdir(path)), effective_ids=True) for path in paths)
    os.seteuid(0)
    if can_read:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)
    return can_read
