"""A model's chat template, rendered as transformers renders it, in jinja2's immutable sandbox and within limits.

A template comes with a model, from anywhere. It reaches no Python object beyond what the sandbox allows, and reading
or rendering it ends after MAX_SECONDS and MAX_CHARACTERS. What makes something large in one call, which no signal
interrupts, is refused before it is computed (made_sizes.py). What grows step by step ends where the process has taken
MAX_MEMORY_BYTES more than before.
"""

import contextlib
import datetime
import json
import functools
import os
import resource
import signal

import jinja2
import jinja2.ext
import jinja2.sandbox

from tandem_worker import made_sizes
from tandem_worker.protocol import MachineFault, UserFault, one_line, with_article

SAFE_JINJA = (3, 1, 6)  # the release that closed the sandbox's last known escapes (CVE-2024-56326, CVE-2025-27516)
MAX_SECONDS = 5.0  # for one conversation
MAX_CHARACTERS = 16 << 20  # of one rendered conversation
MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_MEMORY_BYTES = 512 << 20  # of address space, while one conversation is rendered
# transformers' mark, behind what a model is to continue. Some templates look for it.
END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class OverLimit(BaseException):
    """No Exception, so that nothing on the way up takes it for an ordinary failure."""


@contextlib.contextmanager
def limits(subject, memory_bytes=None):
    """UserFault, beginning with `subject`, for a block that takes too much time, memory or nesting. memory_bytes: what
    the process may take meanwhile beyond what it has; None in a process that is not ours alone."""

    def ring(*_):
        raise OverLimit(f"takes longer than {MAX_SECONDS:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, MAX_SECONDS)
        try:
            with memory_limit(memory_bytes):
                yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except OverLimit as error:
        raise UserFault(f"{subject} {error}") from None
    except MemoryError:
        raise UserFault(f"{subject} takes more memory than a text worker has for it") from None
    except RecursionError:
        raise UserFault(f"{subject} nests or calls itself too deeply") from None
    finally:
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def memory_limit(num_bytes):
    if num_bytes is None:
        yield
        return
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bounds = [taken + num_bytes, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY)]
    resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def check_size(name, size):
    if size > MAX_CHARACTERS:
        raise jinja2.exceptions.SecurityError(f"{with_article(name)} in it makes something too large")


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def call_binop(self, context, operator, left, right):
        check_size(operator, made_sizes.of_operator(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def call(self, context, function, *arguments, **keywords):
        name = getattr(function, "__name__", "")
        arguments = made_sizes.countable(name, arguments)
        check_size(name, made_sizes.of_method(name, function, arguments, keywords))
        return super().call(context, function, *arguments, **keywords)

    def wrap_str_format(self, value):
        write = super().wrap_str_format(value)
        if write is None:
            return None

        def checked(*arguments, **keywords):
            check_size("format", made_sizes.of_format(value.__self__, arguments, keywords))
            return write(*arguments, **keywords)

        return functools.update_wrapper(checked, value)


def checked_filter(name, filter):
    """The filter, which is asked how much it would make before it makes it."""
    num_hidden = 1 if getattr(filter, "jinja_pass_arg", None) is not None else 0  # jinja2's own first argument

    @functools.wraps(filter)
    def checked(*arguments, **keywords):
        hidden, given = arguments[:num_hidden], made_sizes.countable(name, arguments[num_hidden:])
        check_size(name, made_sizes.of_filter(name, given, keywords))
        return filter(*hidden, *given, **keywords)

    return checked


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
    version = jinja2.__version__
    if tuple(int(part) for part in version.split(".")[:3] if part.isdigit()) < SAFE_JINJA:
        floor = ".".join(map(str, SAFE_JINJA))
        raise MachineFault(f"jinja2 {version} has known sandbox escapes; install {floor} or newer")
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, GenerationTag]
    )
    environment.filters["tojson"] = tojson
    for name in made_sizes.FILTERS:
        environment.filters[name] = checked_filter(name, environment.filters[name])
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
    """The templates of one model directory, compiled. Rendering tells the user what a template refuses. memory_bytes: as
    limits() has it."""

    def __init__(self, directory, config, memory_bytes=None):
        self._memory_bytes = memory_bytes
        path, sources = read_templates(directory, config)
        environment = make_environment()
        self._directory = directory
        self.path = path
        self._compiled = {}
        for name, source in sources.items():
            subject = f"{path}: chat template {name!r}"
            if len(source) > MAX_TEMPLATE_CHARACTERS:
                raise UserFault(f"{subject} is longer than {MAX_TEMPLATE_CHARACTERS} characters")
            with limits(subject, memory_bytes):
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
        with limits(f"{self.path}: chat template for conversation {index}", self._memory_bytes):
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
