// The letters that tensors wear: q_THK is [tokens, query heads, head dim].
//   T tokens of a batch    E hidden size        H query heads   G key/value heads   K head dim
//   F MLP width            V vocabulary         L layers        N rows of a weight  R rows of a head chunk
//   X experts              C chosen experts of a token      P places, T C (device/experts.h); F is then an expert's
//   width
#pragma once
