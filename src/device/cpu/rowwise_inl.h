// Kernels that work on one row at a time: residual add, RMSNorm, RoPE with and without QK-norm, gated activations, and
// their backward.
#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "device/cpu/kernels.h"
#include "device/cpu/math_inl.h"
#include "device/gelu.h"

namespace tandem::device::cpu {

// An activation is g sigmoid(u(g)). Its derivative is sigmoid(u) (1 + g du/dg (1 - sigmoid(u))).
template <class S>
struct Silu {
  using F = typename S::F;
  static F u(F g) { return g; }
  static F times_du(F g) { return g; }
};
template <class S>
struct Gelu {
  using F = typename S::F;
  static F u(F g) { return S::mul(scaled(g), S::fma(squared(g), S::set1(kGeluCubic), S::set1(1.0F))); }
  static F times_du(F g) { return S::mul(scaled(g), S::fma(squared(g), S::set1(3.0F * kGeluCubic), S::set1(1.0F))); }

 private:
  static F scaled(F g) { return S::mul(g, S::set1(kGeluScale)); }
  static F squared(F g) { return S::mul(g, g); }
};

template <class S>
struct Rowwise {
  using F = typename S::F;
  using M = Math<S>;

  static void add(const void* a, const void* b, void* y, int64_t n, Elem elem) {
    with_elem(elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const T* pa = static_cast<const T*>(a);
      const T* pb = static_cast<const T*>(b);
      T* py = static_cast<T*>(y);
      for (int64_t i = 0; i < n; i += 16)
        M::store(py + i, S::add(M::load(pa + i, n - i), M::load(pb + i, n - i)), n - i);
    });
  }

  template <typename T>
  static float inverse_rms(const T* x, int64_t width, double eps) {
    const float sum = M::dot(x, x, width);
    return 1.0F / std::sqrt(sum / static_cast<float>(width) + static_cast<float>(eps));
  }

