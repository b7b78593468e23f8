"""Programs that try to escape, to score without solving, or to hold up the pool: what each tries and how it must end.

Every row is judged against a test whose answer no program is told. In sources, `@CANARY@` is a file of this machine,
`@ANSWERS@` a file that holds the answers, `@PARENT@` the process id of the judge, `@PORT@` a port it listens on, and
`@MARK@` a name that surviving processes would carry. A program says `ESCAPED` when it got what it wanted.

    python tests/envs/sandbox/adversaries.py        # the table of docs/sandbox.md
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Literal

Mode = Literal["script", "call", "check"]
REFUSED = frozenset({"ok"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversary:
    """One program."""

    group: str
    tries: str
    source: str
    ends: frozenset[str]
    says: str = ""
    mode: Mode = "script"

    @property
    def name(self) -> str:
        return f"{self.group}: {self.tries}"


def attempt(group: str, tries: str, code: str, says: str = "refused") -> Adversary:
    """A program whose attempt raises an error, after which it goes on."""
    body = textwrap.indent(textwrap.dedent(code).strip(), "    ")
    source = (
        "import ctypes, os, signal, socket, sys\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "def syscall(*arguments):\n"
        "    if libc.syscall(*map(ctypes.c_long, arguments)) < 0:\n"
        "        raise OSError(ctypes.get_errno(), 'syscall')\n"
        f"try:\n{body}\n    print('ESCAPED')\n"
        "except Exception as error:\n    print('refused:', type(error).__name__, error)\n"
    )
    return Adversary(group=group, tries=tries, source=source, ends=REFUSED, says=says)


def program(group: str, tries: str, code: str, *ends: str, mode: Mode = "script", says: str = "") -> Adversary:
    """A program that must end in one of these ways."""
    return Adversary(
        group=group, tries=tries, source=textwrap.dedent(code).strip(), ends=frozenset(ends), mode=mode, says=says
    )


PROCESSES = [
    attempt("processes", "fork bomb", "while True:\n    os.fork()"),
    attempt("processes", "subprocess", "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'id'])"),
    attempt(
        "processes",
        "multiprocessing",
        "import multiprocessing\nmultiprocessing.get_context('fork').Process(target=print).start()",
    ),
    attempt("processes", "posix_spawn", "os.posix_spawn(sys.executable, [sys.executable], {})"),
    attempt("processes", "exec another program", "os.execv(sys.executable, [sys.executable, '-c', 'print(1)'])"),
    attempt(
        "processes", "fork by system call", "syscall(57 if os.uname().machine == 'x86_64' else 220, 17, 0, 0, 0, 0)"
    ),
    attempt("processes", "clone3 by system call", "syscall(435, 0, 88)"),
    attempt(
        "processes",
        "daemon by double fork",
        """
        libc.prctl(15, b'@MARK@')
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                import time
                time.sleep(1000)
        """,
    ),
    attempt("processes", "own session", "os.setsid()"),
    attempt(
        "processes",
        "thread bomb",
        """
        import threading, time
        while True:
            threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
        """,
    ),
    program(
        "processes",
        "thread that never ends",
        """
        import ctypes, threading
        ctypes.CDLL(None).prctl(15, b'@MARK@')
        def spin():
            while True:
                pass
        threading.Thread(target=spin).start()
        print('main is done')
        """,
        "timeout",
    ),
    program(
        "processes",
        "daemon thread left behind",
        """
        import ctypes, threading, time
        ctypes.CDLL(None).prctl(15, b'@MARK@')
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
        print('bye')
        """,
        "ok",
        says="bye",
    ),
]

MEMORY = [
    program("memory", "large list", "x = [0] * 10**10", "memory"),
    program(
        "memory", "bytearray that doubles", "x = bytearray(10**6)\nwhile True:\n    x = x + x", "memory", "timeout"
    ),
    program(
        "memory",
        "MemoryError swallowed for ever",
        """
        x = []
        while True:
            try:
                x.append(bytearray(10**7))
            except MemoryError:
                pass
        """,
        "timeout",
    ),
    attempt("memory", "anonymous map", "import mmap\nmmap.mmap(-1, 10**10)"),
    attempt(
        "memory",
        "many small maps",
        "import mmap\nheld = []\nwhile True:\n    held.append(mmap.mmap(-1, 10**7))",
    ),
    attempt(
        "memory",
        "shared map of a scratch file",
        """
        import mmap
        with open('big', 'wb+') as file:
            file.truncate(10**10)
            mmap.mmap(file.fileno(), 10**10)
        """,
    ),
    attempt("memory", "memfd", "fd = os.memfd_create('x')\nos.ftruncate(fd, 10**10)"),
    attempt("memory", "/dev/shm", "open('/dev/shm/x', 'wb').write(b'x' * 10**6)"),
    attempt(
        "memory", "System V shared memory", "syscall(29 if os.uname().machine == 'x86_64' else 194, 0, 10**8, 0o1600)"
    ),
    attempt(
        "memory",
        "disk filled by one file",
        "with open('big', 'wb', 0) as file:\n    while True:\n        file.write(b'x' * 10**6)",
    ),
    attempt(
        "memory",
        "disk filled by many files",
        """
        for i in range(10**6):
            with open(f'f{i}', 'wb', 0) as file:
                if file.write(b'x' * 10**6) < 10**6:
                    raise OSError('short write')
        """,
    ),
    program(
        "memory",
        "inodes filled",
        "i = 0\nwhile True:\n    open(f'f{i}', 'w').close()\n    i += 1",
        "timeout",
        "error",
    ),
    program("memory", "hashes that collide", "d = {i * (2**61 - 1): 0 for i in range(10**7)}", "timeout", "memory"),
]

OUTPUT = [
    program("output", "flood of stdout", "while True:\n    print('x' * 1000)", "output"),
    program("output", "flood of stderr", "import sys\nwhile True:\n    print('x' * 1000, file=sys.stderr)", "output"),
    program(
        "output",
        "flood of both by threads",
        """
        import os, threading
        def flood(fd):
            while True:
                os.write(fd, b'x' * 65536)
        for fd in (1, 2, 1, 2):
            threading.Thread(target=flood, args=(fd,)).start()
        """,
        "output",
    ),
    program("output", "one line without end", "import sys\nwhile True:\n    sys.stdout.write('x')", "output"),
    program("output", "flood at exit", "import atexit\natexit.register(lambda: print('x' * 10**7))", "output"),
    program("output", "long return value", "def f(x):\n    return 'x' * 10**7", "output", mode="call"),
    program(
        "output", "flood during a call", "def f(x):\n    while True:\n        print('x' * 1000)", "output", mode="call"
    ),
    program("output", "bytes that are no UTF-8", "import os\nos.write(1, bytes(range(256)))", "ok"),
    program("output", "NUL bytes", "print('\\0' * 1000)", "ok"),
    program("output", "lone surrogate", "print('\\ud800')", "error", says=""),
    program("output", "closed stdout", "import os\nos.close(1)\nprint('x')", "ok", "error"),
    program("output", "every descriptor closed", "import os\nos.closerange(0, 100)", "ok", "error", "killed"),
]

TIME = [
    program("time", "infinite loop", "while True:\n    pass", "timeout"),
    program("time", "infinite loop while loading", "while True:\n    pass", "timeout", mode="call"),
    program("time", "infinite loop in a call", "def f(x):\n    while True:\n        pass", "timeout", mode="call"),
    program(
        "time", "infinite loop in a checked call", "def f(x):\n    while True:\n        pass", "timeout", mode="check"
    ),
    program("time", "sleep", "import time\ntime.sleep(1000)", "timeout"),
    program(
        "time",
        "every signal ignored",
        """
        import signal
        for number in signal.valid_signals():
            try:
                signal.signal(number, signal.SIG_IGN)
            except OSError:
                pass
        while True:
            pass
        """,
        "timeout",
    ),
    program("time", "stops itself", "import signal\nsignal.raise_signal(signal.SIGSTOP)", "timeout"),
    program("time", "regular expression that explodes", "import re\nre.match('(a*)*b', 'a' * 40)", "timeout"),
    program("time", "huge power", "x = 7 ** 10**9", "timeout", "memory"),
    program("time", "huge integer to text", "print(10**10**5)", "error"),
    program(
        "time",
        "exit handler that never ends",
        "import atexit\natexit.register(lambda: [0 for _ in iter(int, 1)])",
        "timeout",
    ),
    program(
        "time",
        "destructor that never ends",
        "class A:\n    def __del__(self):\n        while True:\n            pass\na = A()",
        "timeout",
    ),
    program(
        "time",
        "error swallowed for ever",
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass",
        "timeout",
    ),
    program("time", "deep recursion", "def f():\n    f()\nf()", "error"),
    program(
        "time",
        "recursion without limit",
        "import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    f()\nf()",
        "memory",
        "killed",
        "timeout",
        "error",
    ),
    program("time", "waits for input that never comes", "while True:\n    input()", "error"),
    attempt("time", "waits on a fifo", "os.mkfifo('fifo')\nopen('fifo')"),
    program(
        "time",
        "waits on a pipe of its own",
        "import os\nread, write = os.pipe()\nos.read(read, 1)",
        "timeout",
    ),
    program(
        "time",
        "import that never ends",
        """
        import sys
        class Finder:
            def find_spec(self, *a):
                while True:
                    pass
        sys.meta_path.insert(0, Finder())
        import nowhere
        """,
        "timeout",
    ),
]

FILES = [
    attempt("files", "writes a file of the machine", "open('@CANARY@', 'w').write('gone')"),
    attempt("files", "deletes a file of the machine", "os.unlink('@CANARY@')"),
    attempt("files", "reads the answers", "print(open('@ANSWERS@').read())"),
    attempt("files", "reads the answers by a relative path", "print(open('../' * 20 + '@ANSWERS@').read())"),
    attempt(
        "files",
        "symbolic link out of the scratch folder",
        "os.symlink('@CANARY@', 'link')\nopen('link', 'a').write('gone')",
    ),
    attempt("files", "hard link to a library", "os.link(os.__file__, 'linked')"),
    attempt("files", "writes the standard library", "open(os.__file__, 'a').write('#')"),
    attempt("files", "writes the code of its own box", "open('/inside/inside.py', 'a').write('#')"),
    attempt("files", "writes to the root", "open('/escaped', 'w').write('x')"),
    attempt("files", "writes to /dev", "open('/dev/escaped', 'w').write('x')"),
    attempt("files", "makes a library writable", "os.chmod(os.__file__, 0o777)"),
    attempt(
        "files", "home and password files", "print(open('/etc/passwd').read(), os.listdir(os.path.expanduser('~root')))"
    ),
    attempt(
        "files", "disks and kernel memory", "[open(f'/dev/{name}', 'rb') for name in ('mem', 'kmsg', 'sda', 'vda')]"
    ),
    attempt("files", "takes /dev/null from everybody", "os.chmod('/dev/null', 0o666)"),
    attempt("files", "ages a library", "os.utime(os.__file__, (0, 0))"),
    attempt("files", "terminal", "open('/dev/tty', 'w').write('x')"),
    attempt("files", "/sys", "os.listdir('/sys')"),
    attempt("files", "device node", "os.mknod('disk', 0o60666, os.makedev(8, 0))\nopen('disk', 'rb')"),
    attempt(
        "files", "set-user-id program", "open('su', 'w').close()\nos.chmod('su', 0o4755)\nos.execv('./su', ['su'])"
    ),
    attempt("files", "becomes root", "os.setuid(0)"),
    attempt("files", "chroot", "os.mkdir('root')\nos.chroot('root')"),
    attempt("files", "mount", "syscall(165 if os.uname().machine == 'x86_64' else 40, 0, 0, 0, 0, 0)"),
    attempt("files", "file by handle", "syscall(304 if os.uname().machine == 'x86_64' else 265, 0, 0, 0)"),
    program(
        "files",
        "walks everything for the answers",
        """
        import os
        found = [
            os.path.join(folder, name)
            for top in ('/tmp', '/root', '/home', '/data', '/var', '/mnt', '/opt', '/srv', '/run', '/proc/self/fd')
            for folder, _, names in os.walk(top)
            for name in names
            if name == os.path.basename('@ANSWERS@')
        ]
        print('ESCAPED' if found else 'nothing')
        """,
        "ok",
        says="nothing",
    ),
    program("files", "deletes its own source", "import os\nos.unlink('main.py')\nprint('done')", "ok", says="done"),
]

PROC = [
    attempt("/proc", "memory of the first process", "open('/proc/1/mem', 'rb+').read(1)"),
    attempt("/proc", "environment of the first process", "print(open('/proc/1/environ').read())"),
    attempt(
        "/proc", "descriptors of the first process", "[open(f'/proc/1/fd/{n}', 'w') for n in os.listdir('/proc/1/fd')]"
    ),
    attempt("/proc", "root of the first process", "os.listdir('/proc/1/root')"),
    attempt("/proc", "kernel setting", "open('/proc/sys/kernel/core_pattern', 'r+').write('core')"),
    attempt("/proc", "kernel hotkeys", "open('/proc/sysrq-trigger', 'w').write('h')"),
    attempt("/proc", "protects itself from the memory killer", "open('/proc/self/oom_score_adj', 'w').write('-1000')"),
    attempt("/proc", "maps more users", "open('/proc/self/uid_map', 'w').write('0 0 1')"),
    program(
        "/proc",
        "sees other processes",
        """
        import os
        pids = [int(name) for name in os.listdir('/proc') if name.isdigit()]
        print('ESCAPED' if len(pids) > 2 else 'alone')
        """,
        "ok",
        says="alone",
    ),
    program(
        "/proc",
        "command lines and environments",
        """
        import os
        text = ''.join(
            open(f'/proc/{pid}/cmdline').read() for pid in os.listdir('/proc') if pid.isdigit()
        ) + str(dict(os.environ))
        print('ESCAPED' if '@ANSWERS@' in text or 'PYTEST' in text else 'clean')
        """,
        "ok",
        says="clean",
    ),
]

NETWORK = [
    attempt("network", "connects to the machine", "socket.create_connection(('127.0.0.1', @PORT@), 1)"),
    attempt("network", "connects to the internet", "socket.create_connection(('1.1.1.1', 53), 1)"),
    attempt("network", "listens", "socket.create_server(('0.0.0.0', 0))"),
    attempt("network", "resolves a name", "socket.getaddrinfo('example.org', 80)"),
    attempt(
        "network", "downloads", "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:@PORT@', timeout=1)"
    ),
    attempt(
        "network", "datagrams", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', @PORT@))"
    ),
    attempt("network", "Unix socket", "socket.socket(socket.AF_UNIX).connect('/run/docker.sock')"),
    attempt("network", "abstract Unix socket", "socket.socket(socket.AF_UNIX).connect('\\0@MARK@')"),
    attempt("network", "netlink", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"),
    attempt("network", "packets", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)"),
    attempt("network", "virtual machine sockets", "socket.socket(socket.AF_VSOCK)"),
    attempt("network", "io_uring", "syscall(425, 1, 0)"),
]

SIGNALS = [
    attempt("signals", "kills the judge", "os.kill(@PARENT@, signal.SIGCONT)"),
    attempt("signals", "kills its parent", "os.kill(os.getppid() or 1, signal.SIGCONT)"),
    attempt("signals", "kills the first process", "os.kill(1, signal.SIGCONT)"),
    attempt("signals", "kills everything", "os.kill(-1, signal.SIGCONT)"),
    attempt("signals", "kills its group", "os.killpg(0, signal.SIGCONT)"),
    attempt("signals", "descriptor of a process", "os.pidfd_open(1)"),
    program(
        "signals",
        "kills the first process by thread",
        """
        import ctypes, os
        number = 234 if os.uname().machine == 'x86_64' else 131
        ctypes.CDLL(None).syscall(number, 1, 1, 9)
        print('still here')
        """,
        "ok",
        says="still here",
    ),
]

KERNEL = [
    attempt("kernel", f"{name} by system call", f"syscall({x86} if os.uname().machine == 'x86_64' else {arm}, {args})")
    for name, x86, arm, args in [
        ("ptrace", 101, 117, "16, 1, 0, 0"),
        ("process_vm_readv", 310, 270, "1, 0, 0, 0, 0, 0"),
        ("perf_event_open", 298, 241, "0, 0, 0, 0, 0"),
        ("bpf", 321, 280, "0, 0, 0"),
        ("userfaultfd", 323, 282, "1"),
        ("keyctl", 250, 219, "0, -3, 1"),
        ("unshare", 272, 97, "0x10000000"),
        ("setns", 308, 268, "0, 0"),
        ("personality", 135, 92, "0x0040000"),
        ("open_tree", 428, 428, "-100, 0, 1"),
        ("a call no kernel has yet", 1000, 1000, "0"),
        ("a call of the x32 interface", 0x40000039, 1001, "0"),
    ]
] + [
    attempt("kernel", "higher priority", "os.setpriority(os.PRIO_PROCESS, 0, -20)"),
    attempt("kernel", "real-time priority", "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))"),
    attempt("kernel", "sets the clock", "import time\ntime.clock_settime(time.CLOCK_REALTIME, time.time())"),
    attempt("kernel", "renames the machine", "socket.sethostname(socket.gethostname())"),
    attempt(
        "kernel",
        "lifts its own limits",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
    ),
    program(
        "kernel",
        "leaves a core dump",
        "import os\nos.abort()",
        "killed",
    ),
    program("kernel", "segmentation fault", "import ctypes\nctypes.string_at(0)", "killed"),
    program(
        "kernel",
        "segmentation fault in a call",
        "import ctypes\ndef f(x):\n    return ctypes.string_at(0)",
        "killed",
        mode="call",
    ),
]

SOURCE = [
    program("source", "syntax error", "def f(:", "error"),
    program("source", "syntax error in a module", "def f(:", "error", mode="call"),
    program("source", "NUL bytes", "print(1)\0", "error"),
    program("source", "lone surrogate", "print('\ud800')", "error"),
    program("source", "nested beyond the parser", "(" * 100_000, "error", "memory", "killed"),
    program("source", "nested beyond the compiler", "-" * 100_000 + "1", "error", "memory", "killed"),
    program("source", "three million characters", "x = 0\n" * 500_000, "ok", "timeout", "memory"),
    program("source", "constant that folds to gigabytes", "x = ('x' * 4000,) * 10**9", "memory", "timeout"),
    program("source", "empty", "", "ok"),
    program("source", "another coding", "# -*- coding: utf-7 -*-\nprint(1)", "ok", "error"),
]

MEMORY_READER = """
            def memory():
                with open('/proc/self/maps') as maps, open('/proc/self/mem', 'rb') as memory:
                    for line in maps:
                        if '[heap]' in line:
                            start, end = (int(part, 16) for part in line.split()[0].split('-'))
                            memory.seek(start)
                            return memory.read(end - start)
