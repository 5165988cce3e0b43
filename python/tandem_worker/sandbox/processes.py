"""Waiting for processes and ending them, for those of ours that run none of the user's code."""

import os
import select
import signal
import socket
import struct
import time

STATUS_BYTES = 4


def send_status(descriptor, status):
    """To whom this process looks after a child for: how the child ended, as wait() has it."""
    try:
        os.write(descriptor, struct.pack("<i", status))
    except OSError:
        pass  # nobody waits for it any more


def received_status(descriptor):
    """None when the other side ended without a word."""
    text = os.read(descriptor, STATUS_BYTES)
    return struct.unpack("<i", text)[0] if len(text) == STATUS_BYTES else None


def exit_like(status):
    """Ends this process as the other one ended."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) % 256)


def has_threads():
    """A fork copies the calling thread alone, so a reward that starts others when imported cannot be forked."""
    return len(os.listdir("/proc/self/task")) > 1


def children_of(process):
    """By their numbers, those that have ended but were not waited for included."""
    found = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):
            with open(f"/proc/{process}/task/{thread}/children") as file:
                found += [int(number) for number in file.read().split()]
    except OSError:
        pass  # it ended meanwhile; its children are another's by now
    return found


def descendants_of(process):
    found = children_of(process)
    for child in found:  # grows while it is gone through
        found += children_of(child)
    return found


def end_descendants(seconds=5.0):
    """Kills and reaps all that come from this process, a subreaper, whatever they start meanwhile."""
    give_up = time.monotonic() + seconds
    while (others := descendants_of(os.getpid())) and time.monotonic() < give_up:
        for other in others:
            try:
                os.kill(other, signal.SIGKILL)
            except OSError:
                pass
        while reap_one() is not None:
            pass
        time.sleep(0.001)


def reap_one():
    """(number, status) of a child that has ended, or None."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid != 0 else None


def wait_for(child):
    """The wait status of `child`, in a process that reaps all its children."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return status


def wait_for_all():
    try:
        while True:
            os.wait()
    except ChildProcessError:
        pass


class Loop:
    """Waits for bytes on lines and for the end of children at once."""

    def __init__(self):
        self._poll = select.poll()
        self._woken, waker = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._poll.register(self._woken, select.POLLIN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        self._waker = waker

    def watch(self, descriptor):
        self._poll.register(descriptor, select.POLLIN)

    def wait(self, milliseconds=None):
        """The lines that have something to read, and (number, status) of each child that has ended."""
        ready = [descriptor for descriptor, _ in self._poll.poll(milliseconds)]
        if self._woken in ready:
            ready.remove(self._woken)
            os.read(self._woken, 4096)
        ended = []
        while (child := reap_one()) is not None:
            ended.append(child)
        return ready, ended

    def leave(self):
        """In a fork, which is not to wake its parent."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._woken)
        os.close(self._waker)


def receive(connection, num_bytes, descriptors, most=8):
    """Some of the next bytes; descriptors that came along are added to the list."""
    part, received, _, _ = socket.recv_fds(connection, num_bytes, most)
    descriptors.extend(received)
    return part
