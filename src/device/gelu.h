// The constants of GELU in its tanh form (Hendrycks and Gimpel 2016). No torch.
#pragma once

namespace tandem::device {

// gelu(g) = g sigmoid(u) with u = kGeluScale (g + kGeluCubic g^3); kGeluScale is 2 sqrt(2 / pi).
constexpr float kGeluScale = 1.5957691216057308F, kGeluCubic = 0.044715F;

}  // namespace tandem::device