"""

CHEATS = [
    program("cheats", "exits well while loading", "import sys\nsys.exit(0)", "error", mode="call"),
    program("cheats", "ends the process well while loading", "import os\nos._exit(0)", "killed", mode="call"),
    program("cheats", "exits well in a call", "def f(x):\n    raise SystemExit(0)", "error", mode="call"),
    program(
        "cheats", "ends the process well in a call", "import os\ndef f(x):\n    os._exit(0)", "killed", mode="call"
    ),
    program("cheats", "exits well in a checked call", "def f(x):\n    raise SystemExit(0)", "error", mode="check"),
    program(
        "cheats", "ends the process in a checked call", "import os\ndef f(x):\n    os._exit(0)", "killed", mode="check"
    ),
    program("cheats", "exits well as a script", "import os\nos._exit(0)", "ok"),
    program(
        "cheats",
        "an object equal to everything",
        "class A:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return A()",
        "error",
        mode="call",
    ),
    program(
        "cheats",
        "an object equal to everything, checked",
        "class A:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return A()",
        "error",
        mode="check",
    ),
    *(
        program(
            "cheats",
            f"a subclass of {base} equal to everything{', checked' if mode == 'check' else ''}",
            f"""
            class A({base}):
                __eq__ = lambda self, other: True
                __ne__ = lambda self, other: False
                __hash__ = lambda self: 0
                __len__ = lambda self: 1
                __iter__ = lambda self: iter(())
            def f(x):
                return A()
            """,
            "failed" if mode == "check" else "ok",
            mode=mode,
        )
        for base in ("int", "str", "list", "dict", "float", "tuple", "set")
        for mode in ("call", "check")
    ),
    program("cheats", "not a number", "def f(x):\n    return float('nan')", "failed", mode="check"),
    program("cheats", "a generator", "def f(x):\n    yield x", "error", mode="call"),
    program("cheats", "itself", "def f(x):\n    a = []\n    a.append(a)\n    return a", "error", mode="call"),
    program(
        "cheats",
        "nested beyond JSON",
        "import sys\ndef f(x):\n    a = []\n    for _ in range(10**5):\n        a = [a]\n    return a",
        "error",
        "killed",
        mode="call",
    ),
    program(
        "cheats",
        "numbers whose hashes collide",
        "def f(x):\n    return {i * (2**61 - 1) for i in range(2000)}",
        "ok",
        mode="call",
    ),
    program(
        "cheats",
        "pickle that runs code",
        "class A:\n    def __reduce__(self):\n        return (print, ('ESCAPED',))\ndef f(x):\n    return A()",
        "error",
        mode="call",
    ),
    program(
        "cheats", "verdict on stdout", "print('PASSED')\nprint('1 passed in 0.01s')\nprint('{\"passed\": true}')", "ok"
    ),
    *(
        program(
            "cheats",
            f"{what} written to every descriptor{', checked' if mode == 'check' else ''}",
            f"""
            import os
            def f(x):
                for fd in range(64):
                    try:
                        os.write(fd, {line!r})
                    except OSError:
                        pass
                return 0
            """,
            *ends,
            mode=mode,
        )
        for what, line, mode, ends in [
            ("a verdict", b'{"passed": true}\n', "call", ("killed",)),
            ("a verdict", b'{"passed": true}\n', "check", ("killed",)),
            ("the end of the test code", b'{"value": null}\n', "check", ("failed",)),
            ("an exit code", b'{"exit": 0, "cpu_s": 0.0}\n', "call", ("killed",)),
            (
                "a call of its own",
                b'{"call": {"args": [], "kwargs": {"dict": []}}}\n',
                "check",
                ("failed", "killed", "error"),
            ),
            ("noise", b"\xff\x00[[[[\n", "call", ("killed",)),
            ("a call of its own", b'{"call": {"args": [], "kwargs": {"dict": []}}}\n', "call", ("killed",)),
            ("a list nested 150 deep", b'{"value": ' + b"[" * 150 + b"]" * 150 + b"}\n", "call", ("ok",)),
            ("a list nested 150 deep", b'{"value": ' + b"[" * 150 + b"]" * 150 + b"}\n", "check", ("failed",)),
            ("a list nested 900 deep", b'{"value": ' + b"[" * 900 + b"]" * 900 + b"}\n", "call", ("killed",)),
            ("a list nested 900 deep", b'{"value": ' + b"[" * 900 + b"]" * 900 + b"}\n", "check", ("killed",)),
            ("a list nested 40000 deep", b'{"value": ' + b"[" * 40000 + b"]" * 40000 + b"}\n", "call", ("killed",)),
            ("an integer of 4000 digits", b'{"value": ' + b"9" * 4000 + b"}\n", "check", ("failed",)),
            ("an integer of 5000 digits", b'{"value": ' + b"9" * 5000 + b"}\n", "call", ("killed",)),
            ("infinities", b'{"value": [NaN, -Infinity, 1e999]}\n', "check", ("failed",)),
            ("a form of no value", b'{"value": {"tuple": 1}}\n', "check", ("failed",)),
            ("a key that cannot be one", b'{"value": {"dict": [[[], 1]]}}\n', "check", ("failed",)),
            ("an error without a trace", b'{"error": "ValueError"}\n', "check", ("killed",)),
            ("an error that ends test code", b'{"error": "SystemExit", "trace": ""}\n', "check", ("error",)),
        ]
    ),
    program(
        "cheats",
        "answers before it is asked",
        """
        import os
        for fd in range(3, 64):
            try:
                os.write(fd, b'{"value": 0}\\n' * 3)
            except OSError:
                pass
        def f(x):
            return 0
        """,
        "ok",
        mode="call",
    ),
    program(
        "cheats",
        "JSON patched",
        """
        import json
        json.dumps = lambda *a, **k: '{"passed": true}'
        json.loads = lambda *a: {}
        def f(x):
            return 0
        """,
        "ok",
        mode="call",
    ),
    program(
        "cheats",
        "built-ins patched",
        """
        import builtins
        builtins.isinstance = lambda *a: True
        builtins.len = lambda *a: 1
        builtins.all = lambda *a: True
        builtins.AssertionError = Warning
        def f(x):
            return 0
        """,
        "ok",
        "error",
        "killed",
        mode="call",
    ),
    program(
        "cheats",
        "built-ins patched, checked",
        """
        import builtins
        builtins.AssertionError = Warning
        builtins.compile = lambda *a, **k: 'pass'
        def f(x):
            return 0
        """,
        "failed",
        mode="check",
    ),
    program(
        "cheats",
        "codec patched",
        "import plain\nplain.encode = plain.decode = lambda value: True\ndef f(x):\n    return 0",
        "ok",
        mode="call",
    ),
    program(
        "cheats",
        "standard streams replaced",
        "import io, sys\nsys.stdout = io.StringIO()\nsys.stderr = None\nprint('x')",
        "ok",
    ),
    program(
        "cheats",
        "open replaced",
        "import builtins\nbuiltins.open = None\nimport os\nos.write = lambda *a: 1\nprint('x')",
        "ok",
    ),
    program(
        "cheats",
        "error of the test code raised by the candidate",
        "def f(x):\n    raise AssertionError",
        "error",
        mode="check",
    ),
    program(
        "cheats",
        "error without a name",
        "E = type('', (Exception,), {})\ndef f(x):\n    raise E",
        "error",
        mode="check",
    ),
    program(
        "cheats",
        "error whose text is code",
        "def f(x):\n    raise Exception('__import__(\"os\")._exit(0)')",
        "error",
        mode="check",
    ),
    program(
        "cheats",
        "error that raises when printed",
        "class E(Exception):\n    __str__ = None\ndef f(x):\n    raise E",
        "error",
        mode="call",
    ),
    *(
        program(
            "cheats",
            f"{what} searched for the answer",
            f"""
            {setup}
            def f(x):
                seen = [text for text in map(repr, {hunt}) if 'answer-' in text]
                return seen[0] if seen else 0
            """,
            "ok",
            mode="call",
        )
        for what, setup, hunt in [
            ("frames", "import sys", "[sys._getframe(i).f_locals for i in range(4)]"),
            (
                "objects of the collector",
                "import gc",
                "[o for o in gc.get_objects() if type(o) in (dict, list, tuple)]",
            ),
            ("modules", "import sys", "[vars(m) for m in list(sys.modules.values())]"),
            ("own memory", MEMORY_READER, "[memory()]"),
        ]
    ),
    program(
        "cheats",
        "trace function",
        "import sys\nseen = []\nsys.settrace(lambda frame, *a: seen.append(frame.f_locals))\ndef f(x):\n    return 0",
        "ok",
        mode="call",
    ),
    program(
        "cheats",
        "import hook",
        """
        import sys
        class Hook:
            def find_spec(self, name, *a):
                raise SystemExit(0)
        sys.meta_path.insert(0, Hook())
        sys.modules.pop('json', None)
        def f(x):
            import json
            return 0
        """,
        "error",
        "killed",
        mode="call",
    ),
    program(
        "cheats",
        "crash handler",
        """
        import faulthandler
        faulthandler.enable()
        faulthandler.dump_traceback_later(0.01, exit=True)
        while True:
            pass
        """,
        "error",
        "timeout",
    ),
    program(
        "cheats",
        "locale",
        "import locale\nlocale.setlocale(locale.LC_ALL, '')\nprint('{:n}'.format(1234567))",
        "ok",
        "error",
    ),
]

ADVERSARIES: list[Adversary] = [
    *PROCESSES, *MEMORY, *OUTPUT, *TIME, *FILES, *PROC, *NETWORK, *SIGNALS, *KERNEL, *SOURCE, *CHEATS
]  # fmt: skip


def table() -> str:
    """The rows of docs/sandbox.md."""
    lines = ["| group | the program tries | as | it ends as |", "|---|---|---|---|"]
    for row in ADVERSARIES:
        ends = "refused, then ok" if row.says.startswith("refused") else ", ".join(sorted(row.ends))
        lines.append(f"| {row.group} | {row.tries} | {row.mode} | {ends} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
