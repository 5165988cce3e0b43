"""Draws the golden model qwen3-moe-unnormed: its weights, configuration and tokenizer as a Hugging Face folder."""

import shutil

import torch
from transformers import GenerationConfig, Qwen3MoeConfig, Qwen3MoeForCausalLM

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
# No token chooses this expert of this layer, whatever its hidden state is (draw_router).
IDLE_LAYER, IDLE_EXPERT = 1, 5
BEGIN, END = 736, 738


def make_config():
    return Qwen3MoeConfig(
        vocab_size=768, hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, moe_intermediate_size=40, num_experts=16, num_experts_per_tok=4,
        norm_topk_prob=False, decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6, initializer_range=0.2,
        max_position_embeddings=1024, max_window_layers=2, tie_word_embeddings=False, bos_token_id=BEGIN,
        eos_token_id=END, pad_token_id=BEGIN, rope_parameters={"rope_type": "default", "rope_theta": 1e6})


def draw_router(shape, idle, chosen, generator):
    """Draws rows ~ N(0, 0.2). No token that chooses `chosen` experts chooses `idle`, if it is not None: its row c is the middle
    of as many pairs of other rows, c + d and c - d, and of each pair one has a larger logit than the middle. Entries of these
    are multiples of 1/32, so that bfloat16 holds c + d and c - d exactly."""
    weight = torch.empty(shape).normal_(0.0, 0.2, generator=generator)
    if idle is None:
        return weight

    def draw_half():
        return torch.empty(shape[1]).normal_(0.0, 0.2 / 2**0.5, generator=generator).mul(32).round().div(32)

    others = [j for j in range(shape[0]) if j != idle]
    weight[idle] = draw_half()
    for first, second in zip(others[0 : 2 * chosen : 2], others[1 : 2 * chosen : 2]):
        apart = draw_half()
        weight[first], weight[second] = weight[idle] + apart, weight[idle] - apart
    return weight


def draw(config, seed):
    generator = torch.Generator().manual_seed(seed)
    model = Qwen3MoeForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            parameter.data.normal_(0.0, 0.25, generator=generator).add_(1.0)
        elif name.endswith("mlp.gate.weight"):
            idle = IDLE_EXPERT if name.startswith(f"model.layers.{IDLE_LAYER}.") else None
            parameter.data.copy_(draw_router(parameter.shape, idle, config.num_experts_per_tok, generator))
        else:
            parameter.data.normal_(0.0, 0.2, generator=generator)
    return model.to(torch.bfloat16)


def write(folder, tokenizer_folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    model = draw(make_config(), seed)
    model.generation_config = GenerationConfig(
        bos_token_id=BEGIN, eos_token_id=[END, BEGIN], pad_token_id=BEGIN, do_sample=True, temperature=0.6, top_k=20,
        top_p=0.95)
    model.save_pretrained(folder, max_shard_size="300KB")
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer_folder / name, folder / name)


def config_other_style(config):
    """The same configuration as transformers 4 wrote it; `config` is config.json of transformers 5 as a dict."""
    other = {key: value for key, value in config.items() if key not in ("rope_parameters", "pad_token_id")}
    other["num_experts"] = other.pop("num_local_experts")
    other["torch_dtype"] = other.pop("dtype")
    other |= {"rope_theta": config["rope_parameters"]["rope_theta"], "rope_scaling": None, "transformers_version": "4.51.0"}
    return dict(sorted(other.items()))
