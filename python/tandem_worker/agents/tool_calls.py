"""Calls of tools in what a model wrote, in the forms that the chat templates of model families teach:

    <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>    Qwen, Hermes, SmolLM
    [TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]             Mistral
    {"name": "add", "parameters": {"a": 1}}                          Llama, as the whole answer

What is written otherwise is text, which an agent gets as the answer's content."""

import json
import re
from typing import NamedTuple

TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
MISTRAL = "[TOOL_CALLS]"
PYTHON_TAG = "<|python_tag|>"
MAX_CALLS = 128  # in one answer


class ToolCall(NamedTuple):
    name: str
    arguments: str  # JSON text of an object


def find(text):
    """(content, calls): the text before the first call, and the calls. All of the text and none, if one of the calls is
    malformed: an agent cannot act on half of what was asked."""
    if "<tool_call>" in text:
        before = text[: text.index("<tool_call>")]
        bodies = [match.group(1) for match in TAGGED.finditer(text)]
        calls = [_call_of(_parsed(body)) for body in bodies]
    elif MISTRAL in text:
        before, _, body = text.partition(MISTRAL)
        listed = _parsed(body)
        calls = [_call_of(one) for one in listed] if isinstance(listed, list) else [None]
    else:
        before, body = "", text.strip()
        body = body[len(PYTHON_TAG) :] if body.startswith(PYTHON_TAG) else body
        calls = [_call_of(_parsed(body))] if body.startswith("{") and body.endswith("}") else []
    if not calls or None in calls or len(calls) > MAX_CALLS:
        return text, []
    return before.strip(), calls


def _parsed(text):
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _call_of(value):
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    if any("\ud800" <= character <= "\udfff" for character in value["name"]):  # half a character is no text
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        arguments = _parsed(arguments)
    if not isinstance(arguments, dict):
        return None
    try:
        # In ASCII, which also has a form for half a character (a lone surrogate) in what the model wrote.
        return ToolCall(value["name"], json.dumps(arguments, allow_nan=False))
    except ValueError:
        return None
