"""Which sockets the system call filter leaves: none to reward code, those of the internet to the process that asks a
service."""

import os
import pathlib
import platform
import socket
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
from tandem_worker import call_filter, kernel  # noqa: E402

FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6, "unix": socket.AF_UNIX, "netlink": socket.AF_NETLINK,
            "packet": socket.AF_PACKET, "vsock": socket.AF_VSOCK}  # fmt: skip


def opened_behind_filters(networks):
    """The families of which a process may open a socket, behind a filter for each of `networks`."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        kernel.forbid_new_privileges()
        for network in networks:
            call_filter.install(True, True, False, network)
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


@unittest.skipUnless(platform.machine() in call_filter.ARCHITECTURES, "the filter does not know this machine")
class CallFilter(unittest.TestCase):
    def test_reward_code_opens_no_socket(self):
        self.assertEqual(opened_behind_filters([False]), ["pair"])

    def test_the_process_that_asks_a_service_opens_those_of_the_internet(self):
        opened = [name.partition(":")[0] for name in opened_behind_filters([True])]  # a machine may lack IPv6
        self.assertEqual(opened, ["inet", "inet6", "pair"])

    def test_a_filter_on_top_takes_nothing_back(self):
        self.assertEqual(opened_behind_filters([False, True]), ["pair"])


if __name__ == "__main__":
    unittest.main()
