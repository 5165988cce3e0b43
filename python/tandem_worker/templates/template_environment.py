"""The environment of jinja2 that chat templates are rendered in: its immutable sandbox, in which a call that would make
something too large is refused before it is made, and what transformers gives templates beside that."""

import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.sandbox
from jinja2.exceptions import SecurityError, TemplateError

from tandem_worker.protocol import MachineFault, with_article
from tandem_worker.templates import made_sizes
from tandem_worker.templates.made_sizes import MAX_CHARACTERS

SAFE_JINJA = (3, 1, 6)  # the release that closed the sandbox's last known escapes (CVE-2024-56326, CVE-2025-27516)


def check_size(name, size):
    if size > MAX_CHARACTERS:
        raise SecurityError(f"{with_article(name)} in it makes something too large")


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
    raise TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return datetime.datetime.now().strftime(format)


def make():
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
