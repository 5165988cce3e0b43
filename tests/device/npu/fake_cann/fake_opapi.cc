// A stand-in for libopapi.so, CANN's operators: an aclTensor is a view of the stand-in's memory, and an operator is one
// call of LibTorch on the CPU. It shows that torch_npu's own code turns each call of ours into an operator with the
// right types, shapes and scalars. It shows nothing of the operators of an NPU.
//
// An operator runs on the stream that it is given, so that it may run late (fake_cann.h).
#include <ATen/ATen.h>
#include <acl/acl_base.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

#include "tests/device/npu/fake_cann/fake_cann.h"

struct aclTensor {
  at::Tensor value;
};
struct aclScalar {
  at::Scalar value;
};
struct aclIntArray {
  std::vector<int64_t> values;
};
struct aclTensorList {
  std::vector<const aclTensor*> tensors;
};
struct aclOpExecutor {
  std::function<void()> run;
};

namespace {

constexpr int kUnsupported = 161002;

std::optional<at::ScalarType> dtype_of(aclDataType type) {
  switch (type) {
    case ACL_FLOAT: return at::kFloat;
    case ACL_BF16: return at::kBFloat16;
    case ACL_FLOAT16: return at::kHalf;
    case ACL_DOUBLE: return at::kDouble;
    case ACL_INT8: return at::kChar;
    case ACL_UINT8: return at::kByte;
    case ACL_INT16: return at::kShort;
    case ACL_INT32: return at::kInt;
    case ACL_INT64: return at::kLong;
    case ACL_BOOL: return at::kBool;
    default: return std::nullopt;
  }
}

// Handles that torch_npu has destroyed while an operator that uses them may still be queued.
class Graveyard {
 public:
  void began() { ++num_queued_; }
  void ended() { --num_queued_; }
  void bury(std::function<void()> free_handle) {
    const std::lock_guard lock(mutex_);
    buried_.push_back(std::move(free_handle));
    if (num_queued_ > 0) return;
    for (const auto& free_one : buried_) free_one();
    buried_.clear();
  }

 private:
  std::atomic<int64_t> num_queued_ = 0;
  std::mutex mutex_;
  std::vector<std::function<void()>> buried_;
};

Graveyard& graveyard() {
  static Graveyard& it = *new Graveyard;
  return it;
}

int queue(aclOpExecutor* executor, void* stream) {
  return fake_cann::enqueue(stream, [executor] {
    const at::AutoDispatchBelowADInplaceOrView as_a_kernel;
    int result = 0;
    try {
      executor->run();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "fake_opapi: %s\n", error.what());
      result = kUnsupported;
    }
    delete executor;
    graveyard().ended();
    return result;
  });
}

const at::Tensor& t(const aclTensor* tensor) { return tensor->value; }
at::Tensor f(const aclTensor* tensor) { return tensor->value.to(at::kFloat); }

// LibTorch's products on the CPU give a row other bits among other rows. Where an option asks for it, each row is
// multiplied alone, as a device would whose rows do not depend on their neighbours.
at::Tensor product_of(const at::Tensor& a, const at::Tensor& b) {
  if (fake_cann::option("products") == "zeros") return at::zeros({a.size(0), b.size(1)});
  if (fake_cann::option("products") != "rows") return at::mm(a, b);
  const at::Tensor other = b.clone(at::MemoryFormat::Contiguous);  // bits may depend on where operands begin
  std::vector<at::Tensor> rows;
  for (int64_t row = 0; row < a.size(0); ++row) rows.push_back(at::mm(a.narrow(0, row, 1).clone(), other));
  return rows.empty() ? at::mm(a, b) : at::cat(rows);
}
// beta c + alpha a b; c is not read where beta is 0.
at::Tensor sum_with_product(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, const at::Scalar& beta,
                            const at::Scalar& alpha) {
  if (fake_cann::option("products") != "rows") return at::addmm(c, a, b, beta, alpha);
  const at::Tensor product = product_of(a, b).mul_(alpha);
  return beta.toDouble() == 0 ? product : product.add_(c.mul(beta));
}
at::Tensor products_of(const at::Tensor& a, const at::Tensor& b) {
  std::vector<at::Tensor> products;
  for (int64_t i = 0; i < a.size(0); ++i) products.push_back(product_of(a[i], b[i]));
  return fake_cann::option("products") == "rows" && !products.empty() ? at::stack(products) : at::bmm(a, b);
}

