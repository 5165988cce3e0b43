"""A model's chat template, rendered as transformers renders it, in jinja2's immutable sandbox and within limits.

A template comes with a model, from anywhere. It reaches no Python object beyond what the sandbox allows, and reading
or rendering it ends after MAX_SECONDS and MAX_CHARACTERS. What makes something large in one call, which no signal
interrupts, is refused before it is computed (made_sizes.py). What grows step by step ends where the process has taken
MAX_MEMORY_BYTES more than before.
"""

import contextlib
import os
import resource
import signal

from tandem_worker.protocol import UserFault, one_line
from tandem_worker.templates.made_sizes import MAX_CHARACTERS

MAX_SECONDS = 5.0  # for one conversation
MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_TEMPLATES = 64  # files beside the default one; published models have two or three
ADDITIONAL_TEMPLATES = "additional_chat_templates"  # transformers' folder
SUFFIX = ".jinja"
MAX_MEMORY_BYTES = 512 << 20  # of address space, while one conversation is rendered
# transformers' mark, behind what a model is to continue. Some templates look for it.
END_MARK = "CONTINUE_FINAL_MESSAGE_TAG "
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class Refused(Exception):
    """A conversation that cannot be continued as it is asked."""


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


def read_template(path):
    """The text of a template's file, of which no more is read than what shows that it is too long; None where there is no
    such file."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(MAX_TEMPLATE_CHARACTERS + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserFault(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserFault(f"{path}: {one_line(error)}") from None


def read_additional(directory):
    """Name -> (path, source) of the regular files NAME.jinja in the folder where transformers saves the templates beside
    the default one."""
    folder = os.path.join(directory, ADDITIONAL_TEMPLATES)
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise UserFault(f"{folder}: {error.strerror}") from None
    paths = [path for path in (os.path.join(folder, name) for name in names) if os.path.isfile(path)]
    if len(paths) > MAX_TEMPLATES:
        raise UserFault(f"{folder}: holds {len(paths)} chat templates, and {MAX_TEMPLATES} are the most that are read; "
                        "remove some")
    sources = [(path, read_template(path)) for path in paths]
    return {os.path.basename(path).removesuffix(SUFFIX): (path, source) for path, source in sources if source is not None}


def read_templates(directory, config):
    """Name -> (file, source). As in transformers, a file additional_chat_templates/default.jinja wins over
    chat_template.jinja, and any such file over tokenizer_config.json, which holds one template or a list of named ones."""
    path = os.path.join(directory, "chat_template.jinja")
    source = read_template(path)
    templates = {} if source is None else {"default": (path, source)}
    templates.update(read_additional(directory))
    if templates:
        return templates
    path = os.path.join(directory, "tokenizer_config.json")
    value = config.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": (path, value)}
    try:
        return {str(entry["name"]): (path, str(entry["template"])) for entry in value}
    except (KeyError, TypeError):
        raise UserFault(f"{path}: chat_template is neither text nor a list of {{name, template}}") from None


def with_end_mark(messages):
    """The messages, the last with a mark behind its text."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise Refused("the last message has no text that could be continued")
    return [*messages[:-1], {**messages[-1], "content": content + END_MARK}]


def up_to_end_mark(rendered, content):
    """The text up to where the last message's own ends. A template that trims messages has taken the mark's space, and
    would have taken the space before the mark."""
    mark = rendered.rfind(END_MARK.strip())
    if mark < 0 or content.strip() not in rendered:
        raise Refused("it leaves out text of the last message, which is to be continued")
    text = rendered[:mark]
    return text if rendered.startswith(END_MARK, mark) else text.rstrip()


class ChatTemplate:
    """The templates of one model directory, each compiled when the first conversation comes for it. Rendering tells the
    user what a template refuses. memory_bytes: as limits() has it."""

    def __init__(self, directory, config, memory_bytes=None):
        self._memory_bytes = memory_bytes
        self._directory = directory
        self._templates = read_templates(directory, config)
        self._environment = None
        self._compiled = {}
        self._special_tokens = {}
        for name in SPECIAL_TOKENS:
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            if isinstance(token, str):
                self._special_tokens[name] = token

    @property
    def exists(self):
        return bool(self._templates)

    @property
    def path(self):
        """The file of the default template."""
        default = os.path.join(self._directory, "tokenizer_config.json"), ""
        return self._templates.get("default", next(iter(self._templates.values()), default))[0]

    def _make_environment(self):
        # It imports jinja2, which takes long and which many runs do without.
        from tandem_worker.templates import template_environment

        self._explained = (Refused, template_environment.TemplateError)  # by their text alone
        self._environment = template_environment.make()

    def _compile(self, name):
        if self._environment is None:
            self._make_environment()
        path, source = self._templates[name]
        subject = f"{path}: chat template {name!r}"
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise UserFault(f"{subject} is longer than {MAX_TEMPLATE_CHARACTERS} characters")
        with limits(subject, self._memory_bytes):
            try:
                self._compiled[name] = self._environment.from_string(source)
            except (RecursionError, MemoryError):
                raise
            except Exception as error:  # what a template may not be, or a constant in it that cannot be computed
                raise UserFault(f"{subject}: {one_line(error)}") from None

    def prepare(self, kwargs):
        """Compiles the template that conversations with these arguments are rendered by, and returns its name. What it
        refuses, no conversation could mend."""
        if not self._templates:
            raise UserFault(
                f"{self._directory}: has no chat template; give plain text prompts, or put a chat_template.jinja there"
            )
        name = "tool_use" if kwargs.get("tools") and "tool_use" in self._templates else "default"
        if name not in self._templates:
            raise UserFault(f"{self._directory}: no chat template is named 'default', only {sorted(self._templates)}")
        if name not in self._compiled:
            self._compile(name)
        if kwargs.get("continue_final_message", False) and kwargs.get("add_generation_prompt", False):
            raise UserFault("add_generation_prompt opens an answer, continue_final_message continues one; set one of "
                            "them to false")
        return name

    def render(self, messages, kwargs, index):
        name = self.prepare(kwargs)
        variables = {"tools": None, "documents": None, "add_generation_prompt": False, **self._special_tokens, **kwargs}
        is_continued = variables.pop("continue_final_message", False)  # transformers shows it to no template
        subject = self._templates[name][0]
        with limits(f"{subject}: chat template for conversation {index}", self._memory_bytes):
            try:
                variables["messages"] = with_end_mark(messages) if is_continued else messages
                rendered = self._join(self._compiled[name].generate(variables))
                return up_to_end_mark(rendered, messages[-1]["content"]) if is_continued else rendered
            except (MemoryError, RecursionError):
                raise
            except Exception as error:  # a template can raise whatever its expressions raise
                kind = "" if type(error) in self._explained else f"{type(error).__name__}: "
                raise UserFault(
                    f"{subject}: chat template refused conversation {index}: {kind}{one_line(error)}"
                ) from None

    def _join(self, parts):
        texts, num_characters = [], 0
        for part in parts:
            num_characters += len(part)
            if num_characters > MAX_CHARACTERS:
                raise OverLimit(f"writes more than {MAX_CHARACTERS} characters")
            texts.append(part)
        return "".join(texts)
