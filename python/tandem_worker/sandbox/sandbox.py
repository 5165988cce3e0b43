"""What a worker process gives up for good before it reads a model's files or imports a reward function.

Applied here, by processes to themselves, and not in C++ between fork and exec: the trainer has threads and starts
workers with posix_spawn, which can do none of this, while a fresh interpreter has one thread and runs nothing of the
user's before `enter_sandbox` is answered. None of it can be taken back by code that runs later: limits are hard, no
capability is left, and namespaces, Landlock domains and system call filters hold for a process and all that it starts.

    layer                       closes
    session                     the user's terminal; keys of the user's session
    resource limits             memory of a process, open files, size of a written file, number of processes, core dumps
    namespaces                  every network but an empty one, or one of a loopback alone; every mount is read-only;
                                devices but null and its kin;
                                others' processes, IPC, shared memory and scratch folders (room.py)
    Landlock                    writing outside the scratch folder; ioctl of devices; signals to and tracing of others
    system call filter          sockets, terminals, namespaces, uncounted memory (call_filter.py)
    undumpable                  the worker's memory and its line to the program, for programs that the reward starts
    control group               memory of all kinds, of all processes together (memory_group.py)

A layer that the kernel refuses is left out and named in the answer; the program decides what follows from that. A worker
that asks a service for rewards, and runs nothing of the user's, has all of them but those that close the network.
"""

import errno
import os
import resource
import sys

from tandem_worker.sandbox import call_filter, clearing, kernel, memory_group, room
from tandem_worker.sandbox.kernel import Refused

USER, GROUP = os.geteuid(), os.getegid()  # before a namespace of our own
DEVICES = ("null", "zero", "full", "random", "urandom")
DEVICE_LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1",
                "stderr": "/proc/self/fd/2"}  # fmt: skip

# Landlock's rights to change files, by the version that brought them (linux/landlock.h). Reading stays free.
CHANGE_FILES = {1: 1 << 1 | 0x1FF << 4, 2: 1 << 13, 3: 1 << 14, 5: 1 << 15}
SECONDS_TO_CLEAR = 1.0  # that a run waits for at its end
WRITE_FILE, READ_FILE, TRUNCATE = 1 << 1, 1 << 2, 1 << 14
TRUNCATE_VERSION, TCP_VERSION, SCOPE_VERSION = 3, 4, 6  # no TCP bind and connect; no signals and abstract sockets


def counts_processes_by_namespace():
    """Before Linux 5.14 the limit of processes counted all that the user runs anywhere, and would stop a bystander."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (5, 14)


def set_limit(which, value):
    """A hard limit. One that is already lower stays."""
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def keep_user_and_group():
    """By the same numbers inside: a file system of the namespace's own can have no files of a user it does not know."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{USER} {USER} 1"), ("gid_map", f"{GROUP} {GROUP} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def mount_own_devices():
    """/dev with the few devices that reach nobody, in place of the machine's."""
    found = {name: os.open(f"/dev/{name}", os.O_PATH | os.O_CLOEXEC) for name in DEVICES}
    try:
        kernel.mount("tmpfs", "tmpfs", "/dev", kernel.MS_NOSUID | kernel.MS_NOEXEC, "size=64k,nr_inodes=64,mode=0755")
        try:
            for name, device in found.items():
                os.close(os.open(f"/dev/{name}", os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o666))
                kernel.mount(None, f"/proc/self/fd/{device}", f"/dev/{name}", kernel.MS_BIND)
            for name, target in DEVICE_LINKS.items():
                os.symlink(target, f"/dev/{name}")
            os.mkdir(room.SHARED_MEMORY)
        except (Refused, OSError):
            kernel.unmount("/dev")
            raise
    finally:
        for device in found.values():
            os.close(device)


def restrict_by_landlock(writable, hide_devices, tcp):
    """No change outside the folders `writable`; None: files are left alone. hide_devices: the machine's own /dev is
    there, of which no other device may be opened at all. tcp: TCP is left alone."""
    version = kernel.landlock_version()
    rights = 0 if writable is None else sum(bits for since, bits in CHANGE_FILES.items() if version >= since)
    reading = READ_FILE if hide_devices and writable is not None else 0
    fields = [rights | reading, 3 if version >= TCP_VERSION and not tcp else 0, 3 if version >= SCOPE_VERSION else 0]
    fields = fields[: 3 if version >= SCOPE_VERSION else 2 if version >= TCP_VERSION else 1]
    if not any(fields):
        return
    ruleset = kernel.landlock_ruleset(fields)
    try:
        if rights:
            kernel.landlock_allow(ruleset, os.devnull, (rights & (WRITE_FILE | TRUNCATE)) | reading)
        for folder in writable or ():
            kernel.landlock_allow(ruleset, folder, rights | reading)
        if reading:
            for name in DEVICES:
                kernel.landlock_allow(ruleset, f"/dev/{name}", reading)
            for name in os.listdir("/"):
                if name != "dev" and os.path.exists(f"/{name}"):
                    kernel.landlock_allow(ruleset, f"/{name}", reading)
        kernel.landlock_restrict(ruleset)
    finally:
        os.close(ruleset)
    if writable is not None and version < TRUNCATE_VERSION:
        raise Refused(f"Landlock version {version}: does not stop truncation")


