"""How a worker talks with the program that started it: one request, one reply, over an inherited socket.

A message is a 4-byte little-endian length and that many bytes of UTF-8 JSON. A request is {"id", "call", "arguments"};
its reply has the same id and either "result", "user_fault" or "machine_fault" (one line of text each). Any other
exception ends the process: its last line on stderr is what the program reports. The first request is "enter_sandbox", after
which the process that the program has started keeps the worker that answers (sandbox/keeper.py).

The program gives four descriptors: 0, the keeper's line; 1 and 2, captured output; 3, the socket.
"""

import json
import math
import os
import socket
import struct
import sys

from tandem_worker.sandbox import keeper, kernel, processes

CHANNEL_FD = keeper.CHANNEL_FD
CONFINED = keeper.CONFINED
MAX_MESSAGE_BYTES = 1 << 28  # as in src/worker/message.cc


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


def is_finite_number(value):
    """An int, a bool or a float, neither infinite nor NaN nor an integer beyond floating point."""
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:
        return False


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


def serve(calls, forks=None):
    """Answers requests with calls[name](**arguments) until the program hangs up.

    forks: the module whose main() this is, when "fork" is to make a worker that answers requests on a line of its own.
    """
    channel, confinement = Channel(CHANNEL_FD), None
    if sys.argv[1:] == [CONFINED]:
        kernel.become_undumpable()
    else:
        control = take_control_line()
        request = channel.read()
        if request is None:
            return
        if request["call"] != "enter_sandbox":
            raise ValueError("the first request must be enter_sandbox")
        confinement = keeper.start(control, request["arguments"], forks is not None)
        result = {"missing": confinement.missing, "rooms": confinement.rooms}
        channel.write({"id": request["id"], "result": result})
    answer(channel, calls, forks, confinement)


def take_control_line():
    """Descriptor 0, which then reads /dev/null."""
    control = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return control


def answer(channel, calls, forks, confinement):
    while (request := channel.read()) is not None:
        reply = {"id": request["id"]}
        try:
            if request["call"] == "fork" and forks is not None and confinement is not None:
                afresh = processes.has_threads()
                if keeper.fork_worker(channel.descriptors, confinement):
                    if afresh:
                        keeper.start_afresh(forks)
                    channel.detach()
                    channel, confinement = Channel(CHANNEL_FD), None
                    continue
                reply["result"] = True
            else:
                reply["result"] = calls[request["call"]](**request["arguments"])
        except UserFault as fault:
            reply["user_fault"] = one_line(fault, 2000)
        except MachineFault as fault:
            reply["machine_fault"] = one_line(fault, 2000)
        channel.write(reply)
