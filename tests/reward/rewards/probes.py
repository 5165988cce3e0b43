"""A verl function that tries what a reward has no business with: NAME or NAME=ARGUMENT as the response. 1 when it
worked; else the exception that stopped it."""

import ctypes
import os
import resource
import signal
import socket
import subprocess
import tempfile


def write(path):
    with open(path, "a") as file:
        file.write("x")


def write_scratch(_):
    with tempfile.NamedTemporaryFile(mode="w") as file:
        file.write("x")
    folder = tempfile.mkdtemp()
    write(os.path.join(folder, "a"))
    os.rename(os.path.join(folder, "a"), os.path.join(folder, "b"))
    os.chmod(os.path.join(folder, "b"), 0o600)


def escape_by_link(path):
    link = tempfile.mktemp()
    os.symlink(path, link)
    write(link)


def write_by_child(path):
    subprocess.run(["sh", "-c", f"echo x >> '{path}'"], check=True, stderr=subprocess.DEVNULL)


def raise_limits(_):
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def new_namespace(_):
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000 | 0x00020000) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    if ctypes.CDLL(None, use_errno=True).umount2(b"/proc", 2) != 0:
        raise OSError(ctypes.get_errno(), "umount2")


def write_much(_):
    with tempfile.TemporaryFile() as file:
        for _ in range(2048):
            file.write(b"x" * (1 << 20))


def fill(path):
    with open(path, "wb") as file:
        for _ in range(65):
            file.write(b"x" * (1 << 20))


def locks(_):
    import multiprocessing

    with multiprocessing.Lock():
        pass


def open_many(_):
    files = [open("/dev/null") for _ in range(10000)]
    assert files


def secret(name):
    assert name in os.environ, "not in the environment"


def secret_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        file.read()


PROBES = {
    "write": write,
    "write_scratch": write_scratch,
    "fill": fill,
    "locks": locks,
    "escape_by_link": escape_by_link,
    "write_by_child": write_by_child,
    "remove": os.remove,
    "rename": lambda path: os.rename(path, path + ".moved"),
    "truncate": lambda path: os.truncate(path, 0),
    "chmod": lambda path: os.chmod(path, 0),
    "touch": os.utime,
    "mkdir": lambda path: os.mkdir(path + ".folder"),
    "link_in": lambda path: os.link(path, tempfile.mktemp()),
    "read": lambda path: open(path).read(),
    "kernel_setting": lambda _: write("/proc/sys/kernel/core_pattern"),
    "tcp": lambda port: socket.create_connection(("127.0.0.1", int(port)), timeout=2),
    "udp": lambda _: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", 53)),
    "listen": lambda _: socket.create_server(("127.0.0.1", 0)),
    "unix_socket": lambda path: socket.socket(socket.AF_UNIX).connect(path),
    "netlink": lambda _: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "vsock": lambda _: socket.socket(40, socket.SOCK_STREAM),
    "resolve": lambda _: socket.getaddrinfo("example.com", 80),
    "signal": lambda pid: os.kill(int(pid), 0),
    "signal_group": lambda pid: os.killpg(int(pid), signal.SIGKILL),
    "secret": secret,
    "secret_of": secret_of,
    "raise_limits": raise_limits,
    "new_namespace": new_namespace,
    "write_much": write_much,
    "open_many": open_many,
    "numpy": lambda _: __import__("numpy").arange(3).sum(),
    "sympy": lambda _: __import__("sympy").sqrt(8),
    "subprocess": lambda _: subprocess.run(["true"], check=True),
}


def score(data_source, solution_str, ground_truth):
    name, _, argument = solution_str.partition("=")
    PROBES[name](argument)
    return 1.0


def folder(data_source, solution_str, ground_truth):
    return {"score": 1.0, "below": os.path.dirname(tempfile.gettempdir()) == solution_str, "core": resource.getrlimit(4)[1]}
