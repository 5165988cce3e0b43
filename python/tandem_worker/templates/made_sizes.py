"""How large a thing an operation of a chat template would make, asked before it makes it: operators, methods of texts,
format strings and filters whose result is longer than what goes in by more than a sum. Sizes are in characters or
elements, from above; 0 for what makes nothing large."""

import re
import string
import types

MAX_CHARACTERS = 16 << 20  # of one rendered conversation, and of what one call in its template makes
MAX_POWER_BITS = 4096
TOO_LARGE = 1 << 62
# %-10.3f, %(name)*d: width and precision, as digits or as "*" for a number among the arguments.
PERCENT_FIELD = re.compile(r"%(?:\([^)]*\))?[#0\- +]*(\*|\d+)?(?:\.(\*|\d+))?")


def length(value):
    return len(value) if hasattr(value, "__len__") else 0


def is_text(value):
    return isinstance(value, (str, bytes, bytearray))


def is_whole(value):
    return isinstance(value, int)


def countable(name, arguments):
    """The arguments of that method or filter. What it joins may come one by one, and could then be counted only once."""
    if name != "join":
        return arguments
    return [list(value) if isinstance(value, types.GeneratorType) else value for value in arguments]


def of_operator(operator, left, right):
    if is_whole(left) and is_whole(right):
        if operator not in ("*", "**"):
            return 0
        bits = abs(right) * left.bit_length() if operator == "**" else left.bit_length() + right.bit_length()
        return 0 if bits <= MAX_POWER_BITS else TOO_LARGE
    if operator == "%":
        return of_percent(left, right) if is_text(left) else 0
    if operator == "+":
        return length(left) + length(right)
    if operator == "*":
        return max([length(a) * b for a, b in ((left, right), (right, left)) if is_whole(b)], default=0)
    return 0


def of_percent(text, arguments):
    text = text if isinstance(text, str) else text.decode("latin-1")
    values = arguments if isinstance(arguments, tuple) else (arguments,)
    if isinstance(arguments, dict):
        values = tuple(arguments.values())
    widths = [width for field in PERCENT_FIELD.findall(text) for width in field if width]
    whole = max([abs(value) for value in values if is_whole(value)], default=0)
    return fields_size(text, text.count("%"), [whole if width == "*" else digits(width) for width in widths], values)


def of_format(text, arguments, keywords):
    """Returns the size of what text.format(...) makes. A width that is a field of its own may be any number."""
    values = [*arguments, *keywords.values()]
    if len(values) == 1 and isinstance(values[0], dict):
        values = list(values[0].values())  # format_map
    fields = [spec for _, name, spec, _ in string.Formatter().parse(str(text)) if name is not None]
    widths = [TOO_LARGE if "{" in spec else digits(number) for spec in fields for number in re.findall(r"\d+|{", spec)]
    return fields_size(text, len(fields), widths, values)


def fields_size(text, num_fields, widths, values):
    return len(text) + sum(widths) + num_fields * max([length(value) for value in values], default=0)


def digits(text):
    return int(text) if len(text) < 19 else TOO_LARGE


def of_join(separator, values):
    if not hasattr(values, "__len__"):
        return 0
    return sum(length(value) for value in values) + length(separator) * len(values)


def of_replace(text, old, new):
    return length(text) + count_of(text, old) * length(new)


def count_of(text, part):
    """How often `part` is in the text. An empty one is before and after every character."""
    return text.count(part) if type(text) is type(part) or isinstance(part, type(text)) else length(text) + 1


def first_of(arguments, keywords, name, default):
    value = arguments[0] if arguments else keywords.get(name, default)
    return value if is_whole(value) else 0


METHODS = {
    "center": lambda text, arguments, keywords: first_of(arguments, keywords, "width", 0),
    "ljust": lambda text, arguments, keywords: first_of(arguments, keywords, "width", 0),
    "rjust": lambda text, arguments, keywords: first_of(arguments, keywords, "width", 0),
    "zfill": lambda text, arguments, keywords: first_of(arguments, keywords, "width", 0),
    "expandtabs": lambda text, arguments, keywords: length(text) * max(1, first_of(arguments, keywords, "tabsize", 8)),
    "to_bytes": lambda number, arguments, keywords: first_of(arguments, keywords, "length", 1),
    "join": lambda text, arguments, keywords: of_join(text, arguments[0]) if arguments else 0,
    "replace": lambda text, arguments, keywords: of_replace(text, *arguments[:2]) if len(arguments) > 1 else 0,
    "translate": lambda text, arguments, keywords: of_translate(text, arguments[0]) if arguments else 0,
}


def of_translate(text, table):
    values = table.values() if isinstance(table, dict) else ()
    return length(text) * max([length(value) for value in values], default=1)


def of_method(name, function, arguments, keywords):
    """Returns the size of what a method of a text or a number makes; 0 for any other function."""
    owner = getattr(function, "__self__", None)
    size = METHODS.get(name)
    if size is None or not (is_text(owner) or is_whole(owner)):
        return 0
    return size(owner, arguments, keywords)


def argument(arguments, keywords, index, name, default):
    return arguments[index] if len(arguments) > index else keywords.get(name, default)


def of_indent(arguments, keywords):
    text, width = str(arguments[0]), argument(arguments, keywords, 1, "width", 4)
    return length(text) + (text.count("\n") + 1) * (width if is_whole(width) else length(width))


def of_tojson(arguments, keywords):
    indent = keywords.get("indent")
    return indent * length(arguments[0]) if is_whole(indent) else length(indent)


# Filters by name: the size of (arguments with the value first, keywords).
FILTERS = {
    "batch": lambda a, k: argument(a, k, 1, "linecount", 0) if is_whole(argument(a, k, 1, "linecount", 0)) else 0,
    "center": lambda a, k: argument(a, k, 1, "width", 80) if is_whole(argument(a, k, 1, "width", 80)) else 0,
    "format": lambda a, k: of_percent(str(a[0]), k or tuple(a[1:])),
    "indent": of_indent,
    "join": lambda a, k: of_join(argument(a, k, 1, "d", ""), a[0]),
    "replace": lambda a, k: of_replace(str(a[0]), str(argument(a, k, 1, "old", "")), str(argument(a, k, 2, "new", ""))),
    "tojson": of_tojson,
}  # fmt: skip


def of_filter(name, arguments, keywords):
    return FILTERS[name](arguments, keywords) if arguments else 0
