"""A tokenizer worker that loads and then answers whatever the text to encode asks for. A directory that is JSON is what
it answers to "load"."""

import json
import os
import socket
import struct
import sys

channel = socket.socket(fileno=3)


def read():
    size = struct.unpack("<I", channel.recv(4, socket.MSG_WAITALL))[0]
    return json.loads(channel.recv(size, socket.MSG_WAITALL))


def send(text):
    channel.sendall(struct.pack("<I", len(text)) + text)


while True:
    request = read()
    if request["call"] == "enter_sandbox":
        send(json.dumps({"id": request["id"], "result": {"missing": [], "rooms": False}}).encode())
        continue
    if request["call"] == "load":
        result = {"vocab_size": 1, "has_chat_template": False, "byte_level": True, "special_ids": []}
        directory = request["arguments"]["directory"]
        result = json.loads(directory) if directory.startswith("{") else result
        send(json.dumps({"id": request["id"], "result": result}).encode())
        continue
    wish = request["arguments"]["texts"][0]
    if wish == "no json":
        send(b"{]")
    elif wish == "other id":
        send(json.dumps({"id": request["id"] + 1, "result": [[0]]}).encode())
    elif wish == "no result":
        send(json.dumps({"id": request["id"]}).encode())
    elif wish == "wrong type":
        send(json.dumps({"id": request["id"], "result": ["x"]}).encode())
    elif wish == "wrong count":
        send(json.dumps({"id": request["id"], "result": [[0], [0]]}).encode())
    elif wish == "too long":
        channel.sendall(b"\xff\xff\xff\xff")
    elif wish == "cut off":
        channel.sendall(struct.pack("<I", 100) + b"half")
        sys.stderr.write("first line\nthe last words\n")
        os._exit(7)
    elif wish == "trailing":
        send(b"{}")
        send(b"{}")
    else:
        send(json.dumps({"id": request["id"], "result": [[0]]}).encode())
