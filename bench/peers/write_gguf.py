"""A Qwen3 or Qwen3-MoE Hugging Face folder as a GGUF file without a vocabulary (the benchmarks feed token ids): float32 or bfloat16
matrices, float32 norms and routers, as llama.cpp's own converter writes them.

    write_gguf.py FOLDER DTYPE FILE"""

import json
import pathlib
import sys

import gguf
import torch
from safetensors.torch import load_file

LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
# The matrices of all experts of a layer are one tensor: gate and up [X, F, E], down [X, E, F].
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}
TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
       "lm_head.weight": "output.weight"}


def gguf_name(name):
    if name in TOP:
        return TOP[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER[rest.removesuffix('.weight')]}.weight"


def gguf_tensors(folder):
    """Yields names and tensors of the GGUF file. Experts are stacked when the last of a layer's has been read."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    experts = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(file).items():
            if ".experts." not in name:
                yield gguf_name(name), tensor
                continue
            _, _, layer, _, _, expert, kind, _ = name.split(".")
            stack = experts.setdefault((layer, kind), {})
            stack[int(expert)] = tensor
            if len(stack) == config["num_experts"]:
                yield f"blk.{layer}.{EXPERTS[kind]}.weight", torch.stack([stack[j] for j in range(len(stack))])
                del experts[layer, kind]


def add_experts(writer, config):
    if not config["norm_topk_prob"]:
        sys.exit("llama.cpp divides the weights of a token's experts by their sum in every qwen3moe model; norm_topk_prob is false here")
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def write(folder, dtype, path):
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    sparse = "num_experts" in config
    writer = gguf.GGUFWriter(str(path), "qwen3moe" if sparse else "qwen3")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32 if dtype == "float32" else gguf.LlamaFileType.MOSTLY_BF16)
    if sparse:
        add_experts(writer, config)
    for name, tensor in gguf_tensors(folder):
        if dtype == "float32" or tensor.dim() == 1 or "ffn_gate_inp" in name:
            writer.add_tensor(name, tensor.float().numpy())
        else:
            bits = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


write(*sys.argv[1:4])
