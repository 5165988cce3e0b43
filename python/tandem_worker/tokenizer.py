"""Tokenizer worker: tokenizer.json through `tokenizers`, the chat template through jinja2. Runs no code of the model
directory."""

import contextlib
import json
import os

import tokenizers

from tandem_worker import protocol
from tandem_worker.protocol import UserFault, one_line, with_article
from tandem_worker.templates.chat_template import MAX_MEMORY_BYTES, ChatTemplate

MAX_VOCABULARY = 1 << 24  # as in src/model/config.cc; tables are as long as the largest id
PROBE = "a"  # a text that is no special token
ADDED_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def byte_level_alphabet():
    """Character -> byte of byte-level BPE (GPT-2, Radford et al. 2019): printable Latin-1 stands for itself, the other
    bytes for the characters from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


def read_json(path, required):
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        if required:
            raise UserFault(
                f"{path}: no such file; save the tokenizer in its fast form there (save_pretrained does)"
            ) from None
        return {}
    except (ValueError, RecursionError) as error:
        raise UserFault(f"{path}: not JSON: {one_line(error)}") from None
    except OSError as error:
        raise UserFault(f"{path}: {error.strerror}") from None
    if not isinstance(value, dict):
        raise UserFault(f"{path}: holds {with_article(type(value).__name__)} where a JSON object belongs")
    return value


@contextlib.contextmanager
def blaming(path):
    """What the library raises over a tokenizer that is wrong in itself (no unknown token, say) is the file's fault. A
    panic of its Rust code is no Exception; what ends the process is no fault of the file's."""
    try:
        yield
    except (UserFault, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserFault(f"{path}: the tokenizer cannot work: {one_line(error)}; take the file from the model's "
                        "publisher again") from None


class Worker:
    """template_memory_bytes: what the process may take to render a conversation; None where it is not ours alone."""

    def __init__(self, template_memory_bytes=None):
        self._template_memory_bytes = template_memory_bytes

    def load(self, directory):
        path = self._path = os.path.join(directory, "tokenizer.json")
        description = read_json(path, required=True)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(path)
        except BaseException as error:  # a panic of the library's Rust code is no Exception
            raise UserFault(f"{path}: {one_line(error)}") from None
        # Lengths are the trainer's business; what the file says about them served another program.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        config_path = os.path.join(directory, "tokenizer_config.json")
        config = read_json(config_path, required=False)
        self._add_tokens(config, config_path)
        self._template = ChatTemplate(directory, config, self._template_memory_bytes)
        self._alphabet = byte_level_alphabet()
        self._byte_level = (description.get("decoder") or {}).get("type") == "ByteLevel"
        added = self._tokenizer.get_added_tokens_decoder()
        vocab_size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        if vocab_size > MAX_VOCABULARY:
            raise UserFault(f"{path}: holds the token id {vocab_size - 1}, where {MAX_VOCABULARY - 1} is the largest "
                            "that is read here; take the file from the model's publisher again")
        return {
            "vocab_size": vocab_size,
            "has_chat_template": self._template.exists,
            "template_path": self._template.path,
            "special_ids": sorted(id for id, token in added.items() if token.special),
            **self._own_eos(config),
            "text_prefix": self._text_prefix(),
        }

    def _own_eos(self, config):
        """The id of tokenizer_config.json's eos_token, which transformers and TRL call the tokenizer's EOS; nothing where
        it names none, or none that is in the vocabulary."""
        token = config.get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        id = self._tokenizer.token_to_id(token) if isinstance(token, str) else None
        return {} if id is None else {"eos_id": id}

    @property
    def library(self):
        """The tokenizers.Tokenizer."""
        return self._tokenizer

    def encode(self, texts):
        with blaming(self._path):
            encodings = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids, skip_special_tokens):
        with blaming(self._path):
            return self._tokenizer.decode_batch(ids, skip_special_tokens=skip_special_tokens)

    def apply_chat_template(self, conversations, kwargs, first):
        self._template.prepare(kwargs)  # no conversation at all asks whether any could be rendered
        return [self._template.render(messages, kwargs, first + i) for i, messages in enumerate(conversations)]

    def token_bytes(self):
        """Hexadecimal bytes of every id; empty where no token has that id."""
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        table = [""] * (1 + max(vocabulary.values(), default=-1))
        for token, id in vocabulary.items():
            table[id] = self._bytes_of(token).hex()
        return table

    def bytes_of_id(self, id):
        """The bytes of a token, which may be part of a character; none where no token has that id."""
        token = self._tokenizer.id_to_token(id)
        return b"" if token is None else self._bytes_of(token)

    def _bytes_of(self, token):
        if self._byte_level:
            # The decoder's own rule: by alphabet when every character is in it, else as it stands (added tokens).
            if all(character in self._alphabet for character in token):
                return bytes(self._alphabet[character] for character in token)
            return token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return token.encode()
        return token.replace("\u2581", " ").encode()  # SentencePiece writes a space so

    def _text_prefix(self):
        """The ids that the post-processor of tokenizer.json writes before every text, such as BOS: what
        transformers 5 has before the tokens of tokenizer(text). What it writes after a text (EOS) is left out: a
        prompt does not end there."""
        if self._tokenizer.post_processor is None:
            return []
        with blaming(self._path):
            # A post-processor that writes tokens depends on no text, so any text shows them.
            encoding = self._tokenizer.encode(PROBE, add_special_tokens=True)
        text = encoding.special_tokens_mask
        return encoding.ids[: text.index(0)] if 0 in text else []

    def _add_tokens(self, config, path):
        """Tokens that only tokenizer_config.json names, as transformers adds them."""
        entries = config.get("added_tokens_decoder") or {}
        try:
            wanted = sorted((int(id), entry) for id, entry in entries.items())
            for id, entry in wanted:
                if self._tokenizer.token_to_id(entry["content"]) is not None:
                    continue
                flags = {flag: bool(entry.get(flag, False)) for flag in ADDED_TOKEN_FLAGS}
                self._tokenizer.add_tokens([tokenizers.AddedToken(entry["content"], **flags)])
                if self._tokenizer.token_to_id(entry["content"]) != id:
                    raise UserFault(
                        f"{path}: added token {entry['content']!r} has id {id} here but no place in tokenizer.json"
                    )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserFault(f"{path}: added_tokens_decoder: {type(error).__name__}: {one_line(error)}") from None


def main():
    worker = Worker(template_memory_bytes=MAX_MEMORY_BYTES)
    protocol.serve(
        {
            "load": worker.load,
            "encode": worker.encode,
            "decode": worker.decode,
            "apply_chat_template": worker.apply_chat_template,
            "token_bytes": worker.token_bytes,
        }
    )


if __name__ == "__main__":
    main()
