// The opcode check of plain_pickle.py in C++: whether every opcode of a stream builds plain data.
//
// It accepts a stream or leaves it to the Python check, which reports what is wrong and where. Both
// accept the same opcodes (a test compares them). Depends on neither Python nor torch.

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace {

// What follows an opcode: the size of its argument, and what to check.
enum Check : uint8_t {
  ARGUMENT = 0x0F,  // size of the argument in bytes
  COUNTED = 0x10,   // a container or a text, which counts as an object
  LENGTH = 0x20,    // the argument is the number of bytes that follow
  MEMO = 0x40,      // the argument is a memo index
  REFUSED = 0x80,   // not plain data
};

struct Table {
  uint8_t check[256];
  constexpr Table() : check{} {
    for (auto& entry : check) entry = REFUSED;
    for (int opcode : std::initializer_list<int>{'(', 'N', 0x88, 0x89, 'a', 'e', 's', 'u', ')', 0x94}) check[opcode] = 0;
    for (int opcode : std::initializer_list<int>{']', '}', 't', 0x85, 0x86, 0x87}) check[opcode] = COUNTED;
    for (int opcode : std::initializer_list<int>{'K', 'h', 'q', 0x80}) check[opcode] = 1;
    for (int opcode : std::initializer_list<int>{'J', 'j'}) check[opcode] = 4;
    check['M'] = 2;
    check['r'] = MEMO | 4;
    for (int opcode : std::initializer_list<int>{'G', 0x95}) check[opcode] = 8;
    check[0x8A] = LENGTH | 1;
    check[0x8C] = LENGTH | COUNTED | 1;
    check['X'] = LENGTH | COUNTED | 4;
    check[0x8D] = LENGTH | COUNTED | 8;
  }
};

constexpr Table TABLE;
constexpr uint8_t LONG1 = 0x8A;

uint64_t little_endian(const uint8_t* at, size_t bytes) {
  uint64_t value = 0;
  for (size_t index = bytes; index-- > 0;) value = value << 8 | at[index];
  return value;
}

}  // namespace

// Returns 1 if the stream is complete and plain, has at most max_objects containers and texts, memo
// indices in LONG_BINPUT below max_memo, and integers in LONG1 of at most max_integer bytes; else 0.
extern "C" __attribute__((visibility("default"))) int holdfast_is_plain(
    const uint8_t* data, size_t size, uint64_t max_objects, uint64_t max_memo, uint64_t max_integer) {
  size_t at = 0;
  uint64_t objects = 0;
  while (at < size) {
    const uint8_t opcode = data[at++];
    if (opcode == '.') return at == size;
    const uint8_t check = TABLE.check[opcode];
    const size_t argument = check & ARGUMENT;
    if ((check & REFUSED) || argument > size - at) return 0;
    at += argument;
    if (check < COUNTED) continue;
    if ((check & COUNTED) && ++objects > max_objects) return 0;
    if (!(check & (LENGTH | MEMO))) continue;
    const uint64_t value = little_endian(data + at - argument, argument);
    if (check & MEMO) {
      if (value >= max_memo) return 0;
      continue;
    }
    if (value > size - at || (opcode == LONG1 && value > max_integer)) return 0;
    at += value;
  }
  return 0;
}
