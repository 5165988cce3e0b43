"""A reward that another program computes: --rm-type remote_rm asks --rm-url, as slime's of that name.

Each sample is one HTTP POST of {"prompt", "response", "label"} as JSON; the answer is a number, or an object with one
under --reward-key. Requests are under way together, each in a thread of its own, over connections that are kept. What
the service may do to us is bounded: no redirect is followed, no proxy of the environment is used, an answer is read up
to MAX_REPLY_BYTES and never unpacked, and the deadline of the call ends all of it, attempts and pauses together.

A request is made again, after a pause, where the service could not answer: no connection, a connection that broke, HTTP
429 or 5xx. What it refused (any other status than 200) and what it answered wrongly is not asked again.
"""

import asyncio
import json
import random
import socket
import threading

import urllib3
import urllib3.exceptions
import urllib3.util

from tandem_worker.outcomes import Failed, WrongType, describe
from tandem_worker.protocol import MachineFault, UserFault, one_line
from tandem_worker.user_functions.dialects import Call

MAX_REPLY_BYTES = 1 << 20
MAX_SHOWN = 60  # characters of a reply, in messages
CONNECT_S = 5.0  # that one attempt to connect may take
FIRST_PAUSE_S, MAX_PAUSE_S = 0.25, 10.0
THREAD_STACK_BYTES = 1 << 20


class ServiceFailed(Failed):
    """No answer came, in any attempt, for a reason that lies with the service or the way to it."""

    kind = "service"


class Refused(Failed):
    """The service answered that it will not grade this sample."""

    kind = "http"


class _Again(Exception):
    """An attempt that is worth another one; its text says what happened."""


def shown(url):
    """The address without its query, which may hold a secret."""
    port = f":{url.port}" if url.port else ""
    return f"{url.scheme}://{url.host}{port}{url.path or '/'}"


def what_broke(error):
    """`connection refused`, in the system's own words where it has some."""
    seen = error
    while seen is not None:
        if isinstance(seen, OSError) and seen.strerror and not isinstance(seen, urllib3.exceptions.HTTPError):
            return seen.strerror[0].lower() + seen.strerror[1:]
        seen = seen.__cause__ or seen.__context__
    if isinstance(error, (urllib3.exceptions.TimeoutError, TimeoutError)):
        return "no answer in time"
    if isinstance(error, urllib3.exceptions.ProtocolError):
        return "the connection was closed before the answer was there"
    return type(error).__name__


class RemoteRule:
    """The same face as dialects.Function has to the grader."""

    dialect = "served"
    concurrent = True
    takes_group = False

    def __init__(self, url, token, max_retries, deadline_s, max_connections):
        """token: sent as a bearer token, where it is not empty."""
        try:
            self._url = urllib3.util.parse_url(url)
        except urllib3.exceptions.LocationParseError:  # whose text quotes all of it
            raise UserFault("--rm-url: the address cannot be read; write http://HOST:PORT/PATH") from None
        self._address = shown(self._url)
        self._headers = {"Content-Type": "application/json", "User-Agent": "tandem"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._max_retries = max_retries
        self._deadline_s = deadline_s
        self._max_connections = max_connections
        self._connections = None  # of this process: a fork opens its own
        self._loop = None
        threading.stack_size(THREAD_STACK_BYTES)  # many threads, little address space

    @property
    def loop(self):
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop

    def describe(self, error):
        return describe(error)

    def try_connection(self):
        """Finds out before weights are read that nobody listens. No request is made."""
        port = self._url.port or (443 if self._url.scheme == "https" else 80)
        try:
            socket.create_connection((self._url.hostname, port), timeout=CONNECT_S).close()
        except OSError as error:
            raise MachineFault(
                f"--rm-url: cannot connect to {self._address}: {what_broke(error)}; start the reward service first"
            ) from None

    def call(self, requests):
        (request,) = requests
        body = json.dumps(
            {
                "prompt": request["prompt_text"] or request["prompt"],
                "response": request["response"],
                "label": request["label"],
            }
        ).encode()
        return Call(lambda: self._answer(body), 1, is_list=False, what_else=lambda i: {})

    async def _answer(self, body):
        for attempt in range(self._max_retries + 1):
            try:
                return await self._in_thread(body)
            except _Again as failure:
                happened = str(failure)
            if attempt < self._max_retries:
                pause_s = min(FIRST_PAUSE_S * 2**attempt, MAX_PAUSE_S)
                await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))  # so that not all ask again at once
        attempts = f"{self._max_retries + 1} attempts" if self._max_retries else "one attempt"
        raise ServiceFailed(f"{self._address} gave no answer in {attempts}; the last: {happened}")

    def _in_thread(self, body):
        """An attempt, as a future. The thread is nobody's to wait for: a call that is given up leaves it behind, and the
        program replaces a process in which that has happened."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def settle(result, error):
            if not future.done():
                future.set_result(result) if error is None else future.set_exception(error)

        def work():
            try:
                outcome = self._attempt(body), None
            except Exception as error:
                outcome = None, error
            try:
                loop.call_soon_threadsafe(settle, *outcome)
            except RuntimeError:  # the loop is closed: nobody waits any more
                pass

        threading.Thread(target=work, daemon=True).start()
        return future

    def _attempt(self, body):
        if self._connections is None:
            self._connections = self._make_connections()
        try:
            reply = self._connections.urlopen(
                "POST", self._url.request_uri, body=body, preload_content=False, decode_content=False, redirect=False
            )
            text = reply.read(MAX_REPLY_BYTES + 1)
            is_cut = len(text) <= MAX_REPLY_BYTES and reply.length_remaining not in (0, None)
            if is_cut or len(text) > MAX_REPLY_BYTES:
                reply.close()  # with its connection: the rest is not read
            reply.release_conn()
        except urllib3.exceptions.HTTPError as error:
            raise _Again(what_broke(error)) from None
        if is_cut:  # of "12" a "1" may have come
            raise _Again("the connection was closed before the answer was there")
        return self._value(reply.status, text)

    def _make_connections(self):
        return urllib3.connectionpool.connection_from_url(
            self._url.url,
            maxsize=self._max_connections,
            headers=self._headers,
            retries=False,
            timeout=urllib3.Timeout(connect=min(CONNECT_S, self._deadline_s), read=self._deadline_s),
        )

    def _value(self, status, text):
        beginning = one_line(text[: 4 * MAX_SHOWN].decode("utf-8", "replace"), MAX_SHOWN)  # shown by its repr()
        if status == 429 or status >= 500:
            raise _Again(f"HTTP status {status}")
        if status != 200:
            hint = "; redirects are not followed: give --rm-url the address they lead to" if 300 <= status < 400 else ""
            raise Refused(f"{self._address} answered {beginning!r} with HTTP status {status}{hint}")
        if len(text) > MAX_REPLY_BYTES:
            raise WrongType(f"{self._address} answered with more than {MAX_REPLY_BYTES} bytes, where a number belongs")
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise WrongType(f"{self._address} answered {beginning!r}, which is not JSON; it must be a number") from None


