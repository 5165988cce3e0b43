#include "device/cuda/attention/cudnn_attention.h"

#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "device/cuda/attention/attention_check.h"
#include "device/cuda/device_buffer.h"
#include "device/cuda/ordered_product.h"

namespace tandem::device::cuda {
namespace {

namespace fe = cudnn_frontend;
using fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<Tensor_attributes>;

// The relative error of a gradient above which a plan is refused; that of rounding is 0.3 %.
constexpr double kMostError = 0.01;
constexpr int64_t kElementBytes = 2;
constexpr size_t kMostBuilders = 8;  // threads that build plans

void check_cuda(cudaError_t error) {
  TANDEM_ENV_CHECK(error == cudaSuccess, "the gradient of attention failed on the GPU:", cudaGetErrorString(error));
}

enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kDout,
  kLse,
  kDq,
  kDk,
  kDv,
  kRows,
  kKeys,
  kQueryPlace,
  kKeyPlace,
  kLsePlace
};

// The places of a call in its words: numbers of rows and of keys [parts], then the first element of each part in
// queries, keys and logarithms [parts + 1]. Each begins at 16 bytes.
struct Places {
  explicit Places(int64_t parts) {
    int64_t end = 0;
    const auto take = [&end](int64_t words) { return std::exchange(end, end + (words + 3) / 4 * 4); };
    rows = take(parts);
    keys = take(parts);
    query = take(parts + 1);
    key = take(parts + 1);
    lse = take(parts + 1);
    num_words = end;
  }
  int64_t rows = 0, keys = 0, query = 0, key = 0, lse = 0, num_words = 0;
};

std::string words(const PartsShape& s) {
  const char* const form = s.form == PartForm::kCausal ? "causal" : "full";
  return fmt::format("{} {} parts of {} x {} with {} of {} KV heads of {} x {}", s.parts, form, s.rows, s.keys,
                     s.kv_heads, s.heads.num_kv_heads, s.heads.group, s.heads.head_dim);
}

}  // namespace

// The graph of one shape.
class CudnnAttention::Plan {
 public:
  explicit Plan(const PartsShape& shape) : shape_(shape) {}

  fe::error_t build(cudnnHandle_t handle) {
    const AttentionHeads& heads = shape_.heads;
    graph_.set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const TensorPointer query_place = int_tensor(kQueryPlace, shape_.parts + 1),
                        key_place = int_tensor(kKeyPlace, shape_.parts + 1),
                        lse_place = int_tensor(kLsePlace, shape_.parts + 1);
    const int64_t all_heads = heads.group * heads.num_kv_heads;
    const auto lay_out = [&](Tensor_attributes& tensor, bool is_key) {
      const int64_t most = is_key ? shape_.keys : shape_.rows,
                    in_call = is_key ? shape_.kv_heads : shape_.query_heads();
      const int64_t width = (is_key ? heads.num_kv_heads : all_heads) * heads.head_dim;
      tensor.set_dim({shape_.parts, in_call, most, heads.head_dim})
          .set_stride({most * width, heads.head_dim, width, 1})
          .set_ragged_offset(is_key ? key_place : query_place);
    };
    const auto input = [&](Uid uid, bool is_key) {
      Tensor_attributes tensor = Tensor_attributes().set_uid(uid);
      lay_out(tensor, is_key);
      return graph_.tensor(tensor);
    };
    const TensorPointer lse = graph_.tensor(Tensor_attributes()
                                                .set_uid(kLse)
                                                .set_data_type(fe::DataType_t::FLOAT)
                                                .set_dim({shape_.parts, shape_.query_heads(), shape_.rows, 1})
                                                .set_stride({shape_.rows * all_heads, 1, all_heads, 1})
                                                .set_ragged_offset(lse_place));
    auto attributes = fe::graph::SDPA_backward_attributes()
                          .set_name("attention_backward")
                          .set_attn_scale(1.0F / std::sqrt(static_cast<float>(heads.head_dim)))
                          .set_deterministic_algorithm(true)
                          .set_padding_mask(true)
                          .set_seq_len_q(int_tensor(kRows, shape_.parts))
                          .set_seq_len_kv(int_tensor(kKeys, shape_.parts));
    if (shape_.form == PartForm::kCausal) {
      attributes.set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    }
    const auto [dq, dk, dv] = graph_.sdpa_backward(input(kQ, false), input(kK, true), input(kV, true),
                                                   input(kOut, false), input(kDout, false), lse, attributes);
    for (const auto& [tensor, uid] : {std::pair{dq, kDq}, {dk, kDk}, {dv, kDv}}) {
      tensor->set_output(true).set_uid(uid);
      lay_out(*tensor, uid != kDq);
    }
    if (auto error = graph_.validate(); error.is_bad()) return error;
    if (auto error = graph_.build_operation_graph(handle); error.is_bad()) return error;
    if (auto error = graph_.create_execution_plans({fe::HeurMode_t::A}); error.is_bad()) return error;
    if (auto error = graph_.check_support(); error.is_bad()) return error;
    return graph_.build_plans();
  }

