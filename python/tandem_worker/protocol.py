"""How a worker talks with the program that started it: one request, one reply, over an inherited socket.

A message is a 4-byte little-endian length and that many bytes of UTF-8 JSON. A request is {"id", "call", "arguments"};
its reply has the same id and either "result", "user_fault" or "machine_fault" (one line of text each). Any other
exception ends the process: its last line on stderr is what the program reports. The first request is "confine".

The program gives four descriptors: 0, a pipe that it never writes and that closes when it dies; 1 and 2, captured
output; 3, the socket.
"""

import fcntl
import json
import os
import signal
import socket
import struct

from tandem_worker import processes, sandbox

CHANNEL_FD = 3
MAX_MESSAGE_BYTES = 1 << 28  # as in src/text/message.cc


class UserFault(Exception):
    """What the user gave is wrong: a file, a function, a conversation."""


class MachineFault(Exception):
    """Something that Tandem needs is missing here."""


def one_line(text, limit=500):
    line = " ".join(str(text)[: 8 * limit].split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def with_article(noun):
    """an int, a list"""
    return ("an " if noun[:1].lower() in "aeiou" else "a ") + noun


class Channel:
    def __init__(self, fd):
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)  # what user code starts must not hold the line open

    def read(self):
        """The next message, or None when the program is gone. Descriptors that came along: self.descriptors."""
        self.descriptors = []
        header = self._read_bytes(4)
        if header is None:
            return None
        (num_bytes,) = struct.unpack("<I", header)
        body = self._read_bytes(num_bytes)
        return None if body is None else json.loads(body)

    def write(self, message):
        # Text that came from user code may hold lone surrogates, which have no UTF-8 form.
        body = json.dumps(message, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
        if len(body) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a reply of {len(body)} bytes passes the limit of {MAX_MESSAGE_BYTES}")
        self._socket.sendall(struct.pack("<I", len(body)) + body)

    def detach(self):
        """The descriptor has become another line, which must not close when this object goes."""
        self._socket.detach()

    def _read_bytes(self, num_bytes):
        parts = []
        while num_bytes > 0:
            part = processes.receive(self._socket, min(num_bytes, 1 << 20), self.descriptors)
            if not part:
                return None
            parts.append(part)
            num_bytes -= len(part)
        return b"".join(parts)


class Lifeline:
    """Death with the program: the kernel sends SIGKILL to `owner` when the program's end of descriptor 0 closes.
    Descriptor 0 itself then reads /dev/null.

    A thread that watches the program would not run while C code holds the interpreter, and prctl's parent-death signal
    fires when the parent's *thread* ends. The program can ask for the owner's process id, in its own numbers (F_GETOWN).
    """

    def __init__(self):
        self._pipe = os.dup(0)
        fcntl.fcntl(self._pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(self._pipe, fcntl.F_SETFL, fcntl.fcntl(self._pipe, fcntl.F_GETFL) | os.O_ASYNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        self.own()

    def own(self):
        fcntl.fcntl(self._pipe, fcntl.F_SETOWN, os.getpid())

    def close(self):
        os.close(self._pipe)


def serve(calls, forks=None):
    """Answers requests with calls[name](**arguments) until the program hangs up.

    forks: the module whose main() this is, when "fork" is to make a worker that answers requests on a line of its own.
    """
    lifeline = Lifeline()
    channel = Channel(CHANNEL_FD)
    while (request := channel.read()) is not None:
        reply = {"id": request["id"]}
        try:
            if request["call"] == "confine":
                reply["result"] = sandbox.confine(**request["arguments"], forks=forks is not None)
                lifeline.own()  # confine() may return in another process than it was called in
            elif request["call"] == "fork" and forks is not None:
                afresh = processes.has_threads()
                if processes.fork_worker(channel.descriptors, sandbox.enter_worker_namespace):
                    sandbox.drop_what_forks_need()
                    if afresh:
                        processes.start_afresh(forks)
                    lifeline.close()
                    channel.detach()
                    lifeline, channel = Lifeline(), Channel(CHANNEL_FD)
                    continue
                reply["result"] = True
            else:
                reply["result"] = calls[request["call"]](**request["arguments"])
        except UserFault as fault:
            reply["user_fault"] = one_line(fault, 2000)
        except MachineFault as fault:
            reply["machine_fault"] = one_line(fault, 2000)
        channel.write(reply)
