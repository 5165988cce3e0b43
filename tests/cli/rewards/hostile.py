"""A reward whose samples are honest or, as a hash of their text has it, attack. What an honest sample needs (a file in
$TMPDIR, a child process, the right number) is all that attacks may not take from it. Beside this file lies attacks.json
with the names of those that are to be made, and the pid namespace of the machine, in which nobody may be killed."""

import ctypes
import json
import os
import resource
import signal
import struct
import sys
import tempfile
import threading
import time

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "attacks.json"), encoding="utf-8") as file:
    SETTINGS = json.load(file)
ATTACKS, EVERY = SETTINGS["attacks"], SETTINGS["every"]
MIB = 1 << 20
SHM_BYTES = 4 * MIB + 4711  # a size by which a test knows segments that were left
held = []  # what a call leaves in its process


def fnv1a(text):
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def in_own_pid_namespace():
    try:
        return os.readlink("/proc/self/ns/pid") != SETTINGS["machine_pid_namespace"]
    except OSError:
        return False


def honest(text):
    number = fnv1a(text) % 5
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write(str(number))
        file.seek(0)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writer, file.read().encode())
            os._exit(0)
        os.close(writer)
        answer = os.read(reader, 100)
        os.close(reader)
        os.waitpid(child, 0)
    return float(answer)


def leave_child(seconds=600):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            time.sleep(seconds)
        os._exit(0)


def daemons():
    for _ in range(3):
        leave_child()


def threads():
    for _ in range(4):
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()


def memfd():
    fd = os.memfd_create("bomb")
    held.append(fd)
    for _ in range(16):
        os.write(fd, b"x" * MIB)
    leave_child()


def shared_memory():
    libc = ctypes.CDLL(None, use_errno=True)
    for _ in range(2):
        libc.shmget(0, ctypes.c_size_t(SHM_BYTES), 0o1600)  # IPC_PRIVATE, IPC_CREAT


def deep_folders():
    at = os.open(os.environ["TMPDIR"], os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def many_files():
    folder = tempfile.mkdtemp()
    for i in range(3000):
        open(os.path.join(folder, str(i)), "w").close()


def fill_folder():
    with tempfile.NamedTemporaryFile(delete=False) as file:
        for _ in range(24):
            file.write(b"x" * MIB)


def close_folder():
    os.chmod(os.environ["TMPDIR"], 0)


def write_everywhere(data):
    for fd in range(3, 40):
        try:
            os.set_blocking(fd, False)
            os.write(fd, data)
        except OSError:
            pass


def forged_reply():
    grade = {"reward": 123456.0, "extras": {}}
    for id in range(30):
        body = json.dumps({"id": id, "result": [[0, [grade]], grade]}).encode()
        write_everywhere(struct.pack("<I", len(body)) + body)


def garbage_reply():
    write_everywhere(b"\xff" * 5000)


def huge_extras():
    return {"score": 1.0, **{f"k{i}": float(i) for i in range(100000)}}


def huge_name():
    return {"score": 1.0, "n" * (8 * MIB): 1.0}


def escapes():
    print("\x1b]52;c;aGVsbG8=\x07\x1b[2J")
    raise ValueError("\x1b]0;TITLE\x07\x1b[2J\x9b31m\r")


def kill_all():
    if in_own_pid_namespace():
        os.kill(-1, signal.SIGKILL)


def kill_parents():
    for pid in (os.getppid(), 1, 0):
        if pid != 0 or in_own_pid_namespace():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass


def fork_bomb():
    for _ in range(400):
        if os.fork() == 0:
            time.sleep(120)
            os._exit(0)


def terminal():
    names = [f"/dev/pts/{i}" for i in range(16)]
    for name in ["/dev/tty", "/dev/console", "/dev/ptmx", *names]:
        try:
            held.append(os.open(name, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK))
        except OSError:
            pass


def lower_limits():
    for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
        resource.setrlimit(limit, (4, 4))


def descriptors():
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))


def lost_descriptors():
    os.closerange(0, 100)


def blocked_signals():
    signal.pthread_sigmask(signal.SIG_BLOCK, set(range(1, 60)) - {9, 19})
    time.sleep(60)


def changed_folder():
    os.chdir("/")
    os.umask(0o777)
    os.environ["TMPDIR"] = "/nowhere"
    tempfile.tempdir = "/nowhere"


def heap():
    held.append([bytearray(16 * MIB) for _ in range(1000)])


def recursion():
    sys.setrecursionlimit(1 << 30)
    return recursion()


OTHERS = {
    "nan": lambda: float("nan"),
    "infinity": lambda: -float("inf"),
    "too_large": lambda: 10**400,
    "text": lambda: "\x1b[2J",
    "hang": lambda: time.sleep(600),
    "crash": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "leave": lambda: os._exit(0),
}


def reward(data_source, solution_str, ground_truth):
    value = fnv1a(solution_str)
    if not ATTACKS or value % EVERY != 0:
        return honest(solution_str)
    name = ATTACKS[value // EVERY % len(ATTACKS)]
    result = (OTHERS.get(name) or globals()[name])()
    return honest(solution_str) if result is None else result
