"""Makes the golden models of the dense families beside Qwen and Llama, and their references: tests/golden/models/<name> and
tests/golden/reference/<name>. Weights are random, and the tokenizer is that of qwen2-tied. Ran with transformers 5.10.4 and torch
2.11.0 on one thread, from the repository's root: python3 tests/golden/families/make.py [NAME ...]. A second run gives the same bytes.

A seed will do if greedy text does not hang on a rounding of float32; the first that does is taken."""

import json
import pathlib
import shutil
import sys

import answers
import torch
import transformers
from safetensors.torch import save_file

GOLDEN = pathlib.Path(__file__).parent.parent
TOKENIZER = GOLDEN / "models" / "qwen2-tied"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt")
NUM_TOKENS, VOCAB, BEGIN, END = 474, 504, 471, 473
MIN_GREEDY_MARGIN = 4e-3

COMMON = {
    "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "bos_token_id": BEGIN, "eos_token_id": END,
    "pad_token_id": BEGIN, "tie_word_embeddings": False,
}
ROPE = {"rope_type": "default", "rope_theta": 1e4}
WINDOW = 20  # shorter than two KV blocks, and than the longer sequences
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}
# The class of the model, the dtype of its checkpoint, and what its configuration has beside COMMON.
MODELS = {
    "mistral-yarn": ("Mistral", "float32", {"head_dim": 16, "sliding_window": None, "rope_parameters": YARN}),
    "mistral-window": ("Mistral", "bfloat16", {"head_dim": 8, "sliding_window": WINDOW, "rope_parameters": ROPE}),
    "ministral": ("Ministral", "float32", {"head_dim": 16, "sliding_window": WINDOW, "rope_parameters": ROPE,
                                           "layer_types": ["sliding_attention", "full_attention"]}),
    "smollm3-linear": ("SmolLM3", "bfloat16", {
        "num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0}}),
    "olmo2": ("Olmo2", "bfloat16", {"rope_parameters": ROPE}),
    # transformers 5.10.4 would scale the rotary embedding of all layers alike, which is not how the models were trained.
    "olmo3": ("Olmo3", "float32", {"num_hidden_layers": 3, "sliding_window": WINDOW, "rope_parameters": ROPE,
                                   "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    "gemma3": ("Gemma3", "bfloat16", {
        "num_hidden_layers": 3, "head_dim": 16, "query_pre_attn_scalar": 24, "tie_word_embeddings": True, "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"], "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 2.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}),
    "phi4": ("Phi3", "float32", {"hidden_size": 64, "rope_parameters": ROPE | {"partial_rotary_factor": 0.75},
                                 "original_max_position_embeddings": 256}),
    "glm": ("Glm", "float32", {"head_dim": 16, "attention_bias": True, "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}),
    "glm4": ("Glm4", "bfloat16", {"head_dim": 16, "attention_bias": False,
                                  "rope_parameters": ROPE | {"partial_rotary_factor": 0.5}}),
}


def draw(family, dtype, settings, seed):
    config = getattr(transformers, CONFIGS.get(family, family + "Config"))(**COMMON | settings)
    generator = torch.Generator().manual_seed(seed)
    model = getattr(transformers, family + "ForCausalLM")(config)
    for name, parameter in model.named_parameters():
        # A norm's weights lie around those with which the class begins: 1, or 0 where 1 is added to them.
        is_norm = name.endswith("norm.weight")
        noise = torch.empty(parameter.shape).normal_(0.0, 0.25 if is_norm else 0.2, generator=generator)
        parameter.data.copy_(parameter.data + noise if is_norm else noise)
    return model.to(getattr(torch, dtype))


def config_other_style(config):
    """The same configuration as transformers 4 wrote it, given that of transformers 5."""
    other = {key: value for key, value in config.items() if key != "rope_parameters"}
    other["torch_dtype"] = other.pop("dtype")
    rope = dict(config["rope_parameters"])
    if "sliding_attention" in rope:
        other["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        rope = dict(rope["full_attention"])
    other["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        other["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    other["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    return dict(sorted(other.items())) | {"transformers_version": "4.57.1"}


def write(name, seed):
    """Writes the model's folder, with config.json in the form of transformers 4, and returns that of transformers 5."""
    family, dtype, settings = MODELS[name]
    folder = GOLDEN / "models" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = draw(family, dtype, settings, seed)
    model.generation_config = transformers.GenerationConfig(bos_token_id=BEGIN, eos_token_id=[END, BEGIN], pad_token_id=BEGIN)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config_other_style(config), indent=2) + "\n", encoding="utf-8")
    for file in TOKENIZER_FILES:
        shutil.copyfile(TOKENIZER / file, folder / file)
    return config


def main(names):
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in names or MODELS:
        folder, folder_of_answers = GOLDEN / "models" / name, GOLDEN / "reference" / name
        for seed in range(100):
            config = write(name, seed)
            tensors, report = answers.make(folder, MODELS[name][1], NUM_TOKENS, BEGIN, seed)
            if report["min_greedy_margin"] >= MIN_GREEDY_MARGIN:
                break
        else:
            raise SystemExit(f"{name}: no seed will do")
        folder_of_answers.mkdir(parents=True, exist_ok=True)
        save_file({key: tensor.contiguous() for key, tensor in sorted(tensors.items())}, folder_of_answers / "reference.safetensors",
                  metadata={"format": "pt"})
        (folder_of_answers / "reference.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        (folder_of_answers / "config_other_style.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        print(f"{name}: seed {seed}, greedy margin {report['min_greedy_margin']:.1e}, gradients of float32 and float64 differ by "
              f"{report['error_of_gradients']:.1e}")


if __name__ == "__main__":
    main(sys.argv[1:])