  fe::error_t get_workspace_bytes(int64_t& bytes) const { return graph_.get_workspace_size(bytes); }

  fe::error_t run(cudnnHandle_t handle, const PartsOperands& o, const int32_t* places, void* workspace) {
    const Places at(shape_.parts);
    const AttentionHeads& heads = shape_.heads;
    for (int64_t kv_head = 0; kv_head < heads.num_kv_heads; kv_head += shape_.kv_heads) {
      const int64_t key_bytes = kv_head * heads.head_dim * kElementBytes, query_bytes = key_bytes * heads.group;
      std::unordered_map<int64_t, void*> memory = {
          {kQ, moved(o.q_THK, query_bytes)},
          {kOut, moved(o.out_THK, query_bytes)},
          {kDout, moved(o.dout_THK, query_bytes)},
          {kDq, moved(o.dq_THK, query_bytes)},
          {kK, moved(o.k_nGK, key_bytes)},
          {kV, moved(o.v_nGK, key_bytes)},
          {kDk, moved(o.dk_nGK, key_bytes)},
          {kDv, moved(o.dv_nGK, key_bytes)},
          {kLse, moved(o.lse_TH, kv_head * heads.group * static_cast<int64_t>(sizeof(float)))},
          {kRows, moved(places + at.rows, 0)},
          {kKeys, moved(places + at.keys, 0)},
          {kQueryPlace, moved(places + at.query, 0)},
          {kKeyPlace, moved(places + at.key, 0)},
          {kLsePlace, moved(places + at.lse, 0)}};
      if (auto error = graph_.execute(handle, memory, workspace); error.is_bad()) return error;
    }
    return {};
  }

 private:
  // cuDNN takes all pointers as writable, and writes through those of its outputs alone.
  static void* moved(const void* address, int64_t bytes) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(address)) + bytes;
  }
  TensorPointer int_tensor(Uid uid, int64_t count) {
    return graph_.tensor(Tensor_attributes()
                             .set_uid(uid)
                             .set_dim({count, 1, 1, 1})
                             .set_stride({1, 1, 1, 1})
                             .set_data_type(fe::DataType_t::INT32));
  }

  const PartsShape shape_;
  fe::graph::Graph graph_;
};

int64_t num_place_words(int64_t parts) { return Places(parts).num_words; }

void append_place_words(const PartsCall& call, std::vector<int32_t>& words) {
  const Places at(call.shape.parts);
  const auto begin = static_cast<int64_t>(words.size());
  words.resize(words.size() + static_cast<size_t>(at.num_words));
  const AttentionHeads& heads = call.shape.heads;
  const int64_t key_width = heads.num_kv_heads * heads.head_dim;
  const auto set = [&](int64_t field, int64_t i, int64_t value) {
    words[static_cast<size_t>(begin + field + i)] = static_cast<int32_t>(value);
  };
  for (int64_t i = 0; i <= call.shape.parts; ++i) {
    // The last place is the end of the last part.
    const bool is_end = i == call.shape.parts;
    const AttentionPart& part = call.parts[static_cast<size_t>(is_end ? i - 1 : i)];
    const int64_t row = part.row + (is_end ? part.rows : 0), key = part.key + (is_end ? part.keys : 0);
    set(at.query, i, row * key_width * heads.group);
    set(at.key, i, key * key_width);
    set(at.lse, i, row * heads.num_kv_heads * heads.group);
    if (is_end) break;
    set(at.rows, i, part.rows);
    set(at.keys, i, part.keys);
  }
}

bool CudnnAttention::Before::operator()(const PartsShape& a, const PartsShape& b) const {
  const auto key = [](const PartsShape& s) {
    return std::tuple(s.form, s.parts, s.rows, s.keys, s.kv_heads, s.heads.group, s.heads.num_kv_heads,
                      s.heads.head_dim);
  };
  return key(a) < key(b);
}

CudnnAttention::CudnnAttention() = default;
CudnnAttention::~CudnnAttention() {
  plans_.clear();
  for (cudnnHandle_t handle : handles_) cudnnDestroy(handle);
}

std::unique_ptr<CudnnAttention> CudnnAttention::make() {
  int device = 0, major = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  return major == 9 ? std::unique_ptr<CudnnAttention>(new CudnnAttention) : nullptr;
}

std::string CudnnAttention::library() { return fmt::format("cuDNN {}", cudnnGetVersion()); }

