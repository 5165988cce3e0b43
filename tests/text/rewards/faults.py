"""A verl function that does what its response tells it to, and what bad user code does."""

import os
import resource
import signal
import subprocess
import sys
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
    "limit": lambda: float(resource.getrlimit(resource.RLIMIT_AS)[0]),
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
