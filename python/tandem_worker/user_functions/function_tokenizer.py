"""The model's tokenizer as functions written for transformers use one: calls, encode, decode and chat templates, token
for token as the program encodes prompts. Runs no code of the model directory."""

from tandem_worker import tokenizer


class FunctionTokenizer:
    def __init__(self, directory):
        self._worker = tokenizer.Worker()
        self.text_prefix = self._worker.load(directory)["text_prefix"]  # ids written before every text, such as BOS
        self._library = self._worker.library
        config = tokenizer.read_json(directory + "/tokenizer_config.json", required=False)
        for name in ("eos_token", "pad_token", "bos_token", "unk_token"):
            token = config.get(name)
            token = token.get("content") if isinstance(token, dict) else token
            setattr(self, name, token)
            setattr(self, name + "_id", None if token is None else self._library.token_to_id(token))

    def __len__(self):
        return self._library.get_vocab_size(with_added_tokens=True)

    def encode(self, text, add_special_tokens=False):
        return self._library.encode(text, add_special_tokens=bool(add_special_tokens)).ids

    def __call__(self, text, add_special_tokens=False, **options):
        if options:
            raise ValueError(f"tokenizer(..., {next(iter(options))}=...) is not supported")
        if isinstance(text, str):
            ids = self.encode(text, add_special_tokens)
            return {"input_ids": ids, "attention_mask": [1] * len(ids)}
        rows = [self.encode(one, add_special_tokens) for one in text]
        return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}

    def decode(self, token_ids, skip_special_tokens=False, **options):
        ids = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        ids = [ids] if isinstance(ids, int) else list(ids)
        return self._library.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(self, rows, skip_special_tokens=False, **options):
        return [self.decode(row, skip_special_tokens) for row in rows]

    def convert_tokens_to_ids(self, tokens):
        if isinstance(tokens, str):
            return self._library.token_to_id(tokens)
        return [self._library.token_to_id(token) for token in tokens]

    def bytes_of_id(self, id):
        """The bytes of a token, which may be part of a character."""
        return self._worker.bytes_of_id(id)

    def apply_chat_template(self, conversation, tools=None, tokenize=True, add_generation_prompt=False, **options):
        keywords = {**options, "add_generation_prompt": add_generation_prompt}
        if tools is not None:
            keywords["tools"] = tools
        (text,) = self._worker.apply_chat_template([conversation], keywords, 0)
        return self.encode(text) if tokenize else text

