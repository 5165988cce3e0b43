"""A reward at the top level of a file, as a user's script has one."""


def by_length(completions, **kwargs):
    return [float(len(messages[0]["content"]) % 5) for messages in completions]


def make_nested():
    def nested(completions, **kwargs):
        return [0.0 for _ in completions]

    return nested


def constant(completions, **kwargs):
    return [2.0 for _ in completions]
