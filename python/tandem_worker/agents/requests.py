"""What an agent asks an endpoint (endpoint.py): bodies of OpenAI's chat completions and completions, checked. A
parameter has an effect, asks for what happens anyway, is one of those that are documented to have none (docs/AGENTS.md),
or is refused."""

import json

from tandem_worker.agents.http import HttpError
from tandem_worker.protocol import is_finite_number

MAX_MESSAGES = 4096
MAX_TOOLS = 256
MAX_STOPS = 16
ROLES = ("system", "developer", "user", "assistant", "tool")
NUMBERS = {"temperature": float, "top_p": float, "top_k": int, "min_p": float}  # as tandem.rollout.generate takes them
# Parameters that change nothing: which model, accounts, caches, and the seed, for draws are named by the run's.
IGNORED = {"model", "seed", "user", "store", "metadata", "service_tier", "parallel_tool_calls", "prompt_cache_key",
           "prompt_cache_retention", "safety_identifier"}  # fmt: skip
# Parameters that have no effect here: each with the values that ask for what happens anyway.
WITHOUT_EFFECT = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "frequency_penalty": (0,), "presence_penalty": (0,),
    "repetition_penalty": (1,), "logit_bias": ({},), "top_logprobs": (0,), "response_format": ({"type": "text"},),
    "modalities": (["text"],), "tool_choice": ("auto", "required"),  # an answer is what was sampled, called or not
}  # fmt: skip


# Arguments of the chat template that the endpoint sets itself, from a request's other parameters: nobody may give them.
OWN_TEMPLATE_ARGUMENTS = ("self", "conversation", "messages", "tools", "tokenize", "add_generation_prompt",
                          "continue_final_message")  # fmt: skip


