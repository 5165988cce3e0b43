"""The conversations that agents have with the engine for one sample, kept as token ids.

An answer is kept as the engine sampled it. A request continues a conversation if its messages are those of the
conversation, the answer among them, and more; then the new messages alone are tokenised, as the chat template renders
them after the former ones. A text continues one if it begins with the former text and the answer; then what comes after
them is tokenised. Every other request begins a conversation of its own. So no token that the model gave is ever made of
text again."""

import copy

END_OF_ANSWER = "TANDEM-END-OF-ANSWER"  # stands for an answer's text, to see what a template writes after it
OTHER_ANSWER = "it begins as an earlier one, and does not go on with the answer to that"


class Turn:
    """A request and its answer. number: ascends in the order of the requests. ids: all token ids so far, those of the
    answer at the end, from `begin` on. shown: the answer to a text as its client got it. written: the same with what
    ended it (a special token, a stop string), which the client did not get and may write itself."""

    def __init__(self, begun, keys, form, answer, is_trained, ended, shown="", written=()):
        self.number, self.parent, self.keys, self.form = begun.number, begun.parent, keys, form
        self.ids, self.begin, self.is_trained, self.ended = begun.ids + answer, len(begun.ids), is_trained, ended
        self._prompt, self._shown, self._written = begun.prompt, shown, written

    def prompt(self, decode):
        """What the request began with, as text."""
        if self._prompt is None:
            self._prompt = decode(self.ids[: self.begin])
            self._written = (decode(self.ids)[len(self._prompt) :], *self._written)
        return self._prompt

    def num_known(self, text, decode):
        """How many characters at the beginning of a text stand for the ids; 0: it does not go on with the answer."""
        prompt = self.prompt(decode)
        if not text.startswith(prompt):
            return 0
        rest = text[len(prompt) :]
        known = [len(one) for one in self._written if one and rest.startswith(one)]
        if self._shown and begins_longer(rest, self._shown):  # else nothing comes after what ended the answer
            known.append(len(self._shown))
        return len(prompt) + max(known) if known else 0


class Begun:
    """Where an answer is to be sampled. why_new: why a request with earlier answers in it continues none; "" where it
    continues one, or has none. prompt: its text, where it came as text."""

    def __init__(self, number, parent, ids, why_new="", prompt=None):
        self.number, self.parent, self.ids, self.why_new, self.prompt = number, parent, ids, why_new, prompt


