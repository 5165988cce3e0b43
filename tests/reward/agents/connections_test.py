"""The endpoint for agents, over sockets: connections that break, are too many or never speak, and what clients that attack it
can reach."""

import contextlib
import http.client
import resource
import socket
import threading
import time
import unittest
import urllib.error
import urllib.request
from unittest import mock

from endpoint_fixture import EndpointTest, Engine, read_to_end, user, wait_until_closed
from tandem_worker.agents import endpoint as agent_endpoint, http as agent_http


class Connections(EndpointTest):
    def test_answers_of_clients_that_have_gone_are_not_kept(self):
        engine = Engine()

        def acts(client, _):
            engine.is_held = True
            gone, half, away = (client.send([user(text)]) for text in ("gone", "half", "away"))
            engine.wait_until_asked(3)
            gone.close()
            half.shutdown(socket.SHUT_WR)
            self.assertEqual(half.recv(10), b"", "the endpoint has seen it")
            half.close()
            status, answer, _ = client.ask({"messages": [user("hi")]})
            self.assertEqual((status, answer["error"]["code"]), (429, "rate_limit_exceeded"), "the engine answers them")
            away.close()
            engine.is_held = False
            while (status := client.ask({"messages": [user("hi")]})[0]) == 429:
                time.sleep(0.005)
            self.assertEqual(status, 200)

        with mock.patch.object(agent_endpoint, "MAX_WAITING", 3):
            (message,), asked = self.make(acts, ["one<|end|>"], engine=engine)
        self.assertEqual(len(asked), 4)
        self.assertEqual(self.trained(message), ("one<|end|>", "one<|end|>"))
        self.assertGreaterEqual(message["endpoint"]["refused"], 4)

    def test_a_connection_that_stays_open_does_not_outlive_the_samples(self):
        waiting = []

        def acts(client, _):
            waiting.append(client.send([user("hi")]))
            self.assertIn(b"200 OK", waiting[0].recv(1 << 16))

        self.make(acts, ["one<|end|>"])
        self.assertEqual(waiting[0].recv(1), b"")
        waiting[0].close()

    def test_an_answer_that_cannot_be_written_is_not_kept(self):
        write = agent_http.Server._write

        async def fail(server, writer, status, content, *rest):
            if b"gone" in content:
                raise ConnectionResetError("the client has gone")
            await write(server, writer, status, content, *rest)

        def acts(client, _):
            with self.assertRaises(http.client.RemoteDisconnected):
                client.chat([user("hi")])
            self.assertEqual(client.chat([user("hi")])[1], "new")

        with mock.patch.object(agent_http.Server, "_write", fail):
            (message,), _ = self.make(acts, ["gone<|end|>", "two<|end|>"])
        self.assertEqual(self.trained(message), ("two<|end|>", "two<|end|>"))
        self.assertEqual(message["endpoint"], {"answers": 2, "restarts": 0, "untrained": 0, "refused": 1})

    def test_attacks_reach_nothing_and_are_counted(self):
        keys = {}
        both = threading.Barrier(2)

        def acts(client, index):
            keys[index] = client.key
            both.wait()
            if index == 1:
                client.chat([user("hi")])
                both.wait()
                return
            hi = {"messages": [user("hi")]}
            for key in ("", "tandem-", client.key + "x", "é"):
                self.assertEqual(client.ask(hi, key=key.encode().decode("latin-1"))[0], 401)
            self.assertEqual(client.ask(b"", headers={"Content-Length": str(agent_http.MAX_BODY_BYTES + 1)})[0], 413)
            self.assertEqual(client.ask(b"", headers={"Content-Length": "1e3"})[0], 400)
            self.assertEqual(client.ask(b"", headers={"X": "y" * (agent_http.MAX_HEAD_BYTES + 1)})[0], 431)
            self.assertEqual(client.ask(b"", headers={"Transfer-Encoding": "chunked"})[0], 411)
            self.assertEqual(client.ask(b"{", headers={"Content-Length": "9"})[0], 408, "the body never ends")
            both.wait()
            client.chat([user("hi")])  # an honest request goes on

        with mock.patch.object(agent_http, "REQUEST_SECONDS", 0.3):
            ended, _ = self.make(acts, ["one<|end|>"], num_samples=2)
        self.assertNotEqual(keys[0], keys[1])
        self.assertEqual(sum(message["endpoint"]["answers"] for message in ended), 2)
        self.assertEqual(sum(message["endpoint"]["refused"] for message in ended), 9)

    def test_clients_that_are_still_sending_see_why_they_are_refused(self):
        """An answer is sent before the body is read. A connection that was then closed was reset under the client."""
        large = bytes(agent_http.MAX_BODY_BYTES + (1 << 20))

        def acts(client, _):
            self.assertEqual(client.ask(large)[0], 413)
            self.assertEqual(client.ask(bytes(1 << 20), key="wrong")[0], 401)
            chunks = (bytes(1 << 16) for _ in range(64))
            self.assertEqual(client.ask_in_chunks(chunks), 411)
            request = urllib.request.Request(client.base_url + "/chat/completions", large)
            request.add_header("Authorization", f"Bearer {client.key}")
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=10)
            self.assertEqual(refused.exception.code, 413)
            refused.exception.close()
            client.chat([user("hi")])

        (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 4})

    def test_what_is_dropped_of_a_refused_request_is_bounded_in_bytes_and_seconds(self):
        def acts(client, _):
            with client.connect() as quiet:  # neither sends more nor closes
                with mock.patch.object(agent_http, "DROP_SECONDS", 0.3):
                    quiet.sendall(b"POST / HTTP/1.1\r\nAuthorization: Bearer wrong\r\nContent-Length: 9\r\n\r\n")
                    self.assertTrue(read_to_end(quiet).startswith(b"HTTP/1.1 401"))
                    wait_until_closed(quiet)
            with client.connect() as endless, self.assertRaises(OSError):
                endless.sendall(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
                for _ in range(300):
                    endless.sendall(bytes(1 << 20))
            client.chat([user("hi")])

        with mock.patch.multiple(agent_http, DROP_SECONDS=600, MAX_DROPPED_BYTES=1 << 22):
            (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 2})

    def hold_all_connections(self, client):
        held = [client.send([user("hi")]) for _ in range(2)]
        self.assertEqual([connection.recv(12) for connection in held], [b"HTTP/1.1 200"] * 2)
        return held

    def two_connections(self):
        open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return mock.patch.multiple(agent_http, RESERVED_DESCRIPTORS=open_files - 4, DROP_SECONDS=600)

    def make_with_two_connections(self, acts):
        with self.two_connections():
            (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"]["answers"], 2)
        return message["endpoint"]["refused"]

    def test_a_client_that_is_one_too_many_sees_why_and_may_come_again(self):
        def acts(client, _):
            held = self.hold_all_connections(client)
            self.assertEqual(client.ask(bytes(1 << 20))[0], 503)
            for connection in held:
                connection.close()
            while client.ask(b"", "/v1/models", method="GET")[0] == 503:
                time.sleep(0.01)

        self.assertGreaterEqual(self.make_with_two_connections(acts), 1)

    def test_connections_are_bounded_also_while_the_rest_of_requests_is_dropped(self):
        def acts(client, _):
            held = self.hold_all_connections(client)
            turned_away = [client.connect() for _ in range(agent_http.MAX_TURNED_AWAY)]
            for connection in turned_away:
                self.assertEqual(connection.recv(12), b"HTTP/1.1 503")
            with client.connect() as further:  # is closed at once, not only after DROP_SECONDS
                self.assertIn(b"503", read_to_end(further))
                wait_until_closed(further)
            for connection in held + turned_away:
                connection.close()

        self.assertEqual(self.make_with_two_connections(acts), agent_http.MAX_TURNED_AWAY + 1)

    def test_connections_without_a_key_make_room_for_one_with_a_key(self):
        def acts(client, _):
            with contextlib.ExitStack() as attack:
                for _ in range(5):
                    attack.enter_context(client.connect())  # never sends a byte
                    attack.enter_context(client.connect()).sendall(b"POST /v1/chat")
                    attack.enter_context(client.connect()).sendall(b"GET /v1/models HTTP/1.1\r\n\r\n")  # is refused
                for _ in range(2):
                    client.chat([user("hi")])

        self.assertGreaterEqual(self.make_with_two_connections(acts), 14)

    def test_connections_of_a_sample_that_has_ended_make_room(self):
        held = []
        are_held = threading.Event()

        def acts(client, index):
            if index == 0:
                held.extend(self.hold_all_connections(client))
                are_held.set()
                return
            are_held.wait(10)
            give_up = time.monotonic() + 10
            while client.ask(b"", "/v1/models", method="GET")[0] == 503 and time.monotonic() < give_up:
                time.sleep(0.01)  # the first sample has not ended yet
            client.chat([user("hi")])

        with self.two_connections():
            ended, _ = self.make(acts, ["one<|end|>"], num_samples=2)
        for connection in held:
            connection.close()
        self.assertEqual([message["endpoint"]["answers"] for message in ended], [2, 1])

    def test_a_connection_has_a_limited_time_for_its_first_byte_and_then_rests_as_long_as_it_likes(self):
        def acts(client, _):
            with client.send([user("hi")]) as of_agent, client.connect() as silent:
                self.assertIn(b"HTTP/1.1 200", of_agent.recv(1 << 16))
                self.assertEqual(silent.recv(1), b"")
                time.sleep(0.4)
                of_agent.sendall(f"GET /v1/models HTTP/1.1\r\nAuthorization: Bearer {client.key}\r\n\r\n".encode())
                self.assertIn(b"HTTP/1.1 200", of_agent.recv(1 << 16))

        with mock.patch.object(agent_http, "REQUEST_SECONDS", 0.3):
            (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 0})

    def test_requests_are_counted_where_the_function_fails(self):
        def acts(client, _):
            client.chat([user("hi")])
            self.assertEqual(client.ask({}, key="wrong")[0], 401)
            self.assertEqual(client.ask(b"{")[0], 400)
            raise ValueError("no sample")

        (message,), _ = self.make(acts, ["one<|end|>"], failing=(0,))
        self.assertIn("no sample", message["failure"])
        self.assertEqual(message["endpoint"], {"answers": 1, "restarts": 0, "untrained": 0, "refused": 2})

    def test_refusals_that_no_sample_is_to_blame_for_wait_for_the_next_sample_that_ends(self):
        endpoint = agent_endpoint.Endpoint({})
        endpoint._server = mock.Mock(port=1)
        endpoint._refused(None)
        endpoint.end(endpoint.client(mock.Mock(), mock.Mock()))  # is cancelled: nobody is told of it
        self.assertEqual([endpoint.take_counts(None)["refused"] for _ in range(2)], [1, 0])

    def test_headers_may_be_repeated_unless_they_decide_what_the_request_is(self):
        deciding = ("Host: a", "Content-Length: 45", "Transfer-Encoding: identity", "Authorization: Bearer a",
                    "Content-Type: application/json")  # fmt: skip

        def answer_to(client, headers):
            with client.send([user("hi")], "".join(f"{header}\r\n" for header in headers)) as connection:
                return connection.recv(1 << 16).decode()

        def acts(client, _):
            answer = answer_to(client, ["Accept: application/json", "accept: */*", "X-Trace: 1", "X-Trace: 2"])
            self.assertIn("200 OK", answer)
            self.assertIn("Connection: keep-alive", answer)
            self.assertIn("Connection: close", answer_to(client, ["Connection: keep-alive", "Connection: Close"]))
            for header in deciding:
                name = header.partition(":")[0].lower()
                self.assertIn(f"the header {name} is there twice; send it once", answer_to(client, [header, header]))

        (message,), _ = self.make(acts, ["one<|end|>"])
        self.assertEqual(message["endpoint"], {"answers": 2, "restarts": 0, "untrained": 0, "refused": len(deciding)})

    def test_requests_under_way_are_bounded(self):
        def acts(client, _):
            statuses = []
            threads = [threading.Thread(target=lambda: statuses.append(client.ask({"messages": [user("hi")]})[0]))
                       for _ in range(6)]  # fmt: skip
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertLessEqual(set(statuses), {200, 429})

        with mock.patch.object(agent_endpoint, "MAX_WAITING", 0):
            with self.assertRaisesRegex(AssertionError, "returned no sample"):
                self.make(acts, ["one<|end|>"])
        self.make(acts, ["one<|end|>"], max_sequences=6)


if __name__ == "__main__":
    unittest.main()
