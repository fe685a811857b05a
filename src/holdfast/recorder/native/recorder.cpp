// The C++ recorder: intercepts every c10d operator and writes the trace file of core/trace_file.py.
//
// A boxed kernel wraps the backend's kernel of each c10d operator (torch 2.9 and later: it calls the
// kernel it replaced) or is registered at the Autograd key (earlier: it redispatches below itself;
// collectives on inference-mode tensors are then not recorded). DistributedDataParallel's reducer,
// FSDP2 and functional collectives all use these operators. Completion: a callback on the future of
// gloo's work; a work without a future (send, recv) is wrapped.

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>
#include <torch/version.h>

#include "trace.hpp"
#include "sites.hpp"

#define HOLDFAST_AT_BACKEND (TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 9))

namespace holdfast {

using torch::jit::Stack;

std::unordered_map<std::string, u32> group_numbers;

u32 group_number(c10d::ProcessGroup& group, c10::DeviceType device) {
  const std::string& name = group.getGroupName();
  std::lock_guard<std::mutex> hold(tables);
  auto known = group_numbers.find(name);
  if (known != group_numbers.end()) return known->second;
  u32 number = u32(std::min<u64>(group_numbers.size(), trace.group_count - 1));
  group_numbers.emplace(name, number);
  std::string backend = "?";
  try {
    backend = group.getBackend(device)->getBackendName();
  } catch (...) {  // without a backend for this device the call itself fails, with torch's error
  }
  note("G\t" + std::to_string(number) + "\t" + clean(backend.c_str()) + "\t" + clean(name.c_str()) + "\n");
  return number;
}

// ---- completion ----------------------------------------------------------------------------------------------------

// A work without a future completes when it has been waited for; all else is delegated.
struct WatchedWork : c10d::Work {
  c10::intrusive_ptr<c10d::Work> inner;
  u64 number;
  WatchedWork(c10::intrusive_ptr<c10d::Work> work, u64 n)
      : Work(-1, work->retrieveOpType()), inner(std::move(work)), number(n) {}
  bool finish_if(bool done) {
    if (done) finish_record(number, false);
    return done;
  }
  bool isCompleted() override { return finish_if(inner->isCompleted()); }
  bool isSuccess() const override { return inner->isSuccess(); }
  std::exception_ptr exception() const override { return inner->exception(); }
  int sourceRank() const override { return inner->sourceRank(); }
  std::vector<at::Tensor> result() override { return inner->result(); }
  void synchronize() override { inner->synchronize(); }
  void abort() override { inner->abort(); }
  float getDuration() const override { return inner->getDuration(); }
  u64 getSequencenumber() const override { return inner->getSequencenumber(); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return inner->getFuture(); }
  bool wait(std::chrono::milliseconds timeout) override {
    try {
      return finish_if(inner->wait(timeout));
    } catch (...) {
      finish_record(number, true);
      throw;
    }
  }
};

void mark_no_completion(u64 number) { trace.ring[(number - 1) % trace.capacity].flags |= kNoCompletion; }

void follow(c10::IValue& result, u64 number, bool on_host) {
  auto work = result.toCustomClass<c10d::Work>();
  if (!work) return finish_record(number, false);
  if (!on_host) return mark_no_completion(number);  // a CUDA future completes when enqueued
  try {
    work->getFuture()->addCallback(
        [number](c10::ivalue::Future& done) { finish_record(number, done.hasError()); }, /*uses_future=*/false);
  } catch (...) {  // gloo's send, recv and reduce_scatter have no future
    result = c10::IValue(c10::static_intrusive_pointer_cast<c10d::Work>(c10::make_intrusive<WatchedWork>(work, number)));
  }
}

// ---- the kernels ---------------------------------------------------------------------------------------------------

struct Operator {
  const char* name;
  uint16_t operation;
  int inputs;  // argument that holds the tensors sent
  int group;   // argument that is the process group
  int reduction, peer, tag;
};

// Positions follow the schemas of torch/csrc/distributed/c10d/Ops.cpp (the same from torch 2.4 to 2.13).
constexpr Operator kOperators[] = {
    {"allreduce_", 1, 0, 1, 2, -1, -1},          {"broadcast_", 2, 0, 1, -1, -1, 2},
    {"allgather_", 3, 1, 2, -1, -1, -1},         {"_allgather_base_", 4, 1, 2, -1, -1, -1},
    {"reduce_scatter_", 5, 1, 2, 3, -1, -1},     {"_reduce_scatter_base_", 6, 1, 2, 3, -1, -1},
    {"reduce_", 7, 0, 1, 2, -1, 3},              {"gather_", 8, 1, 2, -1, -1, 3},
    {"scatter_", 9, 0, 2, -1, -1, 3},            {"alltoall_", 10, 1, 2, -1, -1, -1},
    {"alltoall_base_", 11, 1, 2, -1, -1, -1},    {"barrier", 12, -1, 1, -1, -1, -1},
    {"monitored_barrier_", 13, -1, 1, -1, -1, -1}, {"send", 14, 0, 1, -1, 2, 3},
    {"recv_", 15, 0, 1, -1, 2, 3},               {"recv_any_source_", 16, 0, 1, -1, -1, 2},
    {"allreduce_coalesced_", 17, 0, 1, 2, -1, -1}, {"allgather_coalesced_", 18, 1, 2, -1, -1, -1},
    {"allgather_into_tensor_coalesced_", 19, 1, 2, -1, -1, -1},
    {"reduce_scatter_tensor_coalesced_", 20, 1, 2, 3, -1, -1},
};
constexpr size_t kCount = sizeof(kOperators) / sizeof(kOperators[0]);

void describe(const c10::IValue& value, Record& record) {
  at::Tensor first;
  if (value.isTensor()) {
    first = value.toTensor();
    record.tensors = 1;
  } else if (value.isTensorList()) {
    auto list = value.toTensorList();
    record.tensors = u32(list.size());
    if (!list.empty()) first = list.get(0);
  } else if (value.isList()) {
    auto lists = value.toListRef();
    record.tensors = u32(lists.size());
    if (!lists.empty() && lists[0].isTensorList() && !lists[0].toTensorList().empty())
      first = lists[0].toTensorList().get(0);
  }
  if (!first.defined()) return;
  record.elements = u64(first.numel());
  record.dtype = uint16_t(first.scalar_type());
  record.ndim = uint16_t(std::min<int64_t>(first.dim(), 8));
  for (u32 i = 0; i < record.ndim; ++i) record.shape[i] = u32(first.size(i));
}

template <size_t N>
Record read_arguments(const c10::IValue* arguments, c10::DeviceType device) {
  constexpr const Operator& op = kOperators[N];
  Record record{};
  record.operation = op.operation;
  record.peer = record.tag = -1;
  record.reduction = kNoReduction;
  auto group = arguments[op.group].toCustomClass<c10d::ProcessGroup>();
  record.group = group_number(*group, device);
  if (op.inputs >= 0) describe(arguments[op.inputs], record);
  if (op.peer >= 0) record.peer = int32_t(arguments[op.peer].toInt());
  if (op.tag >= 0) record.tag = int32_t(arguments[op.tag].toInt());  // the root, where the operation has one
  if (op.reduction >= 0)
    record.reduction = uint16_t(c10d::ReduceOp::RedOpType(arguments[op.reduction].toCustomClass<c10d::ReduceOp>()->op_));
  record.thread = u64(pthread_self());
  find_call_site(record);
  return record;
}

template <size_t N, typename Call>
void recorded(const c10::OperatorHandle& handle, Stack* stack, c10::DeviceType device, Call&& call) {
  constexpr const Operator& op = kOperators[N];
  size_t count = handle.schema().arguments().size();
  u64 number = begin_record(read_arguments<N>(stack->data() + stack->size() - count, device));
  try {
    call();
  } catch (...) {
    finish_record(number, true);
    throw;
  }
  if (handle.schema().returns().empty()) return finish_record(number, false);
  follow(stack->back(), number, device == c10::DeviceType::CPU);
}

std::vector<torch::Library*> libraries;  // never destroyed: that would remove the kernels

#if HOLDFAST_AT_BACKEND
template <size_t N, c10::DispatchKey K>
c10::SafeKernelFunction* replaced = nullptr;

template <size_t N, c10::DispatchKey K>
void kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  constexpr auto device = K == c10::DispatchKey::CPU ? c10::DeviceType::CPU
                          : K == c10::DispatchKey::CUDA ? c10::DeviceType::CUDA : c10::DeviceType::PrivateUse1;
  recorded<N>(handle, stack, device, [&] { replaced<N, K>->callBoxed(handle, keys, stack); });
}

