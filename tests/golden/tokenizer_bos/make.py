"""Makes the files beside it: the tokenizer of ../tokenizer_small in the style of Llama 3's. A BOS token, a post-processor
that writes it before every text (TemplateProcessing, after ByteLevel, as in meta-llama/Llama-3.2-1B), and Llama 3's way
of rendering messages, in which the template writes BOS itself. Ran with tokenizers 0.22.2, whose tok(text) the cases
are, from the repository's root: python3 tests/golden/tokenizer_bos/make.py"""

import json
import pathlib

import tokenizers

HERE = pathlib.Path(__file__).parent
BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
NAMES = [BOS, EOS, "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}"
    "<|eot_id|>{% endfor %}{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
TEXTS = ["6 * 7 = ", "alpha beta", " a", "\n", "Grüße, 世界 🙂", "x<|eot_id|>y", "def f(x):\n    return x\n", "0"]


def make():
    description = json.loads((HERE.parent / "tokenizer_small" / "tokenizer.json").read_text(encoding="utf-8"))
    first = 1 + max(*description["model"]["vocab"].values(), *(token["id"] for token in description["added_tokens"]))
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    ids = {name: first + i for i, name in enumerate(NAMES)}
    description["added_tokens"] += [{"id": ids[name], "content": name, **flags} for name in NAMES]
    sequence = {"id": "A", "type_id": 0}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": sequence}],
        "pair": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": sequence},
                 {"SpecialToken": {"id": BOS, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {BOS: {"id": BOS, "ids": [ids[BOS]], "tokens": [BOS]}},
    }  # fmt: skip
    description["post_processor"] = {"type": "Sequence", "processors": [description["post_processor"], template]}
    write("tokenizer.json", json.dumps(description, ensure_ascii=False))
    config = {"bos_token": BOS, "eos_token": EOS, "chat_template": CHAT_TEMPLATE}
    write("tokenizer_config.json", json.dumps(config, indent=2))
    published = tokenizers.Tokenizer.from_file(str(HERE / "tokenizer.json"))
    cases = [{"text": text, "ids": published.encode(text).ids} for text in TEXTS]
    write("text_cases.jsonl", "\n".join(map(json.dumps, cases)))


def write(name, text):
    (HERE / name).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    make()