class Asked:
    """What both kinds of requests have in common. sampling: as tandem.rollout.generate takes it."""

    def __init__(self, body):
        if not isinstance(body, dict):
            raise HttpError(400, "the body is no JSON object")
        self._body = {name: value for name, value in body.items() if value is not None}
        self.sampling = {}
        for name, kind in NUMBERS.items():
            value = self._take(name)
            if value is None:
                continue
            if isinstance(value, bool) or not is_finite_number(value):
                raise refusal(name, f"is {value!r:.40}; give a number")
            if kind is int and value != int(value):
                raise refusal(name, f"is {value}; give a whole number")
            self.sampling[name] = kind(value)
        if self.sampling.get("top_k") == 0:  # both mean all tokens, and a run has -1
            self.sampling["top_k"] = -1
        self.stops = self._stops()
        if ids := self._take("stop_token_ids"):
            self.sampling["stop_token_ids"] = token_ids(ids, "stop_token_ids")
        ignore = self._take("ignore_eos")
        if ignore is not None:
            self.sampling["ignore_eos"] = self._is_true("ignore_eos", ignore)
        self.streams = self._is_true("stream", self._take("stream", False))
        options = self._take("stream_options", {})
        self.streams_usage = isinstance(options, dict) and options.get("include_usage") is True
        self.model = self._take("model", "")
        if not isinstance(self.model, str):
            raise refusal("model", "is no text")

    def _take(self, name, default=None):
        return self._body.pop(name, default)

    def _is_true(self, name, value):
        if not isinstance(value, bool):
            raise refusal(name, f"is {value!r:.40}; give true or false")
        return value

    def _stops(self):
        stops = self._take("stop", [])
        stops = [stops] if isinstance(stops, str) else stops
        if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
            raise refusal("stop", "is no text and no list of texts")
        if len(stops) > MAX_STOPS:
            raise refusal("stop", f"has {len(stops)} texts; at most {MAX_STOPS}")
        if stops:
            self.sampling["stop"] = stops
        return stops

    def _take_max_tokens(self, *names):
        for name in names:
            value = self._take(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise refusal(name, f"is {value!r:.40}; give a number of 1 or more")
            self.sampling["max_new_tokens"] = value

    def _check_rest(self):
        for name, value in self._body.items():
            if name in IGNORED or any(value == known for known in WITHOUT_EFFECT.get(name, ())):
                continue
            if name in WITHOUT_EFFECT:
                raise refusal(name, f"is {json.dumps(value):.60}, which this endpoint cannot do; leave it out")
            raise refusal(name, "is no parameter that this endpoint knows; leave it out")


class ChatAsked(Asked):
    """messages: as chat templates take them. keys: one a message, equal where messages say the same."""

    def __init__(self, body):
        super().__init__(body)
        self._take_max_tokens("max_tokens", "max_completion_tokens")
        self.with_log_probs = self._is_true("logprobs", self._take("logprobs", False))
        messages = self._take("messages")
        if not isinstance(messages, list) or not messages:
            raise refusal("messages", "is no list of messages")
        if len(messages) > MAX_MESSAGES:
            raise refusal("messages", f"has {len(messages)} messages; at most {MAX_MESSAGES}")
        self.messages = [message_of(message, i) for i, message in enumerate(messages)]
        self.keys = tuple(key_of(message) for message in self.messages)
        self.tools = self._tools()
        self.template_arguments = self._take("chat_template_kwargs", {})
        if not isinstance(self.template_arguments, dict):
            raise refusal("chat_template_kwargs", "is no object")
        if own := [name for name in OWN_TEMPLATE_ARGUMENTS if name in self.template_arguments]:
            raise refusal("chat_template_kwargs", f"sets {own[0]}, which the endpoint itself gives the chat template; "
                          "leave it out")
        self._check_rest()

    def _tools(self):
        tools = self._take("tools", [])
        if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
            raise refusal("tools", f"is no list of at most {MAX_TOOLS} tools")
        for tool in tools:
            function = tool.get("function") if isinstance(tool, dict) else None
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise refusal("tools", 'holds something other than {"type": "function", "function": {"name": ...}}')
        if self._body.get("tool_choice") == "none":
            del self._body["tool_choice"]
            return []
        return tools


class TextAsked(Asked):
    """prompt: a text, or token ids."""

    def __init__(self, body):
        super().__init__(body)
        self._take_max_tokens("max_tokens")
        log_probs = self._take("logprobs")
        if log_probs not in (None, 0) or isinstance(log_probs, bool):
            raise refusal("logprobs", f"is {log_probs!r:.40}; 0 gives those of the tokens themselves, and there are no "
                          "others")
        self.with_log_probs = log_probs is not None
        prompt = self._take("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        self.prompt = prompt if isinstance(prompt, str) and prompt else token_ids(prompt, "prompt")
        self._check_rest()


def refusal(name, what):
    return HttpError(400, f"{name} {what}", parameter=name)


def token_ids(value, name):
    good = isinstance(value, list) and value
    if not good or not all(isinstance(id, int) and not isinstance(id, bool) and 0 <= id < 1 << 31 for id in value):
        raise refusal(name, "is no text and no list of token ids" if name == "prompt" else "is no list of token ids")
    return value


def message_of(message, index):
    """A message as chat templates take it: content is text, arguments of tool calls are objects."""
    where = f"messages[{index}]"
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        raise HttpError(400, f"{where} has no role of {', '.join(ROLES)}", parameter="messages")
    result = {"role": "system" if role == "developer" else role, "content": content_of(message.get("content"), where)}
    for name in ("name", "tool_call_id", "reasoning_content"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if calls := message.get("tool_calls"):
        result["tool_calls"] = [call_of(call, where) for call in (calls if isinstance(calls, list) else [None])]
    return result


def content_of(content, where):
    if content is None:
        return ""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) and "text" in part else None for part in content]
        content = "".join(parts) if all(isinstance(part, str) for part in parts) else None
    if not isinstance(content, str):
        raise HttpError(400, f"{where}.content is no text; this endpoint takes text alone", parameter="messages")
    return content


def call_of(call, where):
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise HttpError(400, f"{where}.tool_calls holds no function with a name", parameter="messages")
    arguments = function.get("arguments", "")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
            # A model may write half a character (a lone surrogate), which no template's text can have: it becomes "?".
            arguments = json.loads(json.dumps(arguments, ensure_ascii=False).encode("utf-8", "replace"))
        except (ValueError, RecursionError):
            pass  # the template gets it as it is
    called = {"name": function["name"], "arguments": arguments}
    return {"id": str(call.get("id", "")), "type": "function", "function": called}


def key_of(message):
    calls = [(call["function"]["name"], json.dumps(call["function"]["arguments"], sort_keys=True))
             for call in message.get("tool_calls", ())]  # fmt: skip
    return (message["role"], message["content"], tuple(calls))
