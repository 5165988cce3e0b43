"""A room: what one worker has for itself, and the process that looks after it and runs none of the user's code.

As far as the kernel goes, a room is namespaces: process numbers with a /proc of their own, IPC, a table of mounts with a
scratch folder and shared memory of limited size and number of files. Its first process, the keeper of the room, ends
all that is in it when its line to the program closes, and answers on that line, a byte for a byte:

    program     keeper
    b           y           what runs and lies in the room now belongs to the worker
    c           y|p|s|l|t|f has the last call left nothing? p: processes run, s: IPC segments, l: the worker's limits are
                            others than they were, t: many threads run, f: files that stay
    m           y|n         has the room been ended for want of memory?

Files that a call left are removed by that question. Where there are no namespaces, `Lodging` looks after a worker by
its place in the tree of processes instead, and does not answer for segments.
"""

import os
import resource
import signal
import stat
import time

from tandem_worker.sandbox import clearing, kernel

SHARED_MEMORY = "/dev/shm"
SHARED_MEMORY_OPTIONS = "size=64m,nr_inodes=4096,mode=1777"
FILES_OF_SCRATCH = 16384
ROOM_NAMESPACES = kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWNS
NAMESPACE_NAMES = ("user", "mnt", "ipc", "pid")  # in the order in which a worker joins them
RESERVED_PROCESS_IDS = 300  # which the kernel leaves out once it has counted through all
LEAST_IDS_PER_CORE = 8  # the kernel's PIDS_PER_CPU_MIN
LINES_OF_NO_SEGMENT = 1  # a heading

SECONDS_TO_CLEAR = 0.2
SECONDS_TO_DIE = 0.05  # of a process that was told to end in the call's last moment
MEMORY_WATCH_MS = 100
MOST_ZOMBIES = 16
MOST_THREADS_LEFT = 16  # libraries keep some
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_CPU,
          resource.RLIMIT_DATA, resource.RLIMIT_STACK)  # fmt: skip
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def largest_process_id(num_processes, possible_cores):
    """The largest id that leaves room for `num_processes`. The kernel takes none below 8 for each core that the machine
    could have, so on a machine of 46 cores and more there is room for more processes. `possible_cores` is the text of
    /sys/devices/system/cpu/possible, such as 0-63 or 0-3,8-11."""
    ranges = [part.split("-") for part in possible_cores.strip().split(",")]
    num_cores = sum(int(each[-1]) - int(each[0]) + 1 for each in ranges)
    return max(RESERVED_PROCESS_IDS + num_processes, LEAST_IDS_PER_CORE * num_cores)


def limit_process_ids(num_processes):
    """Limits the process ids of this namespace: the one limit of processes that root, too, is under. Linux 6.14 and newer."""
    try:
        with open("/sys/devices/system/cpu/possible") as file:
            largest = largest_process_id(num_processes, file.read())
        with open("/proc/sys/kernel/pid_max", "w") as file:
            file.write(str(largest))
    except OSError:
        if os.geteuid() == 0:
            raise
    try:
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(RESERVED_PROCESS_IDS))  # else the ids below would be free once, for as many processes more
    except OSError:
        pass


def volunteer_to_be_killed():
    """When the machine runs out of memory, the kernel takes this process and its children before the trainer."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def mount_own_proc():
    """By the numbers of the namespace of processes that this process is the first of, without which it could look after
    nobody."""
    volunteer_to_be_killed()
    kernel.mount("proc", "proc", "/proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)


def furnish(layer, scratch, scratch_bytes, num_processes):
    """In the first process of new namespaces, which has a /proc of its own: shared memory and scratch folder. `layer` is
    called with a layer's name and what makes it, and notes what the kernel refuses. Whether shared memory is the room's
    own."""
    layer("limit of processes", limit_process_ids, num_processes)
    return furnish_mounts(layer, scratch, scratch_bytes)


def furnish_mounts(layer, scratch, scratch_bytes):
    """The part of `furnish` for a table of mounts of one's own, also without a namespace of processes."""
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    layer("read-only /proc", kernel.set_read_only, "/proc", True)
    if scratch is None:
        return False
    own = layer("own /dev/shm", kernel.mount, "tmpfs", "tmpfs", SHARED_MEMORY, flags, SHARED_MEMORY_OPTIONS)
    # Programs may run there: a reward may compile what a model wrote.
    layer("own scratch folder", kernel.mount, "tmpfs", "tmpfs", scratch, kernel.MS_NOSUID | kernel.MS_NODEV,
          f"size={scratch_bytes},nr_inodes={FILES_OF_SCRATCH},mode=0700")  # fmt: skip
    return own


