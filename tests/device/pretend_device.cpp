// Device of tests: memory and arithmetic of the host behind the rules that CUDA has for tensors of two devices.
//
// Tensors on it refuse CPU tensors, except numbers (no dimensions) in pointwise operations and indices, and generators
// of the CPU. Its own generators keep a seed and a count in 16 bytes, as those of CUDA do.
#include <cstdlib>
#include <cstring>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/set_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace {

using c10::IValue;
constexpr auto KIND = c10::DeviceType::PrivateUse1;
const c10::Device DEVICE(KIND, 0);

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = std::malloc(bytes ? bytes : 1);
    return {data, data, &std::free, DEVICE};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }
};
Memory memory;
REGISTER_ALLOCATOR(KIND, &memory);

struct Guard final : c10::impl::NoOpDeviceGuardImpl<KIND> {
  c10::Device exchangeDevice(c10::Device) const override { return DEVICE; }
  c10::Device getDevice() const override { return DEVICE; }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, DEVICE); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

struct Draws final : c10::GeneratorImpl {
  Draws() : GeneratorImpl(DEVICE, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  uint64_t state[2] = {67280421310721, 0};  // seed, how often drawn
  void set_current_seed(uint64_t seed) override { state[0] = seed, state[1] = 0; }
  void set_offset(uint64_t offset) override { state[1] = offset; }
  uint64_t get_offset() const override { return state[1]; }
  uint64_t current_seed() const override { return state[0]; }
  uint64_t seed() override { return set_current_seed(c10::detail::getNonDeterministicRandom(false)), state[0]; }
  void set_state(const c10::TensorImpl& given) override {
    TORCH_CHECK_TYPE(given.device().is_cpu() && given.dtype() == at::kByte, "RNG state must be a torch.ByteTensor");
    TORCH_CHECK(given.numel() == sizeof(state), "RNG state is wrong size");
    std::memcpy(state, given.data(), sizeof(state));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto out = at::detail::empty_cpu({sizeof(state)}, at::kByte);
    std::memcpy(out.mutable_data_ptr(), state, sizeof(state));
    return out.getIntrusivePtr();
  }
  Draws* clone_impl() const override {
    auto out = new Draws();
    std::memcpy(out->state, state, sizeof(state));
    return out;
  }
  at::Generator next() { return at::make_generator<at::CPUGeneratorImpl>(state[0] * 6364136223846793005u + state[1]++); }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  at::Generator draws = at::make_generator<Draws>();
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return draws; }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Draws>(); }
};
Hooks hooks;

at::Tensor over(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto out = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) out._set_conj(true);
  if (like.is_neg()) out._set_neg(true);
  return out;
}

void* data_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl()->mutable_data(); }

/// The tensor of the CPU with the memory of one of this device.
at::Tensor lent(const at::Tensor& tensor) {
  auto data = c10::DataPtr(data_of(tensor), c10::Device(at::kCPU));
  c10::Storage storage(
      c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), std::move(data), c10::GetCPUAllocator(), true);
  return over(std::move(storage), tensor, c10::DispatchKey::CPU);
}

/// The memory of a tensor of the CPU for this device.
c10::DataPtr taken(const at::Tensor& tensor) {
  return {data_of(tensor), new at::Tensor(tensor), [](void* held) { delete static_cast<at::Tensor*>(held); }, DEVICE};
}

struct Call {
  const c10::OperatorHandle& op;
  bool mixed_numbers = op.hasTag(at::Tag::pointwise) || named("foreach") || named("index_put") || named("masked_fill") ||
      named("aten::fill_") || named("aten::where") || named("lerp") || named("clamp") || named("floor_divide");
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs;  // lent, ours

  bool named(const char* part) const { return op.schema().name().find(part) != std::string::npos; }

  at::Tensor argument(const at::Tensor& tensor, const c10::Argument& of) {
    if (!tensor.defined()) return tensor;
    if (tensor.device().type() == KIND) {
      pairs.emplace_back(lent(tensor), tensor);
      return pairs.back().first;
    }
    bool written = of.alias_info() && of.alias_info()->isWrite();
    bool index = of.name() == "indices" && named("aten::") && (named("index") || named("_index_put"));
    bool host = named("_pack_padded_sequence") && of.name() == "lengths";
    TORCH_CHECK(
        !written && (index || host || (tensor.dim() == 0 && (mixed_numbers || tensor.unsafeGetTensorImpl()->is_wrapped_number()))),
        "Expected all tensors to be on the same device, but found at least two devices, ", DEVICE, " and ",
        tensor.device(), "! (argument ", of.name(), " of ", op.schema().name(), ")");
    return tensor;
  }

