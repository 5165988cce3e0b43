"""A program that computes rewards, for tests: answers POSTs of {"prompt", "response", "label"} on a port of its own, which
it prints. What the response says is done:

    plus N        answers N            dict N        answers {"score": N, "length": ...}
    slow S        answers 1 after S s  drip          sends a byte of its headers each 0.05 s, for ever
    twice WORD    HTTP 503 to the first two requests with WORD, then 1
    status N      HTTP status N        never         says nothing and keeps the connection
    close         closes the connection within the answer    reset    closes it without one
    huge          2 MiB                nonsense, nan, text, list, bytes    what no number is
    token, label, prompt   1 when the Authorization is "Bearer a-token-of-ours", the label [1, "x"], the prompt "<prompt>"
    count         how many requests there were      connections   from how many connections
"""

import http.server
import json
import socketserver
import sys
import threading
import time

seen = {}
requests, connections = [], set()
lock = threading.Lock()


class Service(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        word, _, argument = body["response"].partition(" ")
        with lock:
            requests.append(word)
            connections.add(self.client_address)
        getattr(self, "do_" + word)(argument, body)

    def answer(self, body, status=200, headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_plus(self, argument, body):
        self.answer(float(argument))

    def do_dict(self, argument, body):
        self.answer({"score": float(argument), "length": len(body["response"])})

    def do_slow(self, argument, body):
        time.sleep(float(argument))
        self.answer(1)

    def do_twice(self, argument, body):
        with lock:
            seen[argument] = seen.get(argument, 0) + 1
            is_enough = seen[argument] > 2
        self.answer(1 if is_enough else b"busy", 200 if is_enough else 503)

    def do_status(self, argument, body):
        self.answer(b"why not", int(argument), [("Location", "http://127.0.0.1:1/")])

    def do_never(self, argument, body):
        time.sleep(3600)

    def do_drip(self, argument, body):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        while True:
            self.wfile.write(b"x")
            time.sleep(0.05)

    def do_close(self, argument, body):
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n1")
        self.close_connection = True

    def do_reset(self, argument, body):
        self.close_connection = True

    def do_huge(self, argument, body):
        self.answer(b"1" * (2 << 20))

    def do_nonsense(self, argument, body):
        self.answer(b"<html>no \x1b[31m number</html>")

    def do_nan(self, argument, body):
        self.answer(b"NaN")

    def do_text(self, argument, body):
        self.answer("1")

    def do_list(self, argument, body):
        self.answer(b"[" * 100_000)

    def do_bytes(self, argument, body):
        self.answer(b"\x1f\x8b\xff\xff", headers=[("Content-Encoding", "gzip")])

    def do_token(self, argument, body):
        self.answer(self.headers.get("Authorization") == "Bearer a-token-of-ours")

    def do_label(self, argument, body):
        self.answer(body["label"] == [1, "x"])

    def do_prompt(self, argument, body):
        self.answer(body["prompt"] == "<prompt>")

    def do_count(self, argument, body):
        with lock:
            self.answer(requests.count(argument))

    def do_connections(self, argument, body):
        with lock:
            self.answer(len(connections))

    def __getattr__(self, name):
        """Grades what a model wrote by its length."""
        if not name.startswith("do_") or name in ("do_GET",):
            raise AttributeError(name)
        return lambda argument, body: self.answer(len(body["response"]) % 5)


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request, client_address):
        pass  # clients give up, as they should


server = Server(("127.0.0.1", 0), Service)
print(server.server_address[1], flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()  # until the test that started it ends