class Confinement:
    """What the program asks for, and how much of it this machine gives.

    sandbox: False leaves only the limits, and a scratch folder in that of `writable`. network: internet sockets may be
    opened. loopback: TCP sockets over IPv4 may be opened in a network of the worker's own, which has no other interface;
    where the kernel refuses such a network, no socket may be opened. writable: one folder that may be written, none ([])
    or any (None). forks: this process is to become the warm parent of `workers` others. limits: memory_bytes, file_bytes,
    open_files, processes; of a process, but the last, which is of a room.
    """

    def __init__(self, sandbox, network, loopback, writable, limits, workers, scratch_bytes, forks):
        self.sandbox, self.network, self.writable, self.limits = sandbox, network, writable, limits
        self.wants_loopback = loopback
        self.has_loopback = False
        self.workers, self.scratch_bytes, self.forks = workers, scratch_bytes, forks
        self.missing = []
        self.namespaces = self.rooms = self.own_devices = self.own_shared_memory = False
        self.folder = writable[0] if writable else None  # which holds the scratch folders
        self.scratch = None  # of this process
        self.group = None
        self._own = []  # descriptors of the folder and the one that it lies in, by the mounts of the machine

    def layer(self, name, function, *arguments):
        try:
            function(*arguments)
        except (Refused, OSError) as error:
            self.missing.append(f"{name} ({error})")
            return False
        return True

    # In the process that the program has started, which runs none of the user's code.

    def prepare(self):
        """All that rooms are to share."""
        if self.folder is not None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            self._own = [os.open(path, flags) for path in (self.folder, os.path.dirname(self.folder))]
        if not self.sandbox:
            return
        kernel.forbid_new_privileges()
        try:
            kernel.join_new_keyring()
        except Refused:
            pass  # a container's own filter forbids keys altogether, as ours does
        if self.forks:
            self.group = memory_group.make_group()
        if not self.layer("namespaces", self._enter_namespaces):
            return
        self.namespaces = True
        if self.wants_loopback and not self.network:
            self.has_loopback = self.layer("own loopback", kernel.switch_loopback_on)
        if self.writable is None:
            return
        self.own_devices = self.layer("own /dev", mount_own_devices)
        if self.folder is not None:
            self.scratch = os.path.join(self.folder, "scratch")
            os.mkdir(self.scratch, 0o700)
        # Also stops what Landlock does not: modes, owners and times.
        self.layer("read-only mounts", self._make_mounts_read_only)

    def _enter_namespaces(self):
        network = 0 if self.network else kernel.CLONE_NEWNET
        kernel.unshare(kernel.CLONE_NEWUSER | network | kernel.CLONE_NEWNS)
        keep_user_and_group()

    def _make_mounts_read_only(self):
        kernel.set_read_only("/", True, recursive=True)
        kernel.set_read_only("/proc", False)  # for this process, to make further namespaces; rooms have another

    def processes_of_all_rooms(self):
        """The kernel counts the processes of rooms as those of the namespaces around them, too. Twice as many rooms as
        workers: while a fork bomb is still dying in one, its worker has another, and no worker may want for a process."""
        return self.limits["processes"] * (1 + 2 * self.workers)

    def furnish(self, num_processes):
        """In the first process of a room."""
        self.own_shared_memory = room.furnish(self.layer, self.scratch, self.scratch_bytes, num_processes)

    def furnish_without_room(self):
        """In the worker, where the kernel gives no namespace of processes, as in a container whose /proc has covered
        parts: the scratch folder that all mounts but its own leave read-only, in a table of mounts that ends with the
        worker's processes."""
        kernel.unshare(kernel.CLONE_NEWNS)
        self.own_shared_memory = room.furnish_mounts(self.layer, self.scratch, self.scratch_bytes)

    def enter_nested_namespaces(self):
        """Enters the namespaces of one room, below those of `prepare`. What their mounts forbid is locked from then on."""
        kernel.unshare(kernel.CLONE_NEWNS)
        kernel.set_read_only("/proc", False)  # to be replaced by the room's own; until then for the line below
        kernel.unshare(kernel.CLONE_NEWUSER | room.ROOM_NAMESPACES)
        kernel.become_dumpable()  # or /proc/self would be root's
        keep_user_and_group()
        kernel.become_undumpable()

    def note_no_rooms(self, reason):
        self.rooms = False
        self.missing.append(f"namespaces of each grader ({reason})")

    def note_no_process_namespace(self, reason):
        self.rooms = False
        self.missing.append(f"process namespace ({reason})")

    def do_without_group(self):
        """It counts for each room, so without rooms what it would count is denied."""
        if self.group is not None:
            self.group.remove()
            self.group = None

    @property
    def memory_is_counted(self):
        return self.group is not None

    def remove_folder(self):
        """When nothing of ours runs any more. In namespaces it holds but the place where rooms have their own mounted;
        else it may be so deep that a process of its own goes on with that after the run's end."""
        if not self._own:
            return
        folder, parent = self._own
        try:
            if os.listdir(folder) == ["scratch"]:
                self._remove_empty("scratch", folder)
            if os.listdir(folder) and not self._clear_folder():
                return
            os.rmdir(os.path.basename(self.folder), dir_fd=parent)
        except OSError:
            pass  # the program says what stays

    @staticmethod
    def _remove_empty(name, folder):
        try:
            os.rmdir(name, dir_fd=folder)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def _clear_folder(self):
        try:
            clearing.clear(self.folder, seconds=SECONDS_TO_CLEAR)
            return True
        except clearing.TookTooLong:
            pass
        if os.fork() != 0:
            return False
        for descriptor in range(3):
            os.close(descriptor)
        os.setsid()
        clearing.clear(self.folder)
        return True

    def memory_of_room(self):
        """Returns the bytes that all processes of a room and the files in its scratch folder may have together."""
        return self.limits["memory_bytes"] + self.scratch_bytes

    # In a process that is to run the user's code.

    def enter_sandbox(self):
        """Gives up what all such processes do; a warm parent keeps what its forks need to join their rooms."""
        if self.sandbox and not self.namespaces:
            room.volunteer_to_be_killed()
        if self.folder is not None and not self.namespaces:
            self.scratch = room.new_folder(self.folder)
        kernel.become_undumpable()
        for descriptor in [*self._own, *(self.group.descriptors() if self.group is not None else ())]:
            os.close(descriptor)
        if self.sandbox:
            folders = self._writable_folders()
            guarded = self.layer("Landlock", restrict_by_landlock, folders, not self.own_devices, self.may_use_tcp)
            counted = self.memory_is_counted
            sockets = call_filter.INTERNET if self.network else call_filter.TCP if self.has_loopback else call_filter.NONE
            self.layer("system call filter", call_filter.install, counted, guarded, self.rooms, sockets)
            self.layer("capabilities", kernel.drop_capabilities)
        self._set_limits()
        self.use_scratch()

    @property
    def may_use_tcp(self):
        return self.network or self.has_loopback

    def _writable_folders(self):
        if self.writable is None:
            return None
        # A scratch folder is mounted below `folder`, and shared memory below /dev, by each room for itself. Landlock's
        # rule for the folder above holds in all of them.
        if self.own_devices:
            return [*self.writable, "/dev"]
        return [*self.writable, room.SHARED_MEMORY] if self.own_shared_memory else self.writable

    def confine_fork(self):
        """In a fork of the warm parent that is in its place and has the warm parent's layers: the rest."""
        if self.rooms:
            kernel.drop_capabilities()
            call_filter.forbid_joining()
            if counts_processes_by_namespace():
                set_limit(resource.RLIMIT_NPROC, self.limits["processes"])
        elif self.sandbox and self.scratch is not None:
            try:
                restrict_by_landlock([self.scratch], False, self.may_use_tcp)
            except Refused:
                pass  # said of the warm parent
        self.use_scratch()

    def _set_limits(self):
        """Memory: what a process has for itself, not its address space, most of which is code of libraries that it never
        reads: that of torch takes 2.9 GB, of which 0.7 GB are its own. What processes share, and what several have
        together, is counted as they use it: by a control group, or by the keeper of the room."""
        set_limit(resource.RLIMIT_CORE, 0)
        set_limit(resource.RLIMIT_DATA, self.limits["memory_bytes"])
        set_limit(resource.RLIMIT_FSIZE, self.limits["file_bytes"])
        set_limit(resource.RLIMIT_NOFILE, self.limits["open_files"])
        if self.namespaces and counts_processes_by_namespace():
            set_limit(resource.RLIMIT_NPROC, self.processes_of_all_rooms())

    def use_scratch(self):
        if self.scratch is not None:
            os.environ["TMPDIR"] = self.scratch
            if "tempfile" in sys.modules:  # which remembers the folder that it has used
                sys.modules["tempfile"].tempdir = None
