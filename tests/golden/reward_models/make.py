"""Makes cases.json beside it: what transformers' XForSequenceClassification gives to sequences of tokens, whose decoder is
that of a model of tests/golden/models and whose head is the one of weight() below. All sequences are one batch, padded on
the right. Of "two-layers", the head of Qwen2.5-Math-RM, which is no class of transformers, the decoder is transformers'
and the head two torch.nn.Linear with a ReLU between them.
Ran with transformers 5.10.4 and torch 2.11.0, from the repository's root:
python3 tests/golden/reward_models/make.py"""

import json
import pathlib

import torch
import transformers

HERE = pathlib.Path(__file__).parent
MODELS = HERE.parent / "models"
PAD = 5
NAMES = ("qwen3-tied", "qwen2-tied", "llama3-untied-sharded", "mistral-window", "gemma3", "smollm3-linear", "phi4", "glm4", "qwen3-moe")


def weight(rows, columns):
    """Numbers that float32 holds, between -1 and 1: a test makes the same."""
    numbers = (torch.arange(rows * columns, dtype=torch.int64) * 37 + 11) % 64 - 32
    return (numbers.to(torch.float32) / 32).reshape(rows, columns)


def sequences(vocab):
    draw = torch.Generator().manual_seed(7)
    lists = [torch.randint(6, vocab, (n,), generator=draw).tolist() for n in (1, 2, 17, 33, 40)]
    return lists + [lists[2] + [PAD, PAD], [9, PAD, 11, 12]]


def score(model, lists):
    longest = max(map(len, lists))
    ids = torch.tensor([tokens + [PAD] * (longest - len(tokens)) for tokens in lists])
    mask = torch.tensor([[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in lists])
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).logits[:, 0].tolist()


def case(name):
    directory = MODELS / name
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, num_labels=1, dtype=torch.float32, attn_implementation="eager")
    model.eval()
    model.config.pad_token_id = PAD
    model.score.weight.data = weight(1, model.config.hidden_size)
    lists = sequences(min(256, model.config.vocab_size))
    return {"model": name, "architecture": type(model).__name__, "sequences": lists, "scores": score(model, lists)}


def two_layers():
    model = transformers.AutoModel.from_pretrained(MODELS / "qwen2-tied", dtype=torch.float32, attn_implementation="eager").eval()
    width = model.config.hidden_size
    head = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, 1))
    for layer in (head[0], head[2]):
        layer.weight.data, layer.bias.data = weight(*layer.weight.shape), weight(1, len(layer.bias)).flatten()
    lists = sequences(256)[:5]
    with torch.no_grad():
        scores = [head(model(input_ids=torch.tensor([tokens])).last_hidden_state[0, -1]).item() for tokens in lists]
    return {"model": "qwen2-tied", "architecture": "Qwen2ForRewardModel", "sequences": lists, "scores": scores}


cases = [case(name) for name in NAMES] + [two_layers()]
(HERE / "cases.json").write_text(json.dumps({"pad_token_id": PAD, "cases": cases}, indent=1).replace("\n     ", " ").replace("\n    ]", "]") + "\n")
for each in cases:
    print(each["model"], each["architecture"], each["scores"])
