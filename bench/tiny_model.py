"""Qwen3 and Qwen3-MoE shapes with random weights as Hugging Face folders: the tiny one of the step benchmark (3.2 M parameters,
vocabulary 96), that of Qwen3-0.6B, and sparse ones. A token of their tokenizer is a printable character.

    tiny_model.py FOLDER [DTYPE [SHAPE]]"""

import array
import json
import pathlib
import random
import struct

SPECIAL = ["<|end|>", "<|pad|>"]
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 256, "initializer_range": 0.02, "intermediate_size": 768,
    "max_position_embeddings": 512, "max_window_layers": 4, "model_type": "qwen3", "num_attention_heads": 4,
    "num_hidden_layers": 4, "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "rope_scaling": None,
    "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "float32", "use_sliding_window": False, "vocab_size": 96,
}
QWEN3_0_6B = dict(CONFIG, head_dim=128, hidden_size=1024, intermediate_size=3072, max_position_embeddings=40960,
                  max_window_layers=28, num_attention_heads=16, num_hidden_layers=28, num_key_value_heads=8, rope_theta=1000000.0,
                  vocab_size=151936)


def sparse(shape, experts, chosen, width):
    """`shape` with experts in the place of each layer's MLP; intermediate_size is that of the chosen ones together, and unused."""
    return dict(shape, architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=experts, num_experts_per_tok=chosen,
                moe_intermediate_size=width, intermediate_size=chosen * width, norm_topk_prob=True, decoder_sparse_step=1,
                mlp_only_layers=[], router_aux_loss_coef=0.001, output_router_logits=False)


QWEN3_4B = dict(QWEN3_0_6B, hidden_size=2560, num_hidden_layers=36, max_window_layers=36, num_attention_heads=32,
                intermediate_size=9728)
LLAMA_3_1_8B = dict(CONFIG, architectures=["LlamaForCausalLM"], model_type="llama", head_dim=128, hidden_size=4096, intermediate_size=14336,
                    max_position_embeddings=1 << 19, max_window_layers=32, num_attention_heads=32, num_hidden_layers=32,
                    num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=500000.0, tie_word_embeddings=False, vocab_size=128256)
QWEN3_30B_A3B = dict(sparse(dict(QWEN3_0_6B, hidden_size=2048, num_hidden_layers=48, max_window_layers=48, num_attention_heads=32,
                                 num_key_value_heads=4, tie_word_embeddings=False), experts=128, chosen=8, width=768), intermediate_size=6144)
SHAPES = {
    "tiny": CONFIG,
    "qwen3-0.6b": QWEN3_0_6B,
    # 10.2 M parameters, as many of them active as the tiny shape has.
    "moe-tiny": sparse(CONFIG, experts=8, chosen=2, width=384),
    # 0.65 G parameters, 0.25 G of them active.
    "moe-0.5b": sparse(dict(QWEN3_0_6B, head_dim=64, num_hidden_layers=12, max_window_layers=12), experts=32, chosen=4, width=384),
}


def _mlp(at, hidden, width):
    yield at + "gate_proj.weight", [width, hidden]
    yield at + "up_proj.weight", [width, hidden]
    yield at + "down_proj.weight", [hidden, width]


def _tensors(config):
    hidden, head = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", [hidden]
        yield at + "self_attn.q_proj.weight", [q, hidden]
        yield at + "self_attn.k_proj.weight", [kv, hidden]
        yield at + "self_attn.v_proj.weight", [kv, hidden]
        yield at + "self_attn.q_norm.weight", [head]
        yield at + "self_attn.k_norm.weight", [head]
        yield at + "self_attn.o_proj.weight", [hidden, q]
        yield at + "post_attention_layernorm.weight", [hidden]
        if "num_experts" in config:
            yield at + "mlp.gate.weight", [config["num_experts"], hidden]
            for j in range(config["num_experts"]):
                yield from _mlp(f"{at}mlp.experts.{j}.", hidden, config["moe_intermediate_size"])
        else:
            yield from _mlp(at + "mlp.", hidden, config["intermediate_size"])
    yield "model.norm.weight", [hidden]
    if not config["tie_word_embeddings"]:
        yield "lm_head.weight", [config["vocab_size"], hidden]


