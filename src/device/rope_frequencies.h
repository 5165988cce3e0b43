// The frequencies of rotary positions (RoPE, Su et al. 2021), as transformers' Qwen3RotaryEmbedding has them. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace tandem::device {

// Returns [head_dim / 2] float32: theta^(-2i / head_dim), times factors[i] where there are factors. The host computes
// them for every device: a frequency's last bit is a large angle at a late position, and pow() differs between devices.
std::vector<float> rope_frequencies(int64_t head_dim, double theta, const std::vector<float>& factors);

}  // namespace tandem::device
