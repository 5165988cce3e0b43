"""What a sandbox refuses, wrapped as libraries do; and errors that are no refusal."""

import socket
import urllib.request


def connect():
    socket.create_connection(("127.0.0.1", 9), timeout=1)


def cause():
    try:
        connect()
    except OSError as error:
        raise RuntimeError("the judge cannot be reached") from error


def context():
    try:
        connect()
    except OSError:
        raise RuntimeError("the judge cannot be reached")


def args():
    try:
        connect()
    except OSError as error:
        wrapped = RuntimeError("the judge cannot be reached", error)
    raise wrapped


def reason():
    wrapped = RuntimeError("all tries have failed")
    try:
        connect()
    except OSError as error:
        wrapped.reason = error
    raise wrapped


def group():
    class Group(Exception):
        exceptions = ()

    wrapped = Group("several")
    try:
        connect()
    except OSError as error:
        wrapped.exceptions = (ValueError("other"), error)
    raise wrapped


def value():
    raise ValueError("no refusal")


def loop():
    error = ValueError("a loop of causes")
    error.reason = error
    raise error from error


WAYS = {
    "plain": connect,
    "url": lambda: urllib.request.urlopen("http://127.0.0.1:9/"),
    "cause": cause,
    "context": context,
    "args": args,
    "reason": reason,
    "group": group,
    "resolve": lambda: socket.getaddrinfo("example.com", 80),
    "value": value,
    "loop": loop,
    "missing_file": lambda: open("/no/such/file"),
}


def score(data_source, solution_str, ground_truth):
    return WAYS[solution_str]()
