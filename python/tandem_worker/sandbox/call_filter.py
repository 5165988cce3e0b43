"""The system calls that reward code has no use for and an attacker has, as a filter that holds for a process and all
that it starts. A denied call answers "permission denied"; nothing is killed, so libraries that merely try go on.

    calls                                what they would reach
    socket, socketpair of datagrams      the network, and services of the host that listen on a path; a process that
                                         may use the network opens internet sockets and no other, one in a network of
                                         its own TCP sockets over IPv4 and no other
    io_uring                             the same without the call
    ioctl TIOCSTI, TIOCLINUX             typing into somebody's terminal
    unshare, setns, clone of namespaces  the kernel as a root of one's own
    mount and its kin, file_setattr      the mount table, read-only flags, flags of files
    prctl PR_SET_DUMPABLE                the worker's memory, for programs that it starts: what is off stays off
    all that are newer than this table   what nobody has judged yet
    memfd, SysV and POSIX queues         memory that no limit counts; memory of others
    keyctl, request_key, add_key         keys of the user
    ptrace, process_vm_*, pidfd_getfd    other processes, where Landlock does not guard them
    bpf, perf, userfaultfd, syslog ...   the kernel's own inside
"""

from tandem_worker.sandbox import kernel

EACCES, ENOSYS = 13, 38
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
COLUMN = {"x86_64": 0, "aarch64": 1}
X32_BIT = 0x40000000  # the other table of system calls on x86-64

# name: numbers on x86-64 and aarch64
DENIED = {
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "unshare": (272, 97), "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428),
    "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432),
    "fspick": (433, 433), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "memfd_secret": (447, 447),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219), "kcmp": (312, 272),
    "process_madvise": (440, 440), "pidfd_getfd": (438, 438), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282),
    "syslog": (103, 116), "statmount": (457, 457), "listmount": (458, 458), "lsm_set_self_attr": (460, 460),
    "open_tree_attr": (467, 467), "file_setattr": (469, 469), "listns": (470, 470),
}  # fmt: skip
# These calls hold memory that no limit of a process counts. They are denied where no control group counts it either.
UNCOUNTED_MEMORY = {
    "memfd_create": (319, 279), "shmget": (29, 194), "shmat": (30, 196), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180),
}  # fmt: skip
TRACING = {"ptrace": (101, 117)}
JOINING = {"setns": (308, 268)}  # a warm parent's forks join a room; nobody does after that
SOCKET, SOCKETPAIR, IOCTL, CLONE, CLONE3 = (41, 198), (53, 199), (16, 29), (56, 220), (435, 435)
PRCTL = (157, 167)
NEWEST = 470  # of Linux 6.19, the same on all machines; DENIED was judged up to here
NONE, TCP, INTERNET = "none", "TCP over IPv4", "internet"  # the sockets that a process may open
AF_INET, AF_INET6 = 2, 10
IPPROTO_TCP = 6
SOCK_TYPE_MASK, SOCK_STREAM, SOCK_SEQPACKET = 0xF, 1, 5
TIOCSTI, TIOCLINUX = 0x5412, 0x541C
ALL_CLONE_NAMESPACES = 0x7E020000

# Instructions of classic BPF, and where struct seccomp_data has the call's number, machine and arguments (low words).
LOAD, AND, EQUAL, AT_LEAST, ANY_BIT, ANSWER = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
NUMBER, ARCHITECTURE = 0, 4
ALLOW, ERRNO = 0x7FFF0000, 0x00050000


def _argument(index):
    return 16 + 8 * index


def _deny(errno=EACCES):
    return (ANSWER, 0, 0, ERRNO | errno)


def _when_number_is(number, lines):
    """Runs `lines`, which end in an answer or fall through with another word loaded, for one call alone."""
    body = [*lines, (LOAD, 0, 0, NUMBER)]
    return [(EQUAL, 0, len(body), number), *body]


