"""A small HTTP/1.1 server on loopback for agents that a generate function runs (endpoint.py). It runs in the event
loop of its process. Clients may be code that a model wrote, so everything that a client can make larger or longer is
bounded: the head and the body of a request, the time in which they must arrive, what is read and dropped of a request
that was refused, and the number of connections. Clients without a key cannot use up that number: their connections make
room for new ones."""

import asyncio
import json
import resource
from typing import NamedTuple

HOST = "127.0.0.1"
MAX_HEAD_BYTES = 32 << 10
MAX_BODY_BYTES = 8 << 20
# A request has so long from its first byte to its last, and a connection from its beginning to its first byte.
REQUEST_SECONDS = 30.0
MAX_DROPPED_BYTES = 32 << 20  # of a request that was refused before all of it was read
DROP_SECONDS = 5.0  # in which the rest of such a request is read
RESERVED_DESCRIPTORS = 64  # for what the process opens besides connections
MAX_TURNED_AWAY = 8  # connections beyond the bound whose requests are read to their end; the rest of them close at once
# Headers that decide what a request is and whose it is: a request that repeats one is refused. HTTP lets a client
# repeat others, and their values are then a list.
DECIDING_HEADERS = ("host", "content-length", "transfer-encoding", "authorization", "content-type")
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
           408: "Request Timeout", 411: "Length Required", 413: "Content Too Large", 429: "Too Many Requests",
           431: "Request Header Fields Too Large", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


class HttpError(Exception):
    """A request that is refused. The client gets the message in OpenAI's form."""

    def __init__(self, status, message, code=None, parameter=None):
        super().__init__(message)
        self.status, self.code, self.parameter = status, code, parameter

    def body(self):
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": str(self), "type": kind, "param": self.parameter, "code": self.code}}


class Request(NamedTuple):
    method: str
    path: str  # without its query
    headers: dict  # names in lower case
    body: bytes


class Response(NamedTuple):
    """A JSON body, or a list of JSON events. turn: what is kept of the answer (conversations.Turn)."""

    body: object
    events: list = None
    headers: dict = {}
    turn: object = None