c10::List<std::optional<at::Tensor>> indices(const aclTensorList* list) {
  c10::List<std::optional<at::Tensor>> result;
  for (const aclTensor* const index : list->tensors) {
    const bool is_given = index != nullptr && index->value.numel() > 0;
    result.push_back(is_given ? std::optional(index->value) : std::nullopt);
  }
  return result;
}

}  // namespace

// An operator has two functions: the first plans it, the second queues it. RUNS() is the body of the first, around what
// happens when the stream comes to it.
#define OPERATOR(name, ...)                                                                                       \
  extern "C" int name(void*, uint64_t, aclOpExecutor* executor, void* stream) { return queue(executor, stream); } \
  extern "C" int name##GetWorkspaceSize(__VA_ARGS__, uint64_t* workspace, aclOpExecutor** executor)
#define RUNS(...)                                      \
  *workspace = 0;                                      \
  graveyard().began();                                 \
  *executor = new aclOpExecutor{[=] { __VA_ARGS__; }}; \
  return 0

using CT = const aclTensor*;
using CS = const aclScalar*;
using CI = const aclIntArray*;
using CL = const aclTensorList*;

// Made, filled, copied.
OPERATOR(aclnnArange, CS a, CS b, CS c, CT o) {
  RUNS(t(o).copy_(at::arange(a->value, b->value, c->value, t(o).options())));
}
OPERATOR(aclnnCast, CT a, aclDataType, CT o) { RUNS(t(o).copy_(t(a))); }
OPERATOR(aclnnCat, CL l, int64_t d, CT o) {
  RUNS(std::vector<at::Tensor> all; for (CT a : l->tensors) all.push_back(t(a)); t(o).copy_(at::cat(all, d)));
}
OPERATOR(aclnnInplaceCopy, CT o, CT a) { RUNS(t(o).copy_(t(a))); }
OPERATOR(aclnnInplaceFillScalar, CT o, CS s) { RUNS(t(o).fill_(s->value)); }
OPERATOR(aclnnInplaceOne, CT o) { RUNS(t(o).fill_(1)); }
OPERATOR(aclnnInplaceZero, CT o) { RUNS(t(o).zero_()); }

// Products, with sums in float32.
OPERATOR(aclnnAddmm, CT c, CT a, CT b, CS beta, CS alpha, CT o, int8_t) {
  RUNS(t(o).copy_(sum_with_product(f(c), f(a), f(b), beta->value, alpha->value)));
}
OPERATOR(aclnnBatchMatMul, CT a, CT b, CT o, int8_t) { RUNS(t(o).copy_(products_of(f(a), f(b)))); }
OPERATOR(aclnnInplaceAddmm, CT c, CT a, CT b, CS beta, CS alpha, int8_t) {
  RUNS(t(c).copy_(sum_with_product(f(c), f(a), f(b), beta->value, alpha->value)));
}
OPERATOR(aclnnMatmul, CT a, CT b, CT o, int8_t) { RUNS(t(o).copy_(at::matmul(f(a), f(b)))); }
OPERATOR(aclnnMm, CT a, CT b, CT o, int8_t) { RUNS(t(o).copy_(product_of(f(a), f(b)))); }

