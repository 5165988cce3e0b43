"""Control groups that count all memory of reward code: heap of children, shared memory, memfds, files in a tmpfs.

A process may make such a group only where the machine lets its user: mostly root, or a user's own systemd session; not
in a container, whose groups are read-only. Version 2 counts in a sibling of our own group, since a group that holds
processes may have no children that count; version 1 counts in a child.
"""

import contextlib
import errno
import fcntl
import os

PREFIX = "tandem-graders-"


def _mount_points():
    """Type of a control group file system -> where it is mounted; version 1 by its memory controller alone."""
    found = {}
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
                found[kind] = before.split()[4]
    return found


def _own_group(controller):
    with open("/proc/self/cgroup") as file:
        for line in file:
            _, controllers, path = line.rstrip("\n").split(":", 2)
            if controller in controllers.split(","):
                return path.lstrip("/")
    return ""


def _folders():
    """(version, folder to make a group in), most wanted first."""
    mounts = _mount_points()
    if "cgroup2" in mounts:
        yield 2, os.path.join(mounts["cgroup2"], os.path.dirname(_own_group("")))
    if "cgroup" in mounts:
        yield 1, os.path.join(mounts["cgroup"], _own_group("memory"))


def _counts_memory(version, folder):
    if version == 1:
        return os.path.exists(os.path.join(folder, "memory.limit_in_bytes"))
    with open(os.path.join(folder, "cgroup.subtree_control")) as file:
        return "memory" in file.read().split()


class MemoryGroup:
    """One group, and below it one for each room. Every path is relative to a descriptor that was opened before the
    mounts became read-only."""

    def __init__(self, version, folder):
        self._version = version
        self._name = PREFIX + os.urandom(8).hex()
        self._group = None
        self._parent = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.mkdir(self._name, dir_fd=self._parent)
            self._group = os.open(self._name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._parent)
            if version == 2:
                self._write("cgroup.subtree_control", "+memory")
        except OSError:
            self.remove()
            raise

    def _write(self, name, text):
        descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._group)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)

    def descriptors(self):
        return {descriptor for descriptor in (self._parent, self._group) if descriptor is not None}

    @contextlib.contextmanager
    def _locked(self):
        """Against other processes: a room that is made is not removed before it has its first process."""
        descriptor = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._group)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def make_room(self, name, max_bytes, process):
        """With its first process (admit())."""
        with self._locked():
            self._make_room(name, max_bytes)
            self.admit(name, process)

    def _make_room(self, name, max_bytes):
        os.mkdir(name, dir_fd=self._group)
        if self._version == 1:
            self._write(name + "/memory.limit_in_bytes", str(max_bytes))
            return
        self._write(name + "/memory.max", str(max_bytes))
        for optional, value in (("memory.swap.max", "0"), ("memory.oom.group", "1")):
            try:
                self._write(f"{name}/{optional}", value)
            except OSError:
                pass  # a kernel without swap accounting

    def admit(self, name, process):
        """Counts what `process` takes from now on, by its number in the caller's namespace."""
        self._write(name + "/cgroup.procs", str(process))

    def ran_out(self, name):
        """Whether the kernel has ended a process of the room for want of memory."""
        file_name = "/memory.oom_control" if self._version == 1 else "/memory.events"
        with open(os.open(name + file_name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._group)) as file:
            return any(line.startswith("oom_kill ") and line.split()[1] != "0" for line in file)

    def remove_empty_rooms(self):
        """Removes the rooms whose processes are gone."""
        with self._locked():
            self._remove_empty_rooms()

    def _remove_empty_rooms(self):
        with os.scandir(self._group) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in names:
            try:
                os.rmdir(name, dir_fd=self._group)
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ENOENT):
                    raise

    def remove(self):
        try:
            self.remove_empty_rooms()
        except (TypeError, OSError):
            pass
        try:
            os.rmdir(self._name, dir_fd=self._parent)
        except OSError:
            pass  # a process that could not be ended yet is still in it; an empty group costs nothing
        for descriptor in self.descriptors():
            os.close(descriptor)


def make_group():
    """None where this process may make none."""
    for version, folder in _folders():
        try:
            if _counts_memory(version, folder):
                return MemoryGroup(version, folder)
        except OSError:
            continue
    return None