  at::Tensor result(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    for (auto& [host, ours] : pairs) {
      if (host.is_same(tensor)) return ours;
      if (data_of(host) == data_of(tensor) && tensor.storage().nbytes() > 0)
        return over(ours.storage(), tensor, c10::DispatchKey::PrivateUse1);
    }
    c10::Storage storage(c10::Storage::use_byte_size_t(), tensor.storage().nbytes(), taken(tensor), &memory, true);
    return over(std::move(storage), tensor, c10::DispatchKey::PrivateUse1);
  }

  /// What was resized while it was lent.
  void back() {
    for (auto& [host, ours] : pairs) {
      if (data_of(host) != data_of(ours)) {
        auto* storage = ours.storage().unsafeGetStorageImpl();
        storage->set_data_ptr_noswap(taken(host));
        storage->set_nbytes(host.storage().nbytes());
      }
      if (!host.sizes().equals(ours.sizes()) || !host.strides().equals(ours.strides()))
        ours.unsafeGetTensorImpl()->set_sizes_and_strides(host.sizes(), host.strides(), host.storage_offset());
    }
  }
};

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  const auto& schema = op.schema();
  Call call{op};
  const auto first = stack->size() - schema.arguments().size();
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    IValue& value = (*stack)[first + i];
    const auto& of = schema.arguments()[i];
    if (value.isTensor()) {
      value = call.argument(value.toTensor(), of);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(call.argument(item, of));
      value = c10::List<at::Tensor>(list);
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& item : value.toOptionalTensorList().vec())
        list.push_back(item ? std::optional(call.argument(*item, of)) : item);
      value = list;
    } else if (value.isGenerator()) {
      const auto& generator = value.toGenerator();
      TORCH_CHECK(
          generator.device().type() == KIND, "Expected a '", DEVICE.type(), "' device type for generator but found '",
          generator.device().type(), "'");
      value = generator.get<Draws>()->next();
    } else if (value.isDevice()) {
      value = c10::Device(at::kCPU);
    } else if (value.isNone() && of.name() == "generator") {
      value = hooks.draws.get<Draws>()->next();
    }
  }
  auto& dispatcher = c10::Dispatcher::singleton();
  if (call.named("convolution_backward_overrideable")) {
    const auto biases = (*stack)[first].toTensor().sizes()[1];
    stack->insert(stack->begin() + first + 3, IValue(c10::List<int64_t>({biases})));
    dispatcher.findSchemaOrThrow("aten::convolution_backward", "").callBoxed(stack);
  } else if (call.named("convolution_overrideable")) {
    dispatcher.findSchemaOrThrow("aten::convolution", "").callBoxed(stack);
  } else {
    op.callBoxed(stack);
  }
  call.back();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); i++) {
    IValue& value = (*stack)[i];
    if (value.isTensor()) {
      value = call.result(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& item : value.toTensorVector()) list.push_back(call.result(item));
      value = c10::List<at::Tensor>(list);
    }
  }
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool wait) {
  auto host = [](const at::Tensor& t) { return t.device().type() == KIND ? lent(t) : t; };
  at::AutoDispatchBelowADInplaceOrView below;
  auto to = host(self);
  at::native::copy_(to, host(from), wait);
  return self;
}

at::Tensor empty(
    c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>, std::optional<at::Device>,
    std::optional<bool>, std::optional<at::MemoryFormat> format) {
  constexpr auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
    std::optional<at::Device>, std::optional<bool>) {
  constexpr auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool wait) {
  at::Tensor out = to;
  return copy_(out, from, wait);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("copy_", &copy_);
  library.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&run>());
  library.impl("convolution_backward_overrideable", torch::CppFunction::makeFromBoxedFunction<&run>());
  library.impl("_copy_from", &copy_from);
  library.impl("set_.source_Storage", static_cast<at::Tensor& (*)(at::Tensor&, at::Storage)>(&at::native::set_));
  library.impl("set_.source_Tensor", &at::native::set_tensor_);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

const bool REGISTERED = (at::RegisterPrivateUse1HooksInterface(&hooks), true);

}  // namespace