def write_weights(path, config, seed=0, dtype="F32"):
    rng = random.Random(seed)
    header, offset, plan = {"__metadata__": {"format": "pt"}}, 0, []
    width = 4 if dtype == "F32" else 2
    for name, shape in _tensors(config):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + width * count]}
        plan.append((name, count))
        offset += width * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    block = [rng.gauss(0.0, config["initializer_range"]) for _ in range(1 << 16)]
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, count in plan:
            # Noise that repeats every 65,536 values, from another place for each tensor.
            start = rng.randrange(len(block))
            values = [1.0] * count if name.endswith("norm.weight") else block[start:] + block[:start]
            packed = struct.pack(f"<{len(values)}f", *values)
            if dtype == "BF16":
                packed = array.array("H", packed)[1::2].tobytes()
            for begin in range(0, count, len(values)):
                out.write(packed[: width * (count - begin)])


# A model whose completions are of two kinds, as in the model of lengths of make_of_two_lengths().
LONG_OF, LONG = 25, 3   # 3 of 25 tokens are of the long kind
KIND = 600.0            # a token's embedding has this in the dimension of its kind, and noise in all others
NUM_NEUTRAL = 96        # the first tokens, those of prompts, are of no kind but for these letters
SHORT_LETTER, LONG_LETTER = "S", "L"


def kind_of(token):
    """0: short, 1: long, None: neither."""
    if token < NUM_NEUTRAL:
        return {ord(SHORT_LETTER) - 0x21: 0, ord(LONG_LETTER) - 0x21: 1}.get(token)
    return int(token % LONG_OF < LONG)


def write_prompts_of_two_lengths(path, count, length):
    """The last letter of a prompt says of which kind its completions are."""
    rng = random.Random(1)
    letters = [chr(c) for c in range(0x21, 0x7F) if chr(c) not in (SHORT_LETTER, LONG_LETTER)]
    with open(path, "w", encoding="utf-8") as out:
        for i in range(count):
            prompt = "".join(rng.choice(letters) for _ in range(length - 1)) + (LONG_LETTER if i % LONG_OF < LONG else SHORT_LETTER)
            out.write(json.dumps({"prompt": prompt, "label": "0"}) + "\n")


def make_of_two_lengths(folder, shape, mean):
    """A model whose completions have a long tail, and the tokens that have to end them. A token's kind decides that of the next one, so
    completions are of the kind of their prompt's last letter, or of a drawn one behind other letters. Lengths of a kind are geometric: 88 % have mean 0.73 `mean`, 12 % 3 `mean`, so that one in a hundred is
    longer than 7.5 `mean`."""
    folder = make(folder, "bfloat16", shape)
    config = json.loads((folder / "config.json").read_text())
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    with open(folder / "model.safetensors", "r+b") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))

        def write(name, element, value):
            file.seek(8 + size + header[name]["data_offsets"][0] + 2 * element)
            file.write(struct.pack("<f", value)[2:])

        for token in range(vocab):
            for kind in (0, 1):
                write("model.embed_tokens.weight", token * hidden + kind, KIND if kind == kind_of(token) else 0.0)
        for kind in (0, 1):  # logits of the same kind are larger by 18
            write("model.norm.weight", kind, 18.0 / KIND / hidden**0.5)
    stops = []
    for kind, mean_of_kind in ((0, 0.73 * mean), (1, 3.0 * mean)):
        tokens = [token for token in range(vocab) if kind_of(token) == kind]
        stops += tokens[: max(round(len(tokens) / mean_of_kind), 1)]
    return folder, stops


def write_tokenizer(folder):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = [chr(c) for c in range(0x21, 0x7F)]
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|pad|>"}))


def write_prompts(path, count, length):
    rng = random.Random(1)
    with open(path, "w", encoding="utf-8") as out:
        for _ in range(count):
            prompt = "".join(chr(rng.randrange(0x21, 0x7F)) for _ in range(length))
            out.write(json.dumps({"prompt": prompt, "label": "0"}) + "\n")


def make(folder, dtype="float32", shape=None):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    config = dict(shape or CONFIG, eos_token_id=94, pad_token_id=95, torch_dtype=dtype)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    write_weights(folder / "model.safetensors", config, dtype="F32" if dtype == "float32" else "BF16")
    write_prompts(folder / "prompts.jsonl", 32, 16)
    return folder


if __name__ == "__main__":
    import sys

    make(sys.argv[1], *sys.argv[2:3], *(SHAPES[name] for name in sys.argv[3:4]))