class Server:
    """admit(headers) gives the client that a request is from, or raises HttpError, before its body is read;
    answer(client, request) gives the Response. refused(client) is called for each request that is refused; the client is
    None where no admitted one is at fault. lost(client, response) is called where a client has gone before it had its
    answer; the response is None if there was none yet, and then answer() is cancelled. Call all methods in the thread of
    the loop."""

    def __init__(self, loop, admit, answer, refused, lost):
        self._loop, self._admit, self._answer, self._refused, self._lost = loop, admit, answer, refused, lost
        self._tasks = set()  # one for each connection
        # The connections that count against the bound: those of admitted clients (connection -> client), and the others,
        # the oldest first (connection -> None).
        self._admitted, self._strangers = {}, {}
        self._num_turned_away = 0  # connections beyond the bound that have not closed yet
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._max_connections = max((soft - RESERVED_DESCRIPTORS) // 2, 1)  # the other end is in this process too
        self._server = loop.run_until_complete(loop.create_server(self._protocol, HOST, 0))
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self):
        """Ends all connections."""
        self._server.close()
        tasks = list(self._tasks)  # each leaves the set when it ends
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))

    def forget(self, client):
        """The client is admitted no more. Its connections stay open while there is room for them: an agent may keep
        connections for its next sample."""
        for connection in [one for one, admitted in self._admitted.items() if admitted is client]:
            del self._admitted[connection]
            self._strangers[connection] = None

    def _protocol(self):
        return asyncio.StreamReaderProtocol(_Reader(self._loop), self._serve, self._loop)

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        connection = _Connection(reader, writer)
        try:
            if not self._has_room():
                await self._turn_away(connection)
                return
            self._strangers[connection] = None
            while await self._serve_request(connection):
                connection.is_first = False
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, its connection made room, or the samples of this process have ended
        finally:
            self._tasks.discard(task)
            self._strangers.pop(connection, None)
            self._admitted.pop(connection, None)
            writer.close()

    def _has_room(self):
        """Whether one more connection may be open. If there are as many as may be, the oldest one that no admitted
        client has is closed."""
        if len(self._strangers) + len(self._admitted) < self._max_connections:
            return True
        oldest = next(iter(self._strangers), None)
        if oldest is None:
            return False
        del self._strangers[oldest]
        if not oldest.is_refused:
            self._refused(None)
        oldest.writer.transport.abort()  # wakes the task of the connection, as if the client had gone
        return True

    async def _turn_away(self, connection):
        self._num_turned_away += 1
        try:
            self._refused(None)
            error = HttpError(503, f"more than {self._max_connections} connections are open")
            await self._refuse(connection, error, self._num_turned_away <= MAX_TURNED_AWAY)
        finally:
            self._num_turned_away -= 1

    async def _first_byte(self, connection):
        """The first byte of a request; b"" where none comes. A connection may be idle for as long as its sample is made,
        but one that no client was admitted on yet may not."""
        if not connection.is_first:
            return await connection.reader.read(1)
        try:
            return await asyncio.wait_for(connection.reader.read(1), REQUEST_SECONDS)
        except asyncio.TimeoutError:
            return b""

    async def _serve_request(self, connection):
        """Answers one request. Returns whether the connection stays open."""
        reader, writer = connection.reader, connection.writer
        client = None
        try:
            first = await self._first_byte(connection)
            if not first:
                return False
            try:
                head = _Head(await asyncio.wait_for(_read_head(first, reader), REQUEST_SECONDS))
                client = self._admit(head.headers)
                self._strangers.pop(connection, None)
                self._admitted[connection] = client
                if head.expects_continue:
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                body = await asyncio.wait_for(reader.readexactly(head.num_body_bytes()), REQUEST_SECONDS)
            except asyncio.TimeoutError:
                raise HttpError(408, f"the request took longer than {REQUEST_SECONDS:g} s to arrive") from None
        except HttpError as error:  # what follows on the connection may be the rest of this request
            self._refused(client)
            await self._refuse(connection, error)
            return False
        try:
            response = await self._answered(client, Request(head.method, head.path, head.headers, body), reader)
        except HttpError as error:
            self._refused(client)
            await self._write(writer, error.status, _json(error.body()), "application/json", {}, head.keeps_alive)
            return head.keeps_alive
        if response.events is None:
            content, kind = _json(response.body), "application/json"
        else:
            parts = [b"data: " + _json(event) + b"\n\n" for event in response.events]
            content, kind = b"".join([*parts, b"data: [DONE]\n\n"]), "text/event-stream"
        try:
            if reader.has_ended.done():
                raise ConnectionError("the client has gone")
            await self._write(writer, 200, content, kind, response.headers, head.keeps_alive)
        except ConnectionError:
            self._lost(client, response)
            raise
        return head.keeps_alive

    async def _answered(self, client, request, reader):
        """The answer, for which the client has to stay."""
        task = asyncio.ensure_future(self._answer(client, request))
        try:
            await asyncio.wait({task, reader.has_ended}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            self._lost(client, None)
            raise ConnectionError("the client has gone")
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _refuse(self, connection, error, drops_rest=True):
        """Answers a request that may not have been read to its end. A connection that is closed with something unread
        is reset, and most clients then never see the answer, because they are still sending. So what comes is read and
        dropped until the client closes or a bound is reached."""
        connection.is_refused = True
        await self._write(connection.writer, error.status, _json(error.body()), "application/json", {}, False)
        if not drops_rest:
            return
        try:
            connection.writer.write_eof()
            await asyncio.wait_for(_drop(connection.reader), DROP_SECONDS)
        except (OSError, asyncio.TimeoutError):
            pass  # the client has gone, or has had its time

    async def _write(self, writer, status, content, kind, headers, keeps_alive):
        lines = [f"HTTP/1.1 {status} {REASONS[status]}", f"Content-Type: {kind}", f"Content-Length: {len(content)}",
                 f"Connection: {'keep-alive' if keeps_alive else 'close'}"]  # fmt: skip
        lines += [f"{name}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + content)
        try:
            await asyncio.wait_for(writer.drain(), REQUEST_SECONDS)
        except asyncio.TimeoutError:
            raise ConnectionError("the client does not read its answer") from None


class _Connection:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.is_first = True  # no request came yet
        self.is_refused = False  # its last request was


class _Reader(asyncio.StreamReader):
    """has_ended: a future that is done once the client has closed the connection, or its half of it."""

    def __init__(self, loop):
        super().__init__(limit=MAX_HEAD_BYTES, loop=loop)
        self.has_ended = loop.create_future()

    def feed_eof(self):
        super().feed_eof()
        self._end()

    def set_exception(self, error):
        super().set_exception(error)
        self._end()

    def _end(self):
        if not self.has_ended.done():
            self.has_ended.set_result(None)


async def _read_head(first, reader):
    try:
        return first + await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise HttpError(431, f"the head of the request has more than {MAX_HEAD_BYTES} bytes") from None


async def _drop(reader):
    num_bytes = 0
    while num_bytes < MAX_DROPPED_BYTES and (part := await reader.read(MAX_HEAD_BYTES)):
        num_bytes += len(part)


class _Head:
    def __init__(self, text):
        request_line, *lines = text.decode("latin-1").rstrip("\r\n").split("\r\n")
        parts = request_line.split(" ")
        if len(parts) != 3 or not parts[2].startswith("HTTP/1."):
            raise HttpError(400, "this is no HTTP/1.1 request")
        self.method, target, version = parts
        self.path = target.partition("?")[0]
        self.headers = {}
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or not name or name != name.strip():
                raise HttpError(400, "a header line is no NAME: VALUE")
            name, value = name.lower(), value.strip()
            if name in self.headers and name in DECIDING_HEADERS:
                raise HttpError(400, f"the header {name} is there twice; send it once")
            self.headers[name] = f"{self.headers[name]}, {value}" if name in self.headers else value
        self.keeps_alive = version != "HTTP/1.0" and "close" not in self._listed("connection")
        self.expects_continue = "100-continue" in self._listed("expect")

    def _listed(self, name):
        return [value.strip().lower() for value in self.headers.get(name, "").split(",")]

    def num_body_bytes(self):
        if "transfer-encoding" in self.headers:
            raise HttpError(411, "bodies in chunks are not taken; send Content-Length")
        text = self.headers.get("content-length", "0")
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise HttpError(400, "Content-Length is no number")
        if int(text) > MAX_BODY_BYTES:
            raise HttpError(413, f"the body of the request has {text} bytes; at most {MAX_BODY_BYTES}")
        return int(text)


def _json(value):
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