bool CudnnAttention::covers(const std::vector<PartsCall>& calls, void* workspace, cudaStream_t stream) {
  NewPlans made;
  for (const PartsCall& call : calls) {
    if (!plans_.contains(call.shape)) made.try_emplace(call.shape);
  }
  build(made);
  for (auto& [shape, one] : made) {
    if (one.why.empty()) one.why = check(shape, *one.plan, workspace, stream);
    if (!one.why.empty()) {
      base::log_warning(
          "{} is not used for {} ({}): FlashAttention-2 computes the gradient of attention, which is slower", library(),
          words(shape), one.why);
      one.plan.reset();
    }
    plans_.emplace(shape, std::move(one.plan));
  }
  return std::ranges::all_of(calls, [&](const PartsCall& call) { return plans_.at(call.shape) != nullptr; });
}

// Each thread has a handle of its own, as cuDNN asks.
void CudnnAttention::build(NewPlans& made) {
  if (made.empty()) return;
  int device = 0;
  check_cuda(cudaGetDevice(&device));
  cudnnHandle_t handle = nullptr;
  while (handles_.size() < std::min(made.size(), kMostBuilders) && cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS) {
    handles_.push_back(handle);
  }
  std::vector<NewPlans::value_type*> waiting;
  for (auto& entry : made) waiting.push_back(&entry);
  if (handles_.empty()) {
    for (NewPlans::value_type* entry : waiting) entry->second.why = "it does not start";
    return;
  }
  std::atomic<size_t> next = 0;
  const auto build_some = [&](cudnnHandle_t own) {
    const bool has_device = cudaSetDevice(device) == cudaSuccess;  // of this thread
    for (size_t i = next++; i < waiting.size(); i = next++) {
      auto& [shape, one] = *waiting[i];
      one.plan = std::make_unique<Plan>(shape);
      if (fe::error_t error = one.plan->build(own); error.is_bad()) one.why = error.get_message();
      if (!has_device) one.why = "a thread cannot choose the GPU";
    }
  };
  std::vector<std::jthread> others;
  for (size_t i = 1; i < std::min(handles_.size(), waiting.size()); ++i) others.emplace_back(build_some, handles_[i]);
  build_some(handles_.front());
}

void CudnnAttention::run(const PartsShape& shape, const PartsOperands& operands, const int32_t* places, void* workspace,
                         cudaStream_t stream) {
  const auto found = plans_.find(shape);
  TANDEM_CHECK(found != plans_.end() && found->second != nullptr, "no plan for", words(shape));
  TANDEM_ENV_CHECK(cudnnSetStream(handles_.front(), stream) == CUDNN_STATUS_SUCCESS, library(), "refuses a stream");
  fe::error_t error = found->second->run(handles_.front(), operands, places, workspace);
  TANDEM_ENV_CHECK(error.is_good(), library(), "failed at the gradient of attention:", error.get_message());
}