template <c10::DispatchKey K, size_t N>
void wrap_operator(torch::Library& library) {
  auto handle = c10::Dispatcher::singleton().findSchema({std::string("c10d::") + kOperators[N].name, ""});
  if (!handle || !handle->hasKernelForDispatchKey(K)) return;
  replaced<N, K> = new c10::SafeKernelFunction(handle->getComputedKernelForDispatchKey(K));
  library.impl(kOperators[N].name, torch::CppFunction::makeFromBoxedFunction<&kernel<N, K>>());
}
#else
template <size_t N, c10::DispatchKey K>
void kernel(const c10::OperatorHandle& handle, c10::DispatchKeySet keys, Stack* stack) {
  auto below = keys & c10::after_autograd_keyset;  // not FULL_AFTER, K: after an alias key no kernel is left
  auto device = keys.has_backend(c10::BackendComponent::CPUBit) ? c10::DeviceType::CPU : c10::DeviceType::CUDA;
  recorded<N>(handle, stack, device, [&] { handle.redispatchBoxed(below, stack); });
}

template <c10::DispatchKey K, size_t N>
void wrap_operator(torch::Library& library) {
  if (!c10::Dispatcher::singleton().findSchema({std::string("c10d::") + kOperators[N].name, ""})) return;
  library.impl(kOperators[N].name, torch::CppFunction::makeFromBoxedFunction<&kernel<N, K>>());
}
#endif

