"""A model's chat template, rendered as transformers renders it, in jinja2's immutable sandbox and within limits.

A template comes with a model, from anywhere. It reaches no Python object beyond what the sandbox allows, and reading
or rendering it ends after MAX_SECONDS and MAX_CHARACTERS. What a signal cannot interrupt, a product or a power of huge
numbers, is refused before it is computed; the process's memory limit bounds the rest.
"""

import contextlib
import datetime
import importlib.metadata
import json
import os
import signal

import jinja2
import jinja2.ext
import jinja2.sandbox

from tandem_worker.protocol import MachineFault, UserFault, one_line

SAFE_JINJA = (3, 1, 6)  # the release that closed the sandbox's last known escapes (CVE-2024-56326, CVE-2025-27516)
MAX_SECONDS = 5.0  # for one conversation
MAX_CHARACTERS = 16 << 20  # of one rendered conversation
MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_POWER_BITS = 4096
# transformers' mark, behind what a model is to continue. Some templates look for it.
END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class OverLimit(BaseException):
    """No Exception, so that nothing on the way up takes it for an ordinary failure."""


@contextlib.contextmanager
def limits(subject):
    """UserFault, beginning with `subject`, for a block that takes too much time, memory or nesting."""

    def ring(*_):
        raise OverLimit(f"takes longer than {MAX_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except OverLimit as error:
        raise UserFault(f"{subject} {error}") from None
    except MemoryError:
        raise UserFault(f"{subject} takes more memory than a text worker has") from None
    except RecursionError:
        raise UserFault(f"{subject} nests or calls itself too deeply") from None
    finally:
        signal.signal(signal.SIGALRM, before)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context, operator, left, right):
        size = 0
        if isinstance(left, int) and isinstance(right, int):
            bits = abs(right) * left.bit_length() if operator == "**" else left.bit_length() + right.bit_length()
            size = 0 if bits <= MAX_POWER_BITS else MAX_CHARACTERS + 1
        elif operator == "*":
            for text, times in ((left, right), (right, left)):
                if isinstance(times, int) and hasattr(text, "__len__"):
                    size = len(text) * times
        if size > MAX_CHARACTERS:
            raise jinja2.exceptions.SecurityError(f"a {operator} in it makes something too large")
        return super().call_binop(context, operator, left, right)


class GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks the assistant's words for other programs; the text inside is rendered as it stands."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


def make_environment():
    version = importlib.metadata.version("jinja2")
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < SAFE_JINJA:
        floor = ".".join(map(str, SAFE_JINJA))
        raise MachineFault(f"jinja2 {version} has known sandbox escapes; install {floor} or newer")
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def read_templates(directory, config):
    """The file, and name -> source. chat_template.jinja wins over tokenizer_config.json, which holds one template or a
    list of named ones."""
    path = os.path.join(directory, "chat_template.jinja")
    try:
        with open(path, encoding="utf-8") as file:
            return path, {"default": file.read()}
    except FileNotFoundError:
        pass
    except OSError as error:
        raise UserFault(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserFault(f"{path}: {one_line(error)}") from None
    path = os.path.join(directory, "tokenizer_config.json")
    value = config.get("chat_template")
    if value is None:
        return path, {}
    if isinstance(value, str):
        return path, {"default": value}
    try:
        return path, {str(entry["name"]): str(entry["template"]) for entry in value}
    except (KeyError, TypeError):
        raise UserFault(f"{path}: chat_template is neither text nor a list of {{name, template}}") from None


def with_end_mark(messages):
    """The messages, the last with a mark behind its text."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise jinja2.exceptions.TemplateError("the last message has no text that could be continued")
    return [*messages[:-1], {**messages[-1], "content": content + END_MARK}]


def up_to_end_mark(rendered, content):
    """The text up to where the last message's own ends. A template that trims messages has taken the mark's space, and
    would have taken the space before the mark."""
    mark = rendered.rfind(END_MARK.strip())
    if mark < 0 or content.strip() not in rendered:
        raise jinja2.exceptions.TemplateError("it leaves out text of the last message, which is to be continued")
    text = rendered[:mark]
    return text if rendered.startswith(END_MARK, mark) else text.rstrip()


class ChatTemplate:
    """The templates of one model directory, compiled. Rendering tells the user what a template refuses."""

    def __init__(self, directory, config):
        path, sources = read_templates(directory, config)
        environment = make_environment()
        self._directory = directory
        self.path = path
        self._compiled = {}
        for name, source in sources.items():
            subject = f"{path}: chat template {name!r}"
            if len(source) > MAX_TEMPLATE_CHARACTERS:
                raise UserFault(f"{subject} is longer than {MAX_TEMPLATE_CHARACTERS} characters")
            with limits(subject):
                try:
                    self._compiled[name] = environment.from_string(source)
                except (RecursionError, MemoryError):
                    raise
                except Exception as error:  # what a template may not be, or a constant in it that cannot be computed
                    raise UserFault(f"{subject}: {one_line(error)}") from None
        self._special_tokens = {}
        for name in SPECIAL_TOKENS:
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                self._special_tokens[name] = token

    @property
    def exists(self):
        return bool(self._compiled)

    def render(self, messages, kwargs, index):
        if not self._compiled:
            raise UserFault(
                f"{self._directory}: has no chat template; give plain text prompts, or put a chat_template.jinja there"
            )
        name = "tool_use" if kwargs.get("tools") and "tool_use" in self._compiled else "default"
        if name not in self._compiled:
            raise UserFault(f"{self._directory}: no chat template is named 'default', only {sorted(self._compiled)}")
        variables = {"tools": None, "documents": None, "add_generation_prompt": False, **self._special_tokens, **kwargs}
        is_continued = variables.pop("continue_final_message", False)  # transformers shows it to no template
        if is_continued and variables["add_generation_prompt"]:
            raise UserFault("add_generation_prompt opens an answer, continue_final_message goes on with one; set one of "
                            "them to false")
        with limits(f"{self.path}: chat template for conversation {index}"):
            try:
                variables["messages"] = with_end_mark(messages) if is_continued else messages
                rendered = self._join(self._compiled[name].generate(variables))
                return up_to_end_mark(rendered, messages[-1]["content"]) if is_continued else rendered
            except (MemoryError, RecursionError):
                raise
            except Exception as error:  # a template can raise whatever its expressions raise
                kind = "" if type(error) is jinja2.exceptions.TemplateError else f"{type(error).__name__}: "
                raise UserFault(
                    f"{self.path}: chat template refused conversation {index}: {kind}{one_line(error)}"
                ) from None

    def _join(self, parts):
        texts, num_characters = [], 0
        for part in parts:
            num_characters += len(part)
            if num_characters > MAX_CHARACTERS:
                raise OverLimit(f"writes more than {MAX_CHARACTERS} characters")
            texts.append(part)
        return "".join(texts)
