"""A verl function that does what its response tells it to, and what bad user code does."""

import asyncio
import ctypes
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time


def raises():
    raise ValueError("no such answer\nsecond line")


def busy():
    while True:
        pass


def bignum():
    return len(str(7 ** (7**12)))  # holds the interpreter in one C call


def memory_bomb():
    blocks = []
    while True:
        blocks.append(bytearray(1 << 26))


def recursion():
    return recursion()


def loud():
    for _ in range(1 << 10):
        print("x" * (1 << 12))
    return 1.0


def writes_to_channel():
    for fd in range(3, 20):
        try:
            os.write(fd, b"\xff\xff\xff\x7fnonsense")
        except OSError:
            pass
    return 1.0


def fakes_a_reply():
    os.write(3, b"\x02\x00\x00\x00[]")
    return 1.0


def closes_descriptors():
    os.closerange(3, 64)
    return 1.0


def leaves_a_child():
    subprocess.Popen(["sleep", "1000"])
    os._exit(0)


def leaves_a_thread():
    threading.Thread(target=time.sleep, args=(1000,), daemon=False).start()
    return 0.75


def leaves_an_alarm():
    signal.signal(signal.SIGALRM, lambda *_: os._exit(9))
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return 0.5


def stops_itself():
    os.kill(os.getpid(), signal.SIGSTOP)


def reads_stdin():
    return float(len(sys.stdin.read()))


def fakes_a_machine_fault():
    reply = b'{"id": 2, "machine_fault": "stop the run"}'
    os.write(3, len(reply).to_bytes(4, "little") + reply)
    time.sleep(1000)


def answers_in_our_name():
    """Answers the call that it is made in, with grades that are well and a note on the process that is none."""
    import json

    frame = sys._getframe()
    while "request" not in frame.f_locals:
        frame = frame.f_back
    request = frame.f_locals["request"]
    (call,) = request["arguments"]["calls"]
    grades = [{"reward": 1.0, "extras": {}} for _ in call["samples"]]
    reply = {"id": request["id"], "result": [{"call": call["call"], "grades": grades, "retire": "x"}]}
    body = json.dumps(reply).encode()
    os.write(3, len(body).to_bytes(4, "little") + body)
    time.sleep(1000)


def fork_bomb():
    while True:
        try:
            if os.fork() == 0:
                os.setsid()
        except OSError:
            time.sleep(0.01)


def shouts():
    while True:
        print("x" * (1 << 16))


def kills_its_parents_group():
    for kill in (lambda: os.kill(-1, signal.SIGKILL), lambda: os.kill(os.getppid(), signal.SIGKILL),
                 lambda: os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)):  # fmt: skip
        try:
            kill()
        except ProcessLookupError:
            pass
    os.killpg(0, signal.SIGKILL)


def leaves_a_daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 64)
            time.sleep(1000)
        os._exit(0)
    os.wait()
    os._exit(4)


def deletes_its_folder():
    os.chdir(tempfile.mkdtemp())
    os.rmdir(os.getcwd())
    return 0.5


def floods_the_folder():
    with open(os.path.join(tempfile.gettempdir(), "flood"), "wb") as file:
        while True:
            file.write(bytes(1 << 24))


class NumberLike:
    def item(self):
        return 1.5


FAULTS = {
    "raises": raises,
    "hangs": lambda: time.sleep(1000),
    "busy": busy,
    "bignum": bignum,
    "memory": memory_bomb,
    "recursion": recursion,
    "sys_exit": lambda: sys.exit(3),
    "os_exit": lambda: os._exit(3),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "stops_itself": stops_itself,
    "nan": lambda: float("nan"),
    "inf": lambda: -float("inf"),
    "huge_integer": lambda: 10**400,
    "huge_among_others": lambda: {"score": 1.0, "parsed": 10**400},
    "none": lambda: None,
    "text": lambda: "1.0",
    "list": lambda: [1.0],
    "dict": lambda: {"reward": 1.0},
    "complex": lambda: 1j,
    "number_like": NumberLike,
    "true": lambda: True,
    "loud": loud,
    "channel": writes_to_channel,
    "fake_reply": fakes_a_reply,
    "closes": closes_descriptors,
    "leaves_child": leaves_a_child,
    "thread": leaves_a_thread,
    "alarm": leaves_an_alarm,
    "stdin": reads_stdin,
    "surrogate": lambda: (_ for _ in ()).throw(ValueError("\ud800")),
    "fake_fault": fakes_a_machine_fault,
    "fake_note": answers_in_our_name,
    "fork_bomb": fork_bomb,
    "shouts": shouts,
    "kills_group": kills_its_parents_group,
    "daemon": leaves_a_daemon,
    "deletes_folder": deletes_its_folder,
    "floods": floods_the_folder,
    "real_segfault": lambda: ctypes.string_at(0),
    "huge_message": lambda: (_ for _ in ()).throw(ValueError("long " * (1 << 22))),
    "async": lambda: asyncio.run(asyncio.Event().wait()),
    "import": lambda: __import__("no_such_module"),
    "outside": lambda: open("/tmp/tandem_outside", "w"),
    "network": lambda: socket.create_connection(("127.0.0.1", 9), timeout=1),
    "secret": lambda: os.environ["HF_TOKEN"],
    "limit": lambda: float(resource.getrlimit(resource.RLIMIT_DATA)[0]),
}


def score(data_source, solution_str, ground_truth):
    if solution_str in FAULTS:
        return FAULTS[solution_str]()
    return float(solution_str)


def short_list(completions, **kwargs):
    return [1.0] * (len(completions) - 1)


def with_none(completions, **kwargs):
    return [None if c == "none" else 1.0 for c in completions]


def no_list(completions, **kwargs):
    return 1.0