  static void rms_norm(const void* x, const void* w, void* y, int64_t rows, const NormArgs& args) {
    with_elem(args.elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t width = args.width;
      const T* pw = static_cast<const T*>(w);
      const F offset = S::set1(static_cast<float>(args.offset));
      for (int64_t r = 0; r < rows; ++r) {
        const T* px = static_cast<const T*>(x) + r * width;
        T* py = static_cast<T*>(y) + r * width;
        const F scale = S::set1(inverse_rms(px, width, args.eps));
        for (int64_t i = 0; i < width; i += 16) {
          const int64_t left = width - i;
          const F factor = S::add(M::load(pw + i, left), offset);
          M::store(py + i, S::mul(S::mul(M::load(px + i, left), scale), factor), left);
        }
      }
    });
  }

  // With n = x s, s = 1/rms and f = offset + w: dx = s (dy f - n mean(dy f n)), dw = dy n. A null dw is not wanted.
  template <typename T, typename D>
  static void norm_row_backward(const T* dy, const T* x, const T* w, D* dx, float* dw, int64_t width, double eps,
                                double offset) {
    const F added = S::set1(static_cast<float>(offset));
    const float scale = inverse_rms(x, width, eps);
    const F s = S::set1(scale);
    F sum = S::zero();
    for (int64_t i = 0; i < width; i += 16) {
      const int64_t left = width - i;
      const F g = S::mul(M::load(dy + i, left), S::add(M::load(w + i, left), added));
      sum = S::fma(g, S::mul(M::load(x + i, left), s), sum);
    }
    const F mean = S::set1(S::reduce_sum(sum) / static_cast<float>(width));
    for (int64_t i = 0; i < width; i += 16) {
      const int64_t left = width - i;
      const F d = M::load(dy + i, left);
      const F n = S::mul(M::load(x + i, left), s);
      if (dw != nullptr) M::store(dw + i, S::fma(d, n, M::load(dw + i, left)), left);
      const F g = S::sub(S::mul(d, S::add(M::load(w + i, left), added)), S::mul(n, mean));
      M::store(dx + i, S::mul(g, s), left);
    }
  }

  static void rms_norm_backward(const void* dy, const void* x, const void* w, void* dx, float* dw, int64_t rows,
                                const NormArgs& args) {
    with_elem(args.elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = r * args.width;
        norm_row_backward(static_cast<const T*>(dy) + at, static_cast<const T*>(x) + at, static_cast<const T*>(w),
                          static_cast<T*>(dx) + at, dw, args.width, args.eps, args.offset);
      }
    });
  }

  // Computes y = rotate(x / rms * w): y1 = n1 cos - n2 sin, y2 = n2 cos + n1 sin over the two halves (HF rotate_half).
  template <typename T>
  static void norm_rope_head(const T* x, const T* w, const float* cos_sin, T* y, const RopeArgs& a) {
    const int64_t width = a.head_dim, half = width / 2;
    const F scale = S::set1(inverse_rms(x, width, a.eps)), offset = S::set1(static_cast<float>(a.offset));
    for (int64_t i = 0; i < half; i += 16) {
      const int64_t left = half - i;
      const F n1 = S::mul(S::mul(M::load(x + i, left), scale), S::add(M::load(w + i, left), offset));
      const F n2 = S::mul(S::mul(M::load(x + half + i, left), scale), S::add(M::load(w + half + i, left), offset));
      const F c = M::load(cos_sin + i, left);
      const F s = M::load(cos_sin + half + i, left);
      M::store(y + i, S::sub(S::mul(n1, c), S::mul(n2, s)), left);
      M::store(y + half + i, S::add(S::mul(n2, c), S::mul(n1, s)), left);
    }
  }

  // Goes back through the rotation (its transpose) into `rotated`, then through the norm.
  template <typename T>
  static void norm_rope_head_backward(const T* dy, const T* x, const T* w, const float* cos_sin, T* dx, float* dw,
                                      const RopeArgs& a) {
    constexpr int64_t kMaxHeadDim = 512;
    float rotated[kMaxHeadDim];
    float xf[kMaxHeadDim], wf[kMaxHeadDim], df[kMaxHeadDim];
    const int64_t width = a.head_dim, half = width / 2;
    for (int64_t i = 0; i < half; i += 16) {
      const int64_t left = half - i;
      const F d1 = M::load(dy + i, left);
      const F d2 = M::load(dy + half + i, left);
      const F c = M::load(cos_sin + i, left);
      const F s = M::load(cos_sin + half + i, left);
      M::store(rotated + i, S::add(S::mul(d1, c), S::mul(d2, s)), left);
      M::store(rotated + half + i, S::sub(S::mul(d2, c), S::mul(d1, s)), left);
    }
    for (int64_t i = 0; i < width; i += 16) {
      M::store(xf + i, M::load(x + i, width - i), width - i);
      M::store(wf + i, M::load(w + i, width - i), width - i);
    }
    norm_row_backward(rotated, xf, wf, df, dw, width, a.eps, a.offset);
    for (int64_t i = 0; i < width; i += 16) M::store(dx + i, M::load(df + i, width - i), width - i);
  }

  static void qk_norm_rope(const void* qkv, const void* q_norm, const void* k_norm, const float* const* cos_sin,
                           void* q, void* k, void* v, int64_t rows, const RopeArgs& a) {
    with_elem(a.elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t width = a.head_dim, q_width = a.num_heads * width, kv_width = a.num_kv_heads * width;
      for (int64_t t = 0; t < rows; ++t) {
        const T* row = static_cast<const T*>(qkv) + t * (q_width + 2 * kv_width);
        T* out_q = static_cast<T*>(q) + t * q_width;
        T* out_k = static_cast<T*>(k) + t * kv_width;
        T* out_v = static_cast<T*>(v) + t * kv_width;
        for (int64_t h = 0; h < a.num_heads; ++h)
          norm_rope_head(row + h * width, static_cast<const T*>(q_norm), cos_sin[t], out_q + h * width, a);
        row += q_width;
        for (int64_t h = 0; h < a.num_kv_heads; ++h)
          norm_rope_head(row + h * width, static_cast<const T*>(k_norm), cos_sin[t], out_k + h * width, a);
        __builtin_memcpy(out_v, row + kv_width, sizeof(T) * static_cast<size_t>(kv_width));
      }
    });
  }

  static void qk_norm_rope_backward(const void* dq, const void* dk, const void* dv, const void* qkv, const void* q_norm,
                                    const void* k_norm, const float* const* cos_sin, void* dqkv, float* dq_norm,
                                    float* dk_norm, int64_t rows, const RopeArgs& a) {
    with_elem(a.elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t width = a.head_dim, q_width = a.num_heads * width, kv_width = a.num_kv_heads * width;
      for (int64_t t = 0; t < rows; ++t) {
        const T* row = static_cast<const T*>(qkv) + t * (q_width + 2 * kv_width);
        T* out = static_cast<T*>(dqkv) + t * (q_width + 2 * kv_width);
        const T* in_q = static_cast<const T*>(dq) + t * q_width;
        const T* in_k = static_cast<const T*>(dk) + t * kv_width;
        const T* in_v = static_cast<const T*>(dv) + t * kv_width;
        for (int64_t h = 0; h < a.num_heads; ++h)
          norm_rope_head_backward(in_q + h * width, row + h * width, static_cast<const T*>(q_norm), cos_sin[t],
                                  out + h * width, dq_norm, a);
        for (int64_t h = 0; h < a.num_kv_heads; ++h)
          norm_rope_head_backward(in_k + h * width, row + q_width + h * width, static_cast<const T*>(k_norm),
                                  cos_sin[t], out + q_width + h * width, dk_norm, a);
        __builtin_memcpy(out + q_width + kv_width, in_v, sizeof(T) * static_cast<size_t>(kv_width));
      }
    });
  }

  // Rotates alone: y1 = x1 cos - x2 sin, y2 = x2 cos + x1 sin. `direction` -1 turns back, which is its transpose.
  template <typename T>
  static void rotate_head(const T* x, const float* cos_sin, T* y, int64_t width, float direction) {
    const F sign = S::set1(direction);
    const int64_t half = width / 2;
    for (int64_t i = 0; i < half; i += 16) {
      const int64_t left = half - i;
      const F x1 = M::load(x + i, left);
      const F x2 = M::load(x + half + i, left);
      const F c = M::load(cos_sin + i, left);
      const F s = S::mul(M::load(cos_sin + half + i, left), sign);
      M::store(y + i, S::sub(S::mul(x1, c), S::mul(x2, s)), left);
      M::store(y + half + i, S::add(S::mul(x2, c), S::mul(x1, s)), left);
    }
  }

  static void rope(const void* qkv, const float* const* cos_sin, void* q, void* k, void* v, int64_t rows,
                   const RopeArgs& a) {
    with_elem(a.elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t width = a.head_dim, q_width = a.num_heads * width, kv_width = a.num_kv_heads * width;
      for (int64_t t = 0; t < rows; ++t) {
        const T* row = static_cast<const T*>(qkv) + t * (q_width + 2 * kv_width);
        T* out_q = static_cast<T*>(q) + t * q_width;
        T* out_k = static_cast<T*>(k) + t * kv_width;
        for (int64_t at = 0; at < q_width; at += width) rotate_head(row + at, cos_sin[t], out_q + at, width, 1.0F);
        row += q_width;
        for (int64_t at = 0; at < kv_width; at += width) rotate_head(row + at, cos_sin[t], out_k + at, width, 1.0F);
        __builtin_memcpy(static_cast<T*>(v) + t * kv_width, row + kv_width, sizeof(T) * static_cast<size_t>(kv_width));
      }
    });
  }

  static void rope_backward(const void* dq, const void* dk, const void* dv, const float* const* cos_sin, void* dqkv,
                            int64_t rows, const RopeArgs& a) {
    with_elem(a.elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const int64_t width = a.head_dim, q_width = a.num_heads * width, kv_width = a.num_kv_heads * width;
      for (int64_t t = 0; t < rows; ++t) {
        const T* in_q = static_cast<const T*>(dq) + t * q_width;
        const T* in_k = static_cast<const T*>(dk) + t * kv_width;
        T* out = static_cast<T*>(dqkv) + t * (q_width + 2 * kv_width);
        for (int64_t at = 0; at < q_width; at += width) rotate_head(in_q + at, cos_sin[t], out + at, width, -1.0F);
        out += q_width;
        for (int64_t at = 0; at < kv_width; at += width) rotate_head(in_k + at, cos_sin[t], out + at, width, -1.0F);
        __builtin_memcpy(out + kv_width, static_cast<const T*>(dv) + t * kv_width,
                         sizeof(T) * static_cast<size_t>(kv_width));
      }
    });
  }

  // These are Ops::silu_mul() and gelu_mul(), by the activation, and their backward, which leaves the result in dy.
  template <class Activation>
  static void gated(const void* gate_up, void* y, int64_t rows, int64_t width, Elem elem) {
    with_elem(elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      for (int64_t r = 0; r < rows; ++r) {
        const T* gate = static_cast<const T*>(gate_up) + r * 2 * width;
        const T* up = gate + width;
        T* out = static_cast<T*>(y) + r * width;
        for (int64_t i = 0; i < width; i += 16) {
          const int64_t left = width - i;
          const F g = M::load(gate + i, left);
          M::store(out + i, S::mul(S::mul(g, M::sigmoid(Activation::u(g))), M::load(up + i, left)), left);
        }
      }
    });
  }

  template <class Activation>
  static void gated_backward(void* dy, const void* gate_up, void* dgate_up, int64_t rows, int64_t width, Elem elem) {
    with_elem(elem == Elem::kF32, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      const F one = S::set1(1.0F);
      for (int64_t r = 0; r < rows; ++r) {
        const T* gate = static_cast<const T*>(gate_up) + r * 2 * width;
        const T* up = gate + width;
        T* d = static_cast<T*>(dy) + r * width;
        T* dgate = static_cast<T*>(dgate_up) + r * 2 * width;
        for (int64_t i = 0; i < width; i += 16) {
          const int64_t left = width - i;
          const F g = M::load(gate + i, left), u = M::load(up + i, left);
          const F s = M::sigmoid(Activation::u(g)), activated = S::mul(g, s);
          const F gradient = M::load(d + i, left);
          const F slope = S::mul(s, S::fma(Activation::times_du(g), S::sub(one, s), one));
          M::store(dgate + i, S::mul(S::mul(gradient, u), slope), left);
          M::store(dgate + width + i, S::mul(gradient, activated), left);
          M::store(d + i, S::mul(activated, u), left);
        }
      }
    });
  }
};

}  // namespace tandem::device::cpu