// Element by element.
OPERATOR(aclnnAdd, CT a, CT b, CS s, CT o) { RUNS(t(o).copy_(at::add(t(a), t(b), s->value))); }
OPERATOR(aclnnAdds, CT a, CS b, CS s, CT o) { RUNS(t(o).copy_(at::add(t(a), b->value, s->value))); }
OPERATOR(aclnnBitwiseNot, CT a, CT o) { RUNS(t(o).copy_(at::bitwise_not(t(a)))); }
OPERATOR(aclnnClamp, CT a, CS low, CS high, CT o) {
  RUNS(t(o).copy_(at::clamp(t(a), low ? std::optional(low->value) : std::nullopt,
                            high ? std::optional(high->value) : std::nullopt)));
}
OPERATOR(aclnnClampMin, CT a, CS b, CT o) { RUNS(t(o).copy_(at::clamp_min(t(a), b->value))); }
OPERATOR(aclnnCos, CT a, CT o) { RUNS(t(o).copy_(at::cos(t(a)))); }
OPERATOR(aclnnDiv, CT a, CT b, CT o) { RUNS(t(o).copy_(at::div(t(a), t(b)))); }
OPERATOR(aclnnDivMods, CT a, CS b, int mode, CT o) {
  RUNS(t(o).copy_(at::div(t(a), b->value, mode == 2 ? "floor" : "trunc")));
}
OPERATOR(aclnnDivs, CT a, CS b, CT o) { RUNS(t(o).copy_(at::div(t(a), b->value))); }
OPERATOR(aclnnExp, CT a, CT o) { RUNS(t(o).copy_(at::exp(t(a)))); }
OPERATOR(aclnnGeScalar, CT a, CS b, CT o) { RUNS(t(o).copy_(at::ge(t(a), b->value))); }
OPERATOR(aclnnGtScalar, CT a, CS b, CT o) { RUNS(t(o).copy_(at::gt(t(a), b->value))); }
OPERATOR(aclnnGtTensor, CT a, CT b, CT o) { RUNS(t(o).copy_(at::gt(t(a), t(b)))); }
OPERATOR(aclnnInplaceAdd, CT a, CT b, CS s) { RUNS(t(a).add_(t(b), s->value)); }
OPERATOR(aclnnInplaceAddcmul, CT a, CT b, CT c, CS s) { RUNS(t(a).addcmul_(t(b), t(c), s->value)); }
OPERATOR(aclnnInplaceAdds, CT a, CS b, CS s) { RUNS(t(a).add_(b->value, s->value)); }
OPERATOR(aclnnInplaceDiv, CT a, CT b) { RUNS(t(a).div_(t(b))); }
OPERATOR(aclnnInplaceDivs, CT a, CS b) { RUNS(t(a).div_(b->value)); }
OPERATOR(aclnnInplaceExp, CT a) { RUNS(t(a).exp_()); }
OPERATOR(aclnnInplaceLogicalOr, CT a, CT b) { RUNS(t(a).logical_or_(t(b))); }
OPERATOR(aclnnInplaceMaskedFillScalar, CT a, CT m, CS s) { RUNS(t(a).masked_fill_(t(m), s->value)); }
OPERATOR(aclnnInplaceMaskedFillTensor, CT a, CT m, CT v) { RUNS(t(a).masked_fill_(t(m), t(v))); }
OPERATOR(aclnnInplaceMul, CT a, CT b) { RUNS(t(a).mul_(t(b))); }
OPERATOR(aclnnInplaceMuls, CT a, CS b) { RUNS(t(a).mul_(b->value)); }
OPERATOR(aclnnInplaceNanToNum, CT a, float nan, float above, float below) { RUNS(t(a).nan_to_num_(nan, above, below)); }
OPERATOR(aclnnInplaceRound, CT a) { RUNS(t(a).round_()); }
OPERATOR(aclnnRound, CT a, CT o) { RUNS(t(o).copy_(at::round(t(a)))); }
OPERATOR(aclnnInplacePowTensorScalar, CT a, CS b) { RUNS(t(a).pow_(b->value)); }
OPERATOR(aclnnInplaceSub, CT a, CT b, CS s) { RUNS(t(a).sub_(t(b), s->value)); }
OPERATOR(aclnnInplaceSubs, CT a, CS b, CS s) { RUNS(t(a).sub_(b->value, s->value)); }
OPERATOR(aclnnLog, CT a, CT o) { RUNS(t(o).copy_(at::log(t(a)))); }
OPERATOR(aclnnLtScalar, CT a, CS b, CT o) { RUNS(t(o).copy_(at::lt(t(a), b->value))); }
OPERATOR(aclnnMaximum, CT a, CT b, CT o) { RUNS(t(o).copy_(at::maximum(t(a), t(b)))); }
OPERATOR(aclnnMul, CT a, CT b, CT o) { RUNS(t(o).copy_(at::mul(t(a), t(b)))); }
OPERATOR(aclnnMuls, CT a, CS b, CT o) { RUNS(t(o).copy_(at::mul(t(a), b->value))); }
OPERATOR(aclnnNeg, CT a, CT o) { RUNS(t(o).copy_(at::neg(t(a)))); }
OPERATOR(aclnnPowTensorScalar, CT a, CS b, CT o) { RUNS(t(o).copy_(at::pow(t(a), b->value))); }
OPERATOR(aclnnRemainderTensorScalar, CT a, CS b, CT o) { RUNS(t(o).copy_(at::remainder(t(a), b->value))); }
OPERATOR(aclnnRsqrt, CT a, CT o) { RUNS(t(o).copy_(at::rsqrt(t(a)))); }
OPERATOR(aclnnRsubs, CT a, CS b, CS s, CT o) { RUNS(t(o).copy_(at::rsub(t(a), b->value, s->value))); }
OPERATOR(aclnnSWhere, CT c, CT a, CT b, CT o) { RUNS(t(o).copy_(at::where(t(c), t(a), t(b)))); }
OPERATOR(aclnnSigmoid, CT a, CT o) { RUNS(t(o).copy_(at::sigmoid(t(a)))); }
OPERATOR(aclnnSin, CT a, CT o) { RUNS(t(o).copy_(at::sin(t(a)))); }
OPERATOR(aclnnSqrt, CT a, CT o) { RUNS(t(o).copy_(at::sqrt(t(a)))); }
OPERATOR(aclnnSub, CT a, CT b, CS s, CT o) { RUNS(t(o).copy_(at::sub(t(a), t(b), s->value))); }
OPERATOR(aclnnSubs, CT a, CS b, CS s, CT o) { RUNS(t(o).copy_(at::sub(t(a), b->value, s->value))); }

