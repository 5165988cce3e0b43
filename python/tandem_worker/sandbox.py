"""What a worker process gives up for good before it reads a model's files or imports a reward function.

Applied here, by the process to itself through raw system calls, and not in C++ between fork and exec: the trainer has
threads and starts workers with posix_spawn, which can do none of this, while a fresh interpreter has one thread and
runs nothing of the user's before `confine` has answered. None of it can be taken back by code that runs later: limits
are hard, namespaces, Landlock domains and system call filters hold for the process and all that it starts.

    layer                          closes
    resource limits                memory, open files, size of a written file, number of processes, core dumps
    user, network, mount namespace every network but an empty one; every mount is read-only but the scratch folder
    process namespaces             sight of other processes; what a dead worker started dies with it (processes.py)
    Landlock                       writing outside the scratch folder, also to devices; signals to and tracing of others
    system call filter             sockets of every kind (a read-only file system does not stop a connect to one)

A layer that the kernel refuses is left out and named in the answer; the program decides what follows from that.
"""

import ctypes
import os
import platform
import resource
import struct

from tandem_worker import processes

LIBC = ctypes.CDLL(None, use_errno=True)
USER, GROUP = os.geteuid(), os.getegid()  # before a namespace of our own
ROOT = USER == 0
confined = in_process_namespace = False

CLONE_NEWNS, CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
RESERVED_PROCESS_IDS = 300  # which the kernel leaves out once it has counted through all
MS_BIND, AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = 0x1000, -100, 0x8000, 0x1
MS_NOSUID_NODEV_NOEXEC = 0x2 | 0x4 | 0x8
SHARED_MEMORY = "/dev/shm"  # where multiprocessing keeps its locks
SHARED_MEMORY_OPTIONS = b"size=64m,mode=1777"
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
MOUNT_SETATTR, LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 442, 444, 445, 446

# Landlock's rights to change files, by the version that brought them (linux/landlock.h). Reading stays free.
CHANGE_FILES = {1: 1 << 1 | 0x1FF << 4, 2: 1 << 13, 3: 1 << 14}
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
TCP_VERSION, SCOPE_VERSION = 4, 6  # of Landlock: no TCP bind and connect; no signals and abstract sockets to outside

# machine -> audit architecture, number of socket(), and of capset()
MACHINES = {"x86_64": (0xC000003E, 41, 126), "aarch64": (0xC00000B7, 198, 91)}
IO_URING_SETUP = 425  # its operations open sockets without the system call
X32_BIT = 0x40000000  # the other table of system calls on x86-64


class Refused(Exception):
    """The kernel does not give a layer."""


def call(name, result):
    if result < 0:
        raise Refused(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def system_call(name, number, *arguments):
    return call(name, LIBC.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))


def limit(limits):
    """Hard limits. A limit that is already lower stays."""
    wanted = {"memory_bytes": resource.RLIMIT_AS, "file_bytes": resource.RLIMIT_FSIZE,
              "open_files": resource.RLIMIT_NOFILE, "processes": resource.RLIMIT_NPROC}  # fmt: skip
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, value in limits.items():
        hard = resource.getrlimit(wanted[name])[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(wanted[name], (value, value))


def counts_processes_by_namespace():
    """Before Linux 5.14 the limit of processes counted all that the user runs anywhere, and would stop a bystander."""
    return tuple(int(part) for part in platform.release().split(".")[:2]) >= (5, 14)


def enter_namespaces():
    call("unshare", LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS))


def keep_user_and_group():
    """By the same numbers inside: a file system of the namespace's own can have no files of a user it does not know."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{USER} {USER} 1"), ("gid_map", f"{GROUP} {GROUP} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def new_process_namespace():
    """For the next child of this process, which is its init, and those after."""
    call("unshare", LIBC.unshare(CLONE_NEWPID))


def enter_worker_namespace():
    """In a fork of a warm parent: a namespace for its children, where `confine` could make one for the parent."""
    if in_process_namespace:
        new_process_namespace()
    return in_process_namespace


def limit_process_ids(num_processes):
    """Of this process's namespace: the one limit of processes that root, too, is under. Linux 6.14 and newer."""
    try:
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(RESERVED_PROCESS_IDS + num_processes))
    except OSError:
        if ROOT:
            raise


def mount_own_shared_memory():
    """An empty one, seen by this process and its children alone, that goes with the last of them. Not a layer: where
    the kernel gives none, /dev/shm is read-only as all else is."""
    keep_user_and_group()
    call("mount of /dev/shm", LIBC.mount(b"tmpfs", os.fsencode(SHARED_MEMORY), b"tmpfs",
                                         ctypes.c_ulong(MS_NOSUID_NODEV_NOEXEC), SHARED_MEMORY_OPTIONS))  # fmt: skip


