"""What the system call filter leaves. Sockets: none to reward code, TCP over IPv4 to a function with an endpoint, those of
the internet to the process that asks a service. Of the other calls its program is run by hand, for every machine that it knows."""

import errno
import os
import pathlib
import platform
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from tandem_worker.sandbox import call_filter, kernel  # noqa: E402

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6, "unix": socket.AF_UNIX, "netlink": socket.AF_NETLINK,
            "packet": socket.AF_PACKET, "vsock": socket.AF_VSOCK}  # fmt: skip


def opened_behind_filters(*filters):
    """The families of which a process may open a socket of datagrams, behind a filter for each of `filters`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        kernel.forbid_new_privileges()
        for sockets in filters:
            call_filter.install(True, True, False, sockets)
        for name, family in FAMILIES.items():
            try:
                socket.socket(family, socket.SOCK_DGRAM).close()
                os.write(writer, f"{name} ".encode())
            except OSError as error:
                if error.errno != 13:
                    os.write(writer, f"{name}:{error.errno} ".encode())
        for end in socket.socketpair():  # which asyncio needs
            end.close()
        os.write(writer, b"pair")
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text.split()


def answer(machine, number, *arguments, denied=(call_filter.DENIED,), sockets=call_filter.NONE):
    """What the filter answers to a call: 0 where it lets it through, or the error's number."""
    words = {call_filter.NUMBER: number, call_filter.ARCHITECTURE: call_filter.ARCHITECTURES[machine]}
    words.update({16 + 8 * i: value for i, value in enumerate(arguments)})
    lines, at, value = call_filter.program(machine, list(denied), sockets), 0, 0
    while True:
        code, yes, no, operand = lines[at]
        at += 1
        if code == call_filter.ANSWER:
            return 0 if operand == call_filter.ALLOW else operand & 0xFFFF
        if code == call_filter.LOAD:
            value = words.get(operand, 0)
        elif code == call_filter.AND:
            value &= operand
        else:
            test = {call_filter.EQUAL: value == operand, call_filter.AT_LEAST: value >= operand,
                    call_filter.ANY_BIT: value & operand != 0}[code]  # fmt: skip
            at += yes if test else no


class Program(unittest.TestCase):
    def test_calls_of_new_kernels_are_denied_as_those_of_old_ones(self):
        for machine in call_filter.ARCHITECTURES:
            for number in (442, 457, 458, 460, 467, 469, 470):
                self.assertEqual(answer(machine, number), errno.EACCES, (machine, number))
            for number in (436, 439, 451, 452, 462, 468):
                self.assertEqual(answer(machine, number), 0, (machine, number))

    def test_a_call_that_nobody_has_judged_is_as_if_it_were_not_there(self):
        for machine in call_filter.ARCHITECTURES:
            for number in (471, 472, 500, 1023, 1 << 29):
                self.assertEqual(answer(machine, number), errno.ENOSYS, (machine, number))

    def test_a_function_with_an_endpoint_opens_streams_of_tcp_over_ipv4_alone(self):
        cloexec, nonblock, mptcp = 0o2000000, 0o4000, 262
        for machine in call_filter.ARCHITECTURES:
            number = call_filter.SOCKET[call_filter.COLUMN[machine]]

            def opens(family, kind, protocol):
                return answer(machine, number, family, kind, protocol, sockets=call_filter.TCP) == 0

            for kind in (socket.SOCK_STREAM, socket.SOCK_STREAM | cloexec, socket.SOCK_STREAM | nonblock):
                self.assertTrue(opens(socket.AF_INET, kind, 0))
                self.assertTrue(opens(socket.AF_INET, kind, socket.IPPROTO_TCP))
                self.assertFalse(opens(socket.AF_INET, kind, mptcp))
                for family in set(FAMILIES.values()) - {socket.AF_INET}:
                    self.assertFalse(opens(family, kind, 0), family)
            for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
                self.assertFalse(opens(socket.AF_INET, kind, 0), kind)

    def test_a_process_does_not_become_dumpable_again(self):
        for machine, prctl in (("x86_64", 157), ("aarch64", 167)):
            self.assertEqual(answer(machine, prctl, 4, 1), errno.EACCES)
            self.assertEqual(answer(machine, prctl, 4, 2), errno.EACCES)
            self.assertEqual(answer(machine, prctl, 4, 0), 0)
            self.assertEqual(answer(machine, prctl, 15, 1), 0)  # a thread's name
            self.assertEqual(answer(machine, prctl, 3, 1), 0)


@unittest.skipUnless(platform.machine() in call_filter.ARCHITECTURES, "the filter does not know this machine")
class CallFilter(unittest.TestCase):
    def test_reward_code_opens_no_socket(self):
        self.assertEqual(opened_behind_filters(call_filter.NONE), ["pair"])

    def test_the_process_that_asks_a_service_opens_those_of_the_internet(self):
        opened = [name.partition(":")[0] for name in opened_behind_filters(call_filter.INTERNET)]  # a machine may lack IPv6
        self.assertEqual(opened, ["inet", "inet6", "pair"])

    def test_a_filter_on_top_takes_nothing_back(self):
        self.assertEqual(opened_behind_filters(call_filter.NONE, call_filter.INTERNET), ["pair"])


if __name__ == "__main__":
    unittest.main()