class Conversations:
    """render(messages, tools, template_arguments, opens_answer) gives text; `prompt` is engine_calls.Prompt."""

    def __init__(self, prompt, tokenizer, render):
        self._prompt, self._tokenizer, self._render = prompt, tokenizer, render
        self._turns = []
        self._num_begun = 0

    def begin_chat(self, asked):
        """asked: requests.ChatAsked."""
        self._num_begun += 1
        form = form_of(asked)
        opened = self._render(asked.messages, asked.tools, asked.template_arguments, True)
        if asked.tools and opened == self._render(asked.messages, [], asked.template_arguments, True):
            raise ValueError("the chat template of this model shows it no tools; give the model one that does")
        parent = self._longest(asked.keys, form)
        why_new = ""
        if parent is not None:
            ids = self._continuation(parent, asked, opened)
            if ids is not None:
                return Begun(self._num_begun, parent, parent.ids + ids)
            why_new = "the chat template renders its earlier messages otherwise than before"
        elif self._turns and any(key[0] == "assistant" for key in asked.keys):
            why_new = "its earlier messages are not those of this sample"
        return Begun(self._num_begun, None, self._prompt.encode(opened), why_new)

    def begin_text(self, prompt):
        """prompt: text, or token ids."""
        self._num_begun += 1
        if isinstance(prompt, str):
            return self._begin_with_text(prompt)
        fitting = [turn for turn in self._turns if prompt[: len(turn.ids)] == turn.ids]
        if fitting:
            return Begun(self._num_begun, max(fitting, key=lambda turn: len(turn.ids)), list(prompt))
        has_answer = any(begins_longer(prompt, turn.ids[: turn.begin]) for turn in self._turns)
        return Begun(self._num_begun, None, list(prompt), OTHER_ANSWER if has_answer else "")

    def _begin_with_text(self, prompt):
        decode = self._tokenizer.decode
        parent = max(self._turns, key=lambda turn: turn.num_known(prompt, decode), default=None)
        if parent is not None and (num_known := parent.num_known(prompt, decode)):
            ids = parent.ids + self._tokenizer.encode(prompt[num_known:])
            return Begun(self._num_begun, parent, ids, prompt=prompt)
        has_answer = any(begins_longer(prompt, turn.prompt(decode)) for turn in self._turns)
        return Begun(self._num_begun, None, self._prompt.encode(prompt), OTHER_ANSWER if has_answer else "", prompt)

    def add(self, begun, keys, form, answer, is_trained, ended, **texts):
        """Keeps an answer, and returns its turn. keys: of all messages with the answer's, None for a text. texts: as
        Turn takes them."""
        turn = Turn(begun, keys, form, answer, is_trained, ended, **texts)
        self._turns.append(turn)
        return turn

    def drop(self, turn):
        """Forgets an answer that did not reach its client. Where a request continues it, it did."""
        if all(other.parent is not turn for other in self._turns):
            self._turns.remove(turn)

    def samples(self, base):
        """A sample for each conversation that ended in a trained answer, copies of `base`, in the order in which the
        conversations began. A token that two conversations have in common is trained in the first."""
        parents = {turn.parent for turn in self._turns}
        paths = sorted((path_to(turn) for turn in self._turns if turn not in parents), key=numbers_of)
        given, samples = set(), []
        for turns in paths:
            leaf = turns[-1]
            new = [turn for turn in turns if turn.is_trained and turn not in given]
            if not new:
                continue
            given.update(new)
            begin = turns[0].begin
            mask = [0] * (len(leaf.ids) - begin)
            for turn in new:
                mask[turn.begin - begin : len(turn.ids) - begin] = [1] * (len(turn.ids) - turn.begin)
            sample = copy.copy(base)
            sample.tokens, sample.response_length, sample.loss_mask = list(leaf.ids), len(mask), mask
            sample.rollout_log_probs = None
            status = sample.Status
            sample.status = status.TRUNCATED if leaf.ended == "length" else status.COMPLETED
            samples.append(sample)
        return samples

    def _longest(self, keys, form):
        """The turn whose messages, answer included, are the most of the first messages of `keys`, which has more."""
        fitting = [
            turn for turn in self._turns
            if turn.keys is not None and turn.form == form and len(turn.keys) < len(keys)
            and keys[: len(turn.keys)] == turn.keys
        ]  # fmt: skip
        return max(fitting, key=lambda turn: len(turn.keys), default=None)

    def _continuation(self, parent, asked, opened):
        """The ids that come after those of the turn; None where the template does not render the former messages first
        and in the same way."""

        def render(messages):
            return self._render(messages, asked.tools, asked.template_arguments, False)

        num_former = len(parent.keys)
        former = render(asked.messages[:num_former])
        answer = {"role": "assistant", "content": END_OF_ANSWER}
        closed = render([*asked.messages[: num_former - 1], answer])
        if not opened.startswith(former) or END_OF_ANSWER not in closed:
            return None
        text = closed.rpartition(END_OF_ANSWER)[2] + opened[len(former) :]
        ids = self._tokenizer.encode(text)
        # The token that ended the answer is the first of those that the template writes after it.
        return ids[1:] if parent.ended == "stop" and ids[:1] == parent.ids[-1:] else ids


def path_to(turn):
    """The turns of a conversation up to this one."""
    turns = [turn]
    while turns[-1].parent is not None:
        turns.append(turns[-1].parent)
    return turns[::-1]


def numbers_of(turns):
    return [turn.number for turn in turns]


def begins_longer(prompt, beginning):
    """Whether a text, or a list of ids, is the beginning and more."""
    return len(prompt) > len(beginning) and prompt[: len(beginning)] == beginning


def form_of(asked):
    """What besides its messages decides how a conversation is rendered."""
    return repr((asked.tools, asked.template_arguments))