def make_mounts_read_only(writable):
    """Of this process's own copy of the mount table. Also stops what Landlock does not: modes, owners and times."""
    for folder in writable:
        if folder == SHARED_MEMORY:
            continue
        path = os.fsencode(folder)
        call("mount", LIBC.mount(path, path, None, ctypes.c_ulong(MS_BIND), None))

    def set_attributes(path, flags, set, clear):
        attributes = struct.pack("QQQQ", set, clear, 0, 0)
        system_call("mount_setattr", MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes))

    set_attributes("/", AT_RECURSIVE, MOUNT_ATTR_RDONLY, 0)
    for folder in writable:
        set_attributes(folder, 0, 0, MOUNT_ATTR_RDONLY)


def restrict_by_landlock(writable):
    """No change outside `writable`; None: files are left alone."""
    version = system_call("Landlock", LANDLOCK_CREATE_RULESET, None, 0, 1)
    rights = 0 if writable is None else sum(bits for since, bits in CHANGE_FILES.items() if version >= since)
    tcp = 3 if version >= TCP_VERSION else 0
    scopes = 3 if version >= SCOPE_VERSION else 0
    if rights == tcp == scopes == 0:
        return
    fields = 3 if version >= SCOPE_VERSION else 2 if version >= TCP_VERSION else 1
    attributes = struct.pack("QQQ", rights, tcp, scopes)[: 8 * fields]
    ruleset = system_call("Landlock", LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for path, allowed in [(os.devnull, rights & (WRITE_FILE | TRUNCATE)), *((p, rights) for p in writable or ())]:
            if allowed == 0:
                continue
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            rule = struct.pack("=Qi", allowed, beneath)
            system_call("Landlock rule", LANDLOCK_ADD_RULE, ruleset, 1, rule, 0)
            os.close(beneath)
        system_call("Landlock", LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)
    if writable is not None and version < 3:
        raise Refused(f"Landlock version {version}: does not stop truncation")


def drop_capabilities():
    """A process of root, or of a namespace of its own, holds powers that a reward has no use for."""
    machine = MACHINES.get(platform.machine())
    if machine is None:
        raise Refused(f"capabilities: not known on {platform.machine()}")
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    system_call("capset", machine[2], header, nothing)


def drop_what_forks_need():
    """In a worker of a confined warm parent. On a machine not known here `confine` has named a missing layer already."""
    if confined and platform.machine() in MACHINES:
        drop_capabilities()


class Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(Instruction))]


def filter_system_calls():
    """socket(), io_uring and other tables of system calls answer "permission denied". socketpair() stays: asyncio
    needs one, and it reaches nobody else."""
    if platform.machine() not in MACHINES:
        raise Refused(f"system call filter: not known on {platform.machine()}")
    architecture, socket_number, _ = MACHINES[platform.machine()]
    load, equal, at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow, deny = 0x7FFF0000, 0x00050000 | 13  # EACCES
    lines = [(load, 0, 0, 4), (equal, 0, 4, architecture), (load, 0, 0, 0), (equal, 2, 0, socket_number),
             (equal, 1, 0, IO_URING_SETUP), (at_least, 0, 1, X32_BIT), (answer, 0, 0, deny),
             (answer, 0, 0, allow)]  # fmt: skip
    instructions = (Instruction * len(lines))(*lines)
    program = Program(len(lines), instructions)
    call("system call filter", LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))


def confine(sandbox, writable, limits, forks):
    """Gives up all of the above; says what the kernel refused, one text a layer.

    sandbox: False leaves only the limits. writable: folders that may be written, None for anywhere. forks: this process
    is to fork workers, keeps the power to give each a process namespace of its own, and returns from here in another.
    """
    global confined, in_process_namespace
    missing = []

    def layer(name, function, *arguments):
        try:
            function(*arguments)
        except (Refused, OSError) as error:
            missing.append(f"{name} ({error})")
            return False
        return True

    limits = dict(limits)
    processes_allowed = limits.pop("processes")
    confined = sandbox
    if sandbox:
        call("no_new_privs", LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        if layer("namespaces", enter_namespaces):
            if forks and layer("process namespace", new_process_namespace):
                in_process_namespace = True
                processes.descend(lambda: layer("limit of processes", limit_process_ids, processes_allowed))
            if writable:
                try:
                    mount_own_shared_memory()
                    writable = [*writable, SHARED_MEMORY]
                except (Refused, OSError):
                    pass
            if writable is not None:
                layer("read-only mounts", make_mounts_read_only, writable)
            if counts_processes_by_namespace():
                limits["processes"] = processes_allowed
        layer("Landlock", restrict_by_landlock, writable)
        if not forks:
            layer("capabilities", drop_capabilities)
        layer("system call filter", filter_system_calls)
    limit(limits)
    return missing
