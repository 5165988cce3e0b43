"""The processes around a grader: a warm parent that has imported the reward once, and the workers it forks.

    program -> [guard -> init ->] warm parent -> (init -> worker) for each worker

The warm parent answers "load" once and "fork" often: a worker that died is replaced in milliseconds, without imports.
User code runs in the warm parent (at import) and in workers. Each runs as the child of an init that runs none, reaps
what is left to it and ends with its child; being the first process of its namespace, it takes all others with it, and
no signal from inside reaches it. Where there are no process namespaces, the same processes do without that.
"""

import os
import signal
import socket
import struct
import sys

NUM_DESCRIPTORS = 5  # that come with "fork": those that become a worker's 0, 1, 2 and 3, and where its init reports


def wait_for(child):
    """The wait status of `child`, in a process that reaps all its children."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def end_like(status):
    """Ends this process as the other one ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) % 256)


def descend(in_init):
    """Returns in a grandchild, whose parent, the init of a new process namespace, has called in_init(). This process
    stays, as what the program started, and ends as the grandchild ends, after all of the namespace."""
    reports, report = os.pipe()
    init = os.fork()
    if init != 0:
        os.close(report)
        wait_for(init)
        text = os.read(reports, 4)
        end_like(struct.unpack("<i", text)[0] if text else signal.SIGKILL)
    os.close(reports)
    in_init()
    child = os.fork()
    if child != 0:
        os.write(report, struct.pack("<i", wait_for(child)))
        os._exit(0)
    os.close(report)


def has_threads():
    """A fork copies the calling thread alone, so a reward that starts others when imported cannot be forked."""
    return len(os.listdir("/proc/self/task")) > 1


def end_namespace(worker, in_namespace):
    """All at once, before any of them has to be scheduled: the members of a fork bomb hold up each other's end."""
    try:
        os.kill(-1, signal.SIGKILL) if in_namespace else os.killpg(worker, signal.SIGKILL)
    except ProcessLookupError:
        pass


def fork_worker(descriptors, new_namespace):
    """False in this process, True in the worker; the worker's init, and one process on the way there, do not return."""
    if len(descriptors) != NUM_DESCRIPTORS:
        raise ValueError(f"{len(descriptors)} descriptors came with a fork")
    report = descriptors[-1]
    try:
        passing = os.fork()
    except OSError:  # a fork bomb has taken all processes; the descriptors tell the program that no worker came
        passing = -1
    if passing != 0:
        for descriptor in descriptors:
            os.close(descriptor)
        if passing > 0:
            os.waitpid(passing, 0)
        return False
    try:
        in_namespace = new_namespace()
        if os.fork() != 0:
            os._exit(0)
        worker = os.fork()
        if worker != 0:
            signal.signal(signal.SIGTERM, lambda *_: end_namespace(worker, in_namespace))
            os.closerange(0, report)
            os.closerange(report + 1, 1 << 16)
            status = wait_for(worker)
            os.write(report, struct.pack("<i", status))
            os._exit(0)
        os.setpgid(0, 0)
        for target, descriptor in enumerate(descriptors[:-1]):
            os.dup2(descriptor, target)
        for descriptor in descriptors:
            os.close(descriptor)
        return True
    except BaseException as error:
        os.write(2, f"a grader cannot be forked: {error}\n".encode())
        os._exit(1)


def start_afresh(mode):
    """In place of a fork that would lack threads: the same process, with a new interpreter in it."""
    os.execv(sys.executable, [sys.executable, "-m", mode])


def receive(connection, num_bytes, descriptors):
    """Some of the next bytes; descriptors that came along are added to the list."""
    part, received, _, _ = socket.recv_fds(connection, num_bytes, NUM_DESCRIPTORS)
    descriptors.extend(received)
    return part