// Returns what is wrong with the plan, or nothing. Its parts are smaller than it has room for and stand in descending
// order, with rows between them that nobody may touch. Whatever the workspace held must not matter.
std::string CudnnAttention::check(const PartsShape& shape, Plan& plan, void* workspace, cudaStream_t stream) {
  int64_t bytes = 0;
  if (fe::error_t error = plan.get_workspace_bytes(bytes); error.is_bad()) return error.get_message();
  if (bytes > workspace_bytes(shape)) {
    return fmt::format("its workspace is {} bytes, and {} were planned", bytes, int64_t{workspace_bytes(shape)});
  }
  constexpr int64_t kBetween = 16, kMostRows = 320;
  const int64_t most_rows = std::min(shape.rows, kMostRows);
  PartsCall call = {.shape = shape, .parts = std::vector<AttentionPart>(static_cast<size_t>(shape.parts))};
  int64_t num_rows = kBetween, num_keys = kBetween, part_rows = 0, part_keys = 0;
  for (int64_t i = shape.parts - 1; i >= 0; --i) {
    const int64_t rows = i == 0 ? most_rows : 1 + i % 19;
    int64_t keys = rows;
    if (shape.form == PartForm::kFull) keys = i == 0 ? std::min<int64_t>(shape.keys, 300) : 1 + i % 23;
    call.parts[static_cast<size_t>(i)] = {.row = num_rows, .rows = rows, .key = num_keys, .keys = keys};
    num_rows += rows + kBetween;
    num_keys += keys + kBetween;
    part_rows += rows;
    part_keys += keys;
  }
  const AttentionHeads& heads = shape.heads;
  const int64_t key_width = heads.num_kv_heads * heads.head_dim, query_width = key_width * heads.group;
  const int64_t query_bytes = num_rows * query_width * kElementBytes, key_bytes = num_keys * key_width * kElementBytes;
  std::vector<int32_t> place_words;
  append_place_words(call, place_words);
  const auto send = [](const DeviceBuffer& to, const auto& values) {
    check_cuda(cudaMemcpy(to.data(), values.data(), values.size() * sizeof values[0], cudaMemcpyHostToDevice));
  };
  const DeviceBuffer places(static_cast<int64_t>(place_words.size() * sizeof(int32_t))),
      parts(static_cast<int64_t>(call.parts.size() * sizeof(AttentionPart)));
  send(places, place_words);
  send(parts, call.parts);
  const CheckedParts checked = {.parts = parts.as<AttentionPart>(),
                                .num_parts = shape.parts,
                                .most_rows = std::ranges::max_element(call.parts, {}, &AttentionPart::rows)->rows,
                                .most_keys = std::ranges::max_element(call.parts, {}, &AttentionPart::keys)->keys,
                                .form = shape.form,
                                .heads = heads};

  const DeviceBuffer q(query_bytes), out(query_bytes), dout(query_bytes), k(key_bytes), v(key_bytes),
      lse(num_rows * heads.num_kv_heads * heads.group * static_cast<int64_t>(sizeof(float))), dq(query_bytes),
      dk(key_bytes), dv(key_bytes), dq_again(query_bytes), dk_again(key_bytes), dv_again(key_bytes),
      errors(sizeof(GradientErrors)), count(sizeof(unsigned long long));
  const auto fill = [&](const DeviceBuffer& buffer, int value, int64_t size) {
    check_cuda(cudaMemsetAsync(buffer.data(), value, static_cast<size_t>(size), stream));
  };
  constexpr int kNan = 0xff;
  for (const DeviceBuffer* buffer : {&q, &out, &dout, &dq, &dq_again}) fill(*buffer, kNan, query_bytes);
  for (const DeviceBuffer* buffer : {&k, &v, &dk, &dv, &dk_again, &dv_again}) fill(*buffer, kNan, key_bytes);
  check_cuda(draw_checked(checked, q.data(), k.data(), v.data(), out.data(), dout.data(), lse.as<float>(), stream));

  PartsOperands operands = {.q_THK = q.data(),
                            .k_nGK = k.data(),
                            .v_nGK = v.data(),
                            .out_THK = out.data(),
                            .dout_THK = dout.data(),
                            .lse_TH = lse.as<float>(),
                            .dq_THK = dq_again.data(),
                            .dk_nGK = dk_again.data(),
                            .dv_nGK = dv_again.data()};
  const auto run_after = [&](int value) {
    check_cuda(cudaMemsetAsync(workspace, value, static_cast<size_t>(bytes), stream));
    return plan.run(handles_.front(), operands, places.as<int32_t>(), workspace);
  };
  const auto differences = [&](const DeviceBuffer& a, const DeviceBuffer& b, int64_t size) {
    fill(count, 0, sizeof(unsigned long long));
    check_cuda(
        count_differences(a.data(), b.data(), false, size / kElementBytes, count.as<unsigned long long>(), stream));
    unsigned long long result = 0;
    check_cuda(cudaMemcpyAsync(&result, count.data(), sizeof result, cudaMemcpyDeviceToHost, stream));
    check_cuda(cudaStreamSynchronize(stream));
    return static_cast<int64_t>(result);
  };
  TANDEM_ENV_CHECK(cudnnSetStream(handles_.front(), stream) == CUDNN_STATUS_SUCCESS, library(), "refuses a stream");
  if (fe::error_t error = run_after(kNan); error.is_bad()) return error.get_message();
  // The second outputs still hold what all were filled with.
  operands.dq_THK = dq.data();
  operands.dk_nGK = dk.data();
  operands.dv_nGK = dv.data();
  if (differences(dq, dq_again, query_bytes) != part_rows * query_width ||
      differences(dk, dk_again, key_bytes) != part_keys * key_width ||
      differences(dv, dv_again, key_bytes) != part_keys * key_width) {
    return "it does not write the gradients of its parts, and nothing else";
  }
  if (fe::error_t error = run_after(0); error.is_bad()) return error.get_message();
  if (differences(dq, dq_again, query_bytes) + differences(dk, dk_again, key_bytes) +
          differences(dv, dv_again, key_bytes) !=
      0) {
    return "two runs gave other bits";
  }
  fill(errors, 0, sizeof(GradientErrors));
  check_cuda(compare_checked(checked, operands, errors.as<GradientErrors>(), stream));
  GradientErrors e = {};
  check_cuda(cudaMemcpyAsync(&e, errors.data(), sizeof e, cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  for (int i = 0; i < 3; ++i) {
    const double error = std::sqrt(e.errors[i] / e.squares[i]);
    if (!(error < kMostError)) return fmt::format("its gradient is {:.1f} % away from float64's", 100 * error);
  }
  return {};
}

}  // namespace tandem::device::cuda
