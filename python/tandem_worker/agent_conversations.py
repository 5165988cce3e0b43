"""The conversations that agents have with the engine for one sample, kept as token ids.

An answer is kept as the engine sampled it. A request continues a conversation if its messages are those of the
conversation, the answer among them, and more; then the new messages alone are tokenised, as the chat template renders
them after the former ones. Every other request begins a conversation of its own. So no token that the model gave is
ever made of text again."""

import copy

END_OF_ANSWER = "TANDEM-END-OF-ANSWER"  # stands for an answer's text, to see what a template writes after it


class Turn:
    """A request and its answer. ids: all token ids so far, those of the answer at the end, from `begin` on."""

    def __init__(self, parent, keys, form, ids, begin, is_trained, ended):
        self.parent, self.keys, self.form = parent, keys, form
        self.ids, self.begin, self.is_trained, self.ended = ids, begin, is_trained, ended
        self.has_children = False
        self.text = None  # of all ids, once it was asked for


class Begun:
    """Where an answer is to be sampled. why_new: why a request with earlier answers in it continues none; "" where it
    continues one, or has none."""

    def __init__(self, parent, ids, why_new=""):
        self.parent, self.ids, self.why_new = parent, ids, why_new


class Conversations:
    """render(messages, tools, template_arguments, opens_answer) gives text; `prompt` is engine_calls.Prompt."""

    def __init__(self, prompt, tokenizer, render):
        self._prompt, self._tokenizer, self._render = prompt, tokenizer, render
        self._turns = []

    def begin_chat(self, asked):
        """asked: agent_requests.ChatAsked."""
        form = form_of(asked)
        opened = self._render(asked.messages, asked.tools, asked.template_arguments, True)
        if asked.tools and opened == self._render(asked.messages, [], asked.template_arguments, True):
            raise ValueError("the chat template of this model shows it no tools; give the model one that does")
        parent = self._longest(asked.keys, form)
        why_new = ""
        if parent is not None:
            ids = self._continuation(parent, asked, opened)
            if ids is not None:
                return Begun(parent, parent.ids + ids)
            why_new = "the chat template renders its earlier messages otherwise than before"
        elif self._turns and any(key[0] == "assistant" for key in asked.keys):
            why_new = "its earlier messages are not those of this sample"
        return Begun(None, self._prompt.encode(opened), why_new)

    def begin_text(self, prompt):
        """prompt: text, or token ids."""
        for turn in sorted(self._turns, key=lambda turn: -len(turn.ids)):
            if isinstance(prompt, str):
                if turn.text is None:
                    turn.text = self._tokenizer.decode(turn.ids)
                if prompt.startswith(turn.text):
                    return Begun(turn, turn.ids + self._tokenizer.encode(prompt[len(turn.text) :]))
            elif prompt[: len(turn.ids)] == turn.ids:
                return Begun(turn, list(prompt))
        return Begun(None, self._prompt.encode(prompt) if isinstance(prompt, str) else list(prompt))

    def add(self, begun, keys, form, answer, is_trained, ended):
        """keys: of all messages with the answer's, None for a text."""
        self._turns.append(Turn(begun.parent, keys, form, begun.ids + answer, len(begun.ids), is_trained, ended))
        if begun.parent is not None:
            begun.parent.has_children = True

    def samples(self, base):
        """A sample for each conversation that ended in a trained answer, copies of `base`. A token that two conversations
        have in common is trained in the first."""
        given, samples = set(), []
        for leaf in self._turns:
            if leaf.has_children:
                continue
            turns = [leaf]
            while turns[-1].parent is not None:
                turns.append(turns[-1].parent)
            new = [turn for turn in reversed(turns) if turn.is_trained and turn not in given]
            if not new:
                continue
            given.update(new)
            begin = turns[-1].begin
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


def form_of(asked):
    """What besides its messages decides how a conversation is rendered."""
    return repr((asked.tools, asked.template_arguments))
