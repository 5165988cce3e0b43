"""A byte-level tokenizer of 260 tokens and the configuration of a 1.6 M parameter Qwen3, as a Hugging Face folder without
weights (tandem sft --random-init draws those). The sparse one has 10.3 M parameters in 8 experts a layer, two of which a
token meets; the wide one is dense and has as many weights a token, to compare it with.

    python make_model.py OUT_DIRECTORY [dense|wide|sparse]
"""

import json
import pathlib
import sys

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


SHAPES = {
    "dense": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 192,
        "num_attention_heads": 6,
        "head_dim": 32,
        "intermediate_size": 512,
    },
    "wide": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "head_dim": 64,
        "intermediate_size": 768,
    },
    "sparse": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 256,
        "num_attention_heads": 4,
        "head_dim": 64,
        "intermediate_size": 768,  # used by no layer
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 384,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    },
}


def make_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    return tokenizer


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main():
    folder = pathlib.Path(sys.argv[1])
    shape = sys.argv[2] if len(sys.argv) > 2 else "dense"
    if shape not in SHAPES:
        sys.exit(f"{shape}: no such model; {', '.join(SHAPES)} are known")
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = make_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end, pad = tokenizer.token_to_id("<|end|>"), tokenizer.token_to_id("<|pad|>")
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": TEMPLATE,
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 256,
    })
    config = SHAPES[shape] | {
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
        "hidden_act": "silu",
        "initializer_range": 0.05,
        "max_position_embeddings": 256,
        "max_window_layers": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "sliding_window": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 264,
    }
    write_json(folder / "config.json", config)


if __name__ == "__main__":
    main()