// Over dims.
OPERATOR(aclnnAll, CT a, CI d, bool keep, CT o) {
  RUNS(t(o).copy_(d->values.empty() ? at::all(t(a)) : at::all(t(a), d->values, keep)));
}
OPERATOR(aclnnAmax, CT a, CI d, bool keep, CT o) { RUNS(t(o).copy_(at::amax(t(a), d->values, keep))); }
OPERATOR(aclnnAmin, CT a, CI d, bool keep, CT o) { RUNS(t(o).copy_(at::amin(t(a), d->values, keep))); }
OPERATOR(aclnnArgMax, CT a, int64_t d, bool keep, CT o) { RUNS(t(o).copy_(at::argmax(t(a), d, keep))); }
OPERATOR(aclnnMean, CT a, CI d, bool keep, aclDataType, CT o) { RUNS(t(o).copy_(at::mean(t(a), d->values, keep))); }
OPERATOR(aclnnReduceSum, CT a, CI d, bool keep, aclDataType type, CT o) {
  RUNS(t(o).copy_(at::sum(t(a), d->values, keep, dtype_of(type))));
}

// By indices.
OPERATOR(aclnnGather, CT a, int64_t d, CT i, CT o) { RUNS(t(o).copy_(at::gather(t(a), d, t(i)))); }
OPERATOR(aclnnIndex, CT a, CL i, CT o) { RUNS(t(o).copy_(at::index(t(a), indices(i)))); }
OPERATOR(aclnnIndexAdd, CT a, int64_t d, CT i, CT s, CS alpha, CT o) {
  RUNS(t(o).copy_(at::index_add(t(a), d, t(i), t(s), alpha->value)));
}
OPERATOR(aclnnIndexPutImpl, CT a, CL i, CT v, bool accumulate, bool) {
  RUNS(t(a).index_put_(indices(i), t(v), accumulate));
}
OPERATOR(aclnnIndexSelect, CT a, int64_t d, CT i, CT o) { RUNS(t(o).copy_(at::index_select(t(a), d, t(i)))); }
OPERATOR(aclnnInplaceIndexCopy, CT a, int64_t d, CT i, CT s) { RUNS(t(a).index_copy_(d, t(i), t(s))); }
OPERATOR(aclnnInplaceScatter, CT a, int64_t d, CT i, CT s, int64_t) { RUNS(t(a).scatter_(d, t(i), t(s))); }
OPERATOR(aclnnScatter, CT a, int64_t d, CT i, CT s, int64_t, CT o) {
  RUNS(t(o).copy_(at::scatter(t(a), d, t(i), t(s))));
}
OPERATOR(aclnnSearchSorted, CT sorted, CT a, bool, bool right, CT, CT o) {
  RUNS(t(o).copy_(at::searchsorted(t(sorted), t(a), /*out_int32=*/false, right)));
}
OPERATOR(aclnnSort, CT a, bool stable, int64_t d, bool descending, CT values, CT order) {
  RUNS(const auto sorted = at::sort(t(a), stable, d, descending); t(values).copy_(std::get<0>(sorted));
       t(order).copy_(std::get<1>(sorted)));
}
OPERATOR(aclnnScatterAdd, CT a, int64_t d, CT i, CT s, CT o) { RUNS(t(o).copy_(at::scatter_add(t(a), d, t(i), t(s)))); }