def open_namespaces():
    """Descriptors of this process's own, for a worker to join."""
    return [os.open(f"/proc/self/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACE_NAMES]


def resident_bytes(process):
    try:
        with open(f"/proc/{process}/statm") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def is_zombie(process):
    try:
        with open(f"/proc/{process}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def segments():
    count = 0
    for kind in ("shm", "msg", "sem"):
        try:
            with open(f"/proc/sysvipc/{kind}") as file:
                count += len(file.readlines()) - LINES_OF_NO_SEGMENT
        except OSError:
            pass  # a kernel without them
    return count


def limits_of(process):
    """None where the process has ended, which the program sees by itself."""
    try:
        return [resource.prlimit(process, limit) for limit in LIMITS]
    except (OSError, ValueError):
        return None


def threads_of(process):
    try:
        return len(os.listdir(f"/proc/{process}/task"))
    except OSError:
        return 0


class Tidiness:
    """What a call may leave behind, and the means to see it."""

    def __init__(self, folders, list_processes, counts_segments):
        self._folders = folders
        self._list = list_processes
        self._counts_segments = counts_segments
        self.belong = set()
        self._limits = {}
        self._threads = {}
        self._kept = {folder: set() for folder in folders}
        self._modes = {folder: stat.S_IMODE(os.stat(folder).st_mode) for folder in folders}

    def note_what_belongs(self):
        self.belong = set(self._list())
        self._limits = {process: limits_of(process) for process in self.belong}
        self._threads = {process: threads_of(process) for process in self.belong}
        self._kept = {folder: set(os.listdir(folder)) for folder in self._folders}
        return b"y"

    def others(self):
        return [process for process in self._list() if process not in self.belong]

    def _are_gone(self, others):
        give_up = time.monotonic() + SECONDS_TO_DIE
        while others:
            if len(others) <= MOST_ZOMBIES and all(is_zombie(process) for process in others):
                return True
            if time.monotonic() > give_up:
                return False
            time.sleep(0.002)
            others = self.others()
        return True

    def check(self):
        """The answer to 'c'."""
        if not self._are_gone(self.others()):
            return b"p"
        if self._counts_segments and segments() > 0:
            return b"s"
        if any(limits_of(process) != limits for process, limits in self._limits.items()):
            return b"l"
        if any(threads_of(process) > count + MOST_THREADS_LEFT for process, count in self._threads.items()):
            return b"t"
        try:
            for folder in self._folders:
                os.chmod(folder, self._modes[folder])
                if len(os.listdir(folder)) > len(self._kept[folder]):
                    clearing.clear(folder, self._kept[folder], SECONDS_TO_CLEAR)
        except (OSError, clearing.TookTooLong):
            return b"f"
        return b"y"


class Keeper:
    """Looks after one room until its line closes or its main child ends."""

    def __init__(self, line, tidiness, end_others, memory_bytes=None, group=None, group_name=""):
        self._line, self._tidiness, self._end_others = line, tidiness, end_others
        self._memory_bytes = memory_bytes
        self._group, self._group_name = group, group_name
        self._ran_out = False
        self._own_bytes = 0  # of the worker when nothing ran yet, which its forks share

    def _note_what_belongs(self):
        answer = self._tidiness.note_what_belongs()
        self._own_bytes = max((resident_bytes(process) for process in self._tidiness.belong), default=0)
        if self._group is not None:
            for process in self._tidiness.belong:
                self._group.admit(self._group_name, process)
        return answer

    def _has_run_out(self):
        return self._ran_out or (self._group is not None and self._group.ran_out(self._group_name))

    def _answer(self, request):
        if request == b"b":
            return self._note_what_belongs()
        if request == b"c":
            return self._tidiness.check()
        if request == b"m":
            return b"y" if self._has_run_out() else b"n"
        return b"?"

    def _watch_memory(self):
        """Limits the memory of all processes together where no control group does: no limit of a process counts what it maps to share.
        Here that is counted as often as it is used, so each may have what the worker had when nothing ran yet."""
        everyone = [*self._tidiness.others(), *self._tidiness.belong]
        allowed = self._memory_bytes + len(everyone) * self._own_bytes
        if sum(resident_bytes(process) for process in everyone) > allowed:
            self._ran_out = True
            self._end_others()

    def run(self, loop, child=None, more_lines=None):
        """The child's wait status, or None when a line closed. more_lines: lines that only close."""
        lines = {self._line, *(more_lines or ())} - {None}
        for line in lines:
            loop.watch(line)
        watch_ms = MEMORY_WATCH_MS if self._memory_bytes is not None and self._group is None else None
        while True:
            ready, ended = loop.wait(watch_ms)
            for descriptor in ready:
                try:
                    request = os.read(descriptor, 1)
                    if not request:
                        return None
                    os.write(descriptor, self._answer(request))
                except OSError:
                    return None  # the other side is gone, or the room cannot be looked after
            for process, status in ended:
                if process == child:
                    return status
            if watch_ms is not None:
                self._watch_memory()


def end_room():
    """All at once, before any of them has to be scheduled: the members of a fork bomb hold up each other's end."""
    try:
        os.kill(-1, signal.SIGKILL)
    except ProcessLookupError:
        pass


def processes_of_room():
    """Returns the processes of the namespace whose first process asks."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and name != "1"]


def new_folder(parent):
    path = os.path.join(parent, os.urandom(8).hex())
    os.mkdir(path, 0o700)
    return path