def _sockets(allowed):
    """The lines that judge a call of socket()."""
    if allowed == INTERNET:
        return [(LOAD, 0, 0, _argument(0)), (EQUAL, 2, 0, AF_INET), (EQUAL, 1, 0, AF_INET6), _deny()]
    if allowed == TCP:
        return [(LOAD, 0, 0, _argument(0)), (EQUAL, 0, 6, AF_INET), (LOAD, 0, 0, _argument(1)),
                (AND, 0, 0, SOCK_TYPE_MASK), (EQUAL, 0, 3, SOCK_STREAM), (LOAD, 0, 0, _argument(2)),
                (EQUAL, 2, 0, 0), (EQUAL, 1, 0, IPPROTO_TCP), _deny()]  # fmt: skip
    return [_deny()]


def program(machine, denied, sockets=NONE):
    """The filter as BPF; denied: tables like DENIED."""
    column = COLUMN[machine]
    lines = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, ARCHITECTURES[machine]), _deny(), (LOAD, 0, 0, NUMBER),
             (AT_LEAST, 0, 1, X32_BIT), _deny()]  # fmt: skip
    for table in denied:
        for numbers in table.values():
            lines += [(EQUAL, 0, 1, numbers[column]), _deny()]
    lines += _when_number_is(SOCKET[column], _sockets(sockets))
    # asyncio needs a pair of streams, which reaches nobody else; a pair of datagrams could be connected to any path.
    lines += _when_number_is(SOCKETPAIR[column], [
        (LOAD, 0, 0, _argument(1)), (AND, 0, 0, SOCK_TYPE_MASK), (EQUAL, 2, 0, SOCK_STREAM),
        (EQUAL, 1, 0, SOCK_SEQPACKET), _deny()])  # fmt: skip
    lines += _when_number_is(IOCTL[column], [
        (LOAD, 0, 0, _argument(1)), (EQUAL, 1, 0, TIOCSTI), (EQUAL, 0, 1, TIOCLINUX), _deny()])  # fmt: skip
    # A process may make itself undumpable, as a worker does that starts anew, and not the other way round.
    lines += _when_number_is(PRCTL[column], [
        (LOAD, 0, 0, _argument(0)), (EQUAL, 0, 3, kernel.PR_SET_DUMPABLE), (LOAD, 0, 0, _argument(1)),
        (EQUAL, 1, 0, 0), _deny()])  # fmt: skip
    lines += _when_number_is(CLONE[column], [
        (LOAD, 0, 0, _argument(0)), (ANY_BIT, 0, 1, ALL_CLONE_NAMESPACES), _deny()])  # fmt: skip
    # The flags of clone3 lie in memory, out of a filter's sight. C libraries fall back to clone.
    # Libraries take a newer call for one that the kernel lacks, and fall back too.
    lines += [(EQUAL, 0, 1, CLONE3[column]), _deny(ENOSYS), (AT_LEAST, 0, 1, NEWEST + 1), _deny(ENOSYS)]
    return [*lines, (ANSWER, 0, 0, ALLOW)]


def install(memory_is_counted, others_are_guarded, may_join, sockets):
    """memory_is_counted: a control group counts all memory. others_are_guarded: Landlock keeps this process from
    tracing any but its own. may_join: the process's forks are still to join a room. sockets: those that it may open."""
    machine = kernel.MACHINE
    if machine not in ARCHITECTURES:
        raise kernel.Refused(f"system call filter: not known on {machine}")
    denied = [DENIED]
    denied += [] if memory_is_counted else [UNCOUNTED_MEMORY]
    denied += [] if others_are_guarded else [TRACING]
    denied += [] if may_join else [JOINING]
    kernel.filter_system_calls(program(machine, denied, sockets))


def forbid_joining():
    """In a fork that has joined its room."""
    if kernel.MACHINE in ARCHITECTURES:
        kernel.filter_system_calls(program(kernel.MACHINE, [JOINING], INTERNET))  # what is denied stays denied