template <c10::DispatchKey K, size_t... N>
void wrap_all_operators(std::index_sequence<N...>) {
  auto* library = new torch::Library(torch::Library::IMPL, "c10d", K, __FILE__, __LINE__);
  (wrap_operator<K, N>(*library), ...);
  libraries.push_back(library);
}

struct Quiet : c10::WarningHandler {  // torch warns once that a kernel was replaced, which is intended
  void process(const c10::Warning&) override {}
};

}  // namespace holdfast

using namespace holdfast;

#pragma GCC visibility push(default)
extern "C" {

// base: address of the mapped trace. foreign_prefixes: newline-separated; torch's folder, then holdfast's.
// Returns NULL, or the error.
const char* holdfast_install(void* base, u64 groups_at, u64 group_count, u64 notes_at, u64 notes_size, u64 ring_at,
                             u64 capacity, const char* foreign_prefixes) {
  static std::string install_error;
  trace.base = static_cast<char*>(base);
  trace.groups = reinterpret_cast<GroupSlot*>(trace.base + groups_at);
  trace.notes = trace.base + notes_at;
  trace.ring = reinterpret_cast<Record*>(trace.base + ring_at);
  trace.group_count = group_count;
  trace.notes_size = notes_size;
  trace.capacity = capacity;
  std::string all(foreign_prefixes);
  for (size_t at = 0; at < all.size();) {
    size_t end = std::min(all.find('\n', at), all.size());
    if (end > at) foreign.push_back(all.substr(at, end - at));
    at = end + 1;
  }
  try {
    Quiet quiet;
    c10::WarningUtils::WarningHandlerGuard guard(&quiet);
    auto every = std::make_index_sequence<kCount>();
#if HOLDFAST_AT_BACKEND
    wrap_all_operators<c10::DispatchKey::CPU>(every);
    wrap_all_operators<c10::DispatchKey::CUDA>(every);
    wrap_all_operators<c10::DispatchKey::PrivateUse1>(every);
#else
    wrap_all_operators<c10::DispatchKey::Autograd>(every);
#endif
  } catch (const std::exception& error) {
    install_error = error.what();
    return install_error.c_str();
  }
  return nullptr;
}

// Continue in another trace of the same layout, with empty groups, sites and peers.
void holdfast_move(void* base) {
  std::lock_guard<std::mutex> hold(tables);
  auto moved = [&](auto* old) { return static_cast<char*>(base) + (reinterpret_cast<char*>(old) - trace.base); };
  trace.groups = reinterpret_cast<GroupSlot*>(moved(trace.groups));
  trace.ring = reinterpret_cast<Record*>(moved(trace.ring));
  trace.notes = moved(trace.notes);
  trace.base = static_cast<char*>(base);
  group_numbers.clear();
  peer_counts.clear();
  sites.clear();
}

// One line of notes from Python, so that both writers reserve space in the same way.
void holdfast_note(const char* line, u64 size) { note(std::string(line, size)); }

// For Python wrappers (init_process_group, new_group): begin and finish a record explicitly.
u64 holdfast_begin(const char* group, u32 operation, u64 elements) {
  Record record{};
  record.operation = uint16_t(operation);
  record.peer = record.tag = -1;
  record.reduction = kNoReduction;
  record.elements = elements;
  {
    std::lock_guard<std::mutex> hold(tables);
    auto known = group_numbers.find(group);
    if (known == group_numbers.end()) {
      u32 number = u32(std::min<u64>(group_numbers.size(), trace.group_count - 1));
      known = group_numbers.emplace(group, number).first;
      note("G\t" + std::to_string(number) + "\t\t" + clean(group) + "\n");
    }
    record.group = known->second;
  }
  record.thread = u64(pthread_self());
  find_call_site(record);
  return begin_record(record);
}

void holdfast_finish(u64 number, u32 failed) { finish_record(number, failed != 0); }
}
#pragma GCC visibility pop
