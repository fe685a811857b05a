// Packs many small tensors of host memory into one flat buffer per dtype, and unpacks them. It does
// what coalesced.py does with torch's operators, at 10 ns per tensor instead of a microsecond.
// Without dispatcher and pybind, which would dominate the cost at this size.
//
// pack supports only plain tensors (dense, no gradient, no subclass, in host memory, no byte shared
// by two tensors) and returns None for others; coalesced.py reports why.

#include <Python.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

namespace {

using Range = std::pair<uintptr_t, uintptr_t>;

// One buffer per dtype, in order of first use.
struct Groups {
  std::array<int, size_t(at::ScalarType::NumOptions)> index;
  std::vector<at::ScalarType> types;
  std::vector<int64_t> elements;
  std::vector<at::Tensor> lone;  // the only tensor of a group, if it needs no copy
  Groups() { index.fill(-1); }
  int of(at::ScalarType type) {
    int& found = index[size_t(type)];
    if (found < 0) {
      found = int(types.size());
      types.push_back(type);
      elements.push_back(0);
      lone.emplace_back();
    }
    return found;
  }
};

// Bytes from the first element to the end of the last; 0 if elements may overlap.
int64_t extent(const at::Tensor& tensor) {
  if (tensor.is_contiguous()) return int64_t(tensor.nbytes());
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (int64_t d = 0; d < tensor.dim(); d++)
    if (tensor.size(d) > 1) steps.emplace_back(tensor.stride(d), tensor.size(d));
  std::sort(steps.begin(), steps.end());
  int64_t last = 0;
  for (auto [stride, size] : steps) {
    if (stride <= last) return 0;
    last += stride * (size - 1);
  }
  return (last + 1) * int64_t(tensor.element_size());
}

bool is_plain(PyObject* object) {
  if (!THPVariable_CheckExact(object)) return false;
  const at::Tensor& tensor = THPVariable_Unpack(object);
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu() && !tensor.requires_grad() &&
         !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() &&
         (!tensor.is_inference() || at::InferenceMode::is_enabled());
}

// Sorting is half the cost of packing scalars, and most lists repeat. The GIL protects the cache.
bool are_disjoint(const std::vector<Range>& ranges) {
  static std::vector<Range> known;
  if (ranges == known) return true;
  std::vector<Range> sorted = ranges;
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 1; i < sorted.size(); i++)
    if (sorted[i].first < sorted[i - 1].second) return false;
  known = ranges;
  return true;
}

// Calls visit(tensor, buffer, offset, address) for each non-empty tensor that is not its buffer.
template <typename Visit>
void each(PyObject* list, Groups& groups, const std::vector<at::Tensor>& buffers, Visit visit) {
  std::vector<int64_t> offsets(buffers.size(), 0);
  std::vector<char*> places;
  for (const at::Tensor& buffer : buffers) places.push_back(static_cast<char*>(buffer.mutable_data_ptr()));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
    const at::Tensor& tensor = THPVariable_Unpack(PyList_GET_ITEM(list, i));
    int64_t elements = tensor.numel();
    if (elements == 0) continue;
    int group = groups.of(tensor.scalar_type());
    if (tensor.const_data_ptr() != places[group] || elements != buffers[group].numel())
      visit(tensor, buffers[group], offsets[group], places[group]);
    offsets[group] += elements;
    places[group] += elements * int64_t(tensor.element_size());
  }
}

// Returns (buffers, shapes as bytes: 64 bits for dtype and dimensions, then the sizes), or None.
PyObject* pack(PyObject*, PyObject* list) {
  HANDLE_TH_ERRORS
  if (!PyList_CheckExact(list)) Py_RETURN_NONE;
  Groups groups;
  std::vector<Range> ranges;
  std::vector<int64_t> shapes;
  ranges.reserve(size_t(PyList_GET_SIZE(list)));
  shapes.reserve(2 * size_t(PyList_GET_SIZE(list)));
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
    PyObject* object = PyList_GET_ITEM(list, i);
    if (!is_plain(object)) Py_RETURN_NONE;
    const at::Tensor& tensor = THPVariable_Unpack(object);
    int group = groups.of(tensor.scalar_type());
    shapes.push_back(int64_t(group) << 32 | tensor.dim());
    shapes.insert(shapes.end(), tensor.sizes().begin(), tensor.sizes().end());
    if (tensor.numel() == 0) continue;
    int64_t size = extent(tensor);
    if (size == 0) Py_RETURN_NONE;
    auto start = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    ranges.emplace_back(start, start + uintptr_t(size));
    groups.lone[group] = groups.elements[group] == 0 && tensor.is_contiguous() ? tensor : at::Tensor();
    groups.elements[group] += tensor.numel();
  }
  if (!are_disjoint(ranges)) Py_RETURN_NONE;
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> buffers;
  for (size_t g = 0; g < groups.types.size(); g++)
    buffers.push_back(groups.lone[g].defined() ? groups.lone[g].view(-1)
                                               : at::empty({groups.elements[g]}, groups.types[g]));
  each(list, groups, buffers, [](const at::Tensor& tensor, const at::Tensor& buffer, int64_t offset, char* place) {
    if (tensor.is_contiguous())
      std::memcpy(place, tensor.const_data_ptr(), tensor.nbytes());
    else
      buffer.narrow(0, offset, tensor.numel()).view(tensor.sizes()).copy_(tensor);
  });
  THPObjectPtr made(PyList_New(Py_ssize_t(buffers.size())));
  if (!made) return nullptr;
  for (size_t g = 0; g < buffers.size(); g++) PyList_SET_ITEM(made.get(), Py_ssize_t(g), THPVariable_Wrap(buffers[g]));
  auto size = Py_ssize_t(shapes.size() * sizeof(int64_t));
  THPObjectPtr bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(shapes.data()), size));
  if (!bytes) return nullptr;
  return PyTuple_Pack(2, made.get(), bytes.get());
  END_HANDLE_TH_ERRORS
}

// unpack(packed list, buffers): in place.
PyObject* unpack(PyObject*, PyObject* const* arguments, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(count == 2 && PyList_CheckExact(arguments[0]) && PyList_CheckExact(arguments[1]), "unpack(list, list)");
  PyObject* list = arguments[0];
  at::NoGradGuard no_grad;
  Groups groups;
  std::vector<at::Tensor> buffers;
  for (Py_ssize_t g = 0; g < PyList_GET_SIZE(arguments[1]); g++) {
    buffers.push_back(THPVariable_Unpack(PyList_GET_ITEM(arguments[1], g)));
    groups.of(buffers.back().scalar_type());
  }
  each(list, groups, buffers, [](const at::Tensor& tensor, const at::Tensor& buffer, int64_t offset, char* place) {
    if (!tensor.is_contiguous()) {
      tensor.copy_(buffer.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      return;
    }
    std::memcpy(tensor.mutable_data_ptr(), place, tensor.nbytes());
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();  // for autograd
  });
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

PyMethodDef methods[] = {
    {"pack", pack, METH_O, "Return flat buffers of a list of tensors, one per dtype, and their shapes; or None."},
    {"unpack", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(unpack)), METH_FASTCALL,
     "Copy the buffers back into the packed list of tensors."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT, "packing", nullptr, -1, methods};

}  // namespace

extern "C" __attribute__((visibility("default"))) PyObject* PyInit_packing() { return PyModule_Create(&definition); }
