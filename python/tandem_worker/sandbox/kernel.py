"""What the sandbox asks of the kernel that Python has no function for. Each call raises Refused with the kernel's reason."""

import ctypes
import fcntl
import os
import socket
import struct

LIBC = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 0x2, 0x4, 0x8, 0x1000
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 0x1
PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 4, 22, 36, 38
SECCOMP_MODE_FILTER = 2
KEYCTL_JOIN_SESSION_KEYRING = 1
MOUNT_SETATTR, LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 442, 444, 445, 446
LANDLOCK_RULE_PATH_BENEATH = 1

# The numbers of capset() and keyctl(), which differ between machines.
NUMBERS = {"x86_64": {"capset": 126, "keyctl": 250}, "aarch64": {"capset": 91, "keyctl": 219}}
MACHINE = os.uname().machine


class Refused(Exception):
    """The kernel does not give what was asked for."""


def _checked(name, result):
    if result < 0:
        raise Refused(f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def system_call(name, number, *arguments):
    return _checked(name, LIBC.syscall(number, *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))


def _prctl(name, option, value):
    _checked(name, LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0))


def forbid_new_privileges():
    """Programs that this process starts gain nothing by set-user-ID bits or file capabilities."""
    _prctl("no_new_privs", PR_SET_NO_NEW_PRIVS, 1)


def become_dumpable():
    """As processes are at first: /proc/self belongs to the process's user again."""
    _prctl("dumpable", PR_SET_DUMPABLE, 1)


def become_undumpable():
    """Other processes of the same user, those that this one starts too, cannot read its memory, take its descriptors
    or trace it. Holds until the process executes another program."""
    _prctl("undumpable", PR_SET_DUMPABLE, 0)


def become_subreaper():
    """What this process's descendants leave behind becomes its child, not the machine's."""
    _prctl("subreaper", PR_SET_CHILD_SUBREAPER, 1)


def unshare(flags):
    _checked("unshare", LIBC.unshare(flags))


def join_namespace(descriptor):
    _checked("setns", LIBC.setns(descriptor, 0))


def switch_loopback_on():
    """Switches on loopback in this process's network namespace, where it is off at first."""
    SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP, NAME = 0x8913, 0x8914, 1, b"lo"
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            request = fcntl.ioctl(line, SIOCGIFFLAGS, struct.pack("16sh22x", NAME, 0))
            flags = struct.unpack_from("16sh", request)[1] | IFF_UP
            fcntl.ioctl(line, SIOCSIFFLAGS, struct.pack("16sh22x", NAME, flags))
    except OSError as error:
        raise Refused(f"loopback: {error.strerror}") from None


def mount(kind, source, target, flags=0, options=None):
    """mount(2); source and target are paths, kind is None for a bind mount."""
    result = LIBC.mount(os.fsencode(source), os.fsencode(target), kind and kind.encode(), ctypes.c_ulong(flags),
                        options and options.encode())  # fmt: skip
    _checked(f"mount of {target}", result)


def unmount(target):
    _checked(f"unmount of {target}", LIBC.umount2(os.fsencode(target), MNT_DETACH))


def set_read_only(path, read_only, recursive=False):
    """The flag of the mount at `path`, and of those below it."""
    attributes = struct.pack("QQQQ", *((MOUNT_ATTR_RDONLY, 0) if read_only else (0, MOUNT_ATTR_RDONLY)), 0, 0)
    flags = AT_RECURSIVE if recursive else 0
    system_call("mount_setattr", MOUNT_SETATTR, AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes))


def join_new_keyring():
    """A session keyring of this process's own, in place of the user's."""
    if MACHINE in NUMBERS:
        system_call("keyring", NUMBERS[MACHINE]["keyctl"], KEYCTL_JOIN_SESSION_KEYRING, None, 0, 0, 0)


def drop_capabilities():
    """A process of root, or of a namespace of its own, holds powers that a reward has no use for."""
    if MACHINE not in NUMBERS:
        raise Refused(f"capabilities: not known on {MACHINE}")
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    system_call("capset", NUMBERS[MACHINE]["capset"], header, nothing)


def landlock_version():
    return system_call("Landlock", LANDLOCK_CREATE_RULESET, None, 0, 1)


def landlock_ruleset(fields):
    """A descriptor; fields: what is denied unless a rule allows it, as linux/landlock.h orders them."""
    attributes = struct.pack(f"{len(fields)}Q", *fields)
    return system_call("Landlock", LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)


def landlock_allow(ruleset, path, rights):
    beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, beneath)
        system_call("Landlock rule", LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(beneath)


def landlock_restrict(ruleset):
    system_call("Landlock", LANDLOCK_RESTRICT_SELF, ruleset, 0)


class _Instruction(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("value", ctypes.c_uint)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.POINTER(_Instruction))]


def filter_system_calls(lines):
    """lines: (code, jump if true, jump if false, value) of a classic BPF program over struct seccomp_data."""
    instructions = (_Instruction * len(lines))(*lines)
    program = _Program(len(lines), instructions)
    _checked("system call filter", LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0))