extern "C" {
aclTensor* aclCreateTensor(const int64_t* sizes, uint64_t num_dims, aclDataType type, const int64_t* strides,
                           int64_t offset, aclFormat /*format*/, const int64_t* /*storage*/, uint64_t /*num_storage*/,
                           void* data) {
  const std::optional<at::ScalarType> dtype = dtype_of(type);
  if (!dtype) return nullptr;
  auto* const first = static_cast<char*>(data) + offset * static_cast<int64_t>(at::elementSize(*dtype));
  return new aclTensor{at::from_blob(first, {sizes, num_dims}, {strides, num_dims}, at::TensorOptions(*dtype))};
}
int aclDestroyTensor(const aclTensor* tensor) {
  graveyard().bury([tensor] { delete tensor; });
  return 0;
}
aclScalar* aclCreateScalar(void* value, aclDataType type) {
  return new aclScalar{at::from_blob(value, {}, at::TensorOptions(dtype_of(type).value())).item()};
}
int aclDestroyScalar(const aclScalar* scalar) {
  graveyard().bury([scalar] { delete scalar; });
  return 0;
}
aclIntArray* aclCreateIntArray(const int64_t* values, uint64_t count) {
  return new aclIntArray{{values, values + count}};
}
int aclDestroyIntArray(const aclIntArray* array) {
  graveyard().bury([array] { delete array; });
  return 0;
}
aclTensorList* aclCreateTensorList(const aclTensor* const* tensors, uint64_t count) {
  return new aclTensorList{{tensors, tensors + count}};
}
// A list owns its tensors.
int aclDestroyTensorList(const aclTensorList* list) {
  graveyard().bury([list] {
    for (const aclTensor* const tensor : list->tensors) delete tensor;
    delete list;
  });
  return 0;
}
int aclDestroyAclOpExecutor(aclOpExecutor* /*executor*/) { return 0; }
int InitHugeMemThreadLocal(void* /*unused*/, bool /*unused*/) { return 0; }
void UnInitHugeMemThreadLocal(void* /*unused*/, bool /*unused*/) {}
void ReleaseHugeMem(void* /*unused*/, bool /*unused*/) {}
}
