// The first wall of plain_pickle.py, compiled: says whether every opcode of a stream is one of plain data.
//
// It answers yes, or leaves the question to the Python one, which says what is wrong and where. Both know the same
// opcodes; a test lets them look at the same streams. Knows nothing of Python and of torch, so it compiles in an eyeblink.

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace {

// What follows an opcode: the bytes of its argument, and what is to be looked at.
enum Look : uint8_t {
  ARGUMENT = 0x0F,  // so many bytes
  COUNTED = 0x10,   // a container or a text: one of the objects that are counted
  LENGTH = 0x20,    // the argument is a length, and so many more bytes follow
  MEMO = 0x40,      // the argument is a number of the memo
  REFUSED = 0x80,   // none of plain data
};

struct Table {
  uint8_t look[256];
  constexpr Table() : look{} {
    for (auto& each : look) each = REFUSED;
    for (int opcode : std::initializer_list<int>{'(', 'N', 0x88, 0x89, 'a', 'e', 's', 'u', ')', 0x94}) look[opcode] = 0;
    for (int opcode : std::initializer_list<int>{']', '}', 't', 0x85, 0x86, 0x87}) look[opcode] = COUNTED;
    for (int opcode : std::initializer_list<int>{'K', 'h', 'q', 0x80}) look[opcode] = 1;
    for (int opcode : std::initializer_list<int>{'J', 'j'}) look[opcode] = 4;
    look['M'] = 2;
    look['r'] = MEMO | 4;
    for (int opcode : std::initializer_list<int>{'G', 0x95}) look[opcode] = 8;
    look[0x8A] = LENGTH | 1;
    look[0x8C] = LENGTH | COUNTED | 1;
    look['X'] = LENGTH | COUNTED | 4;
    look[0x8D] = LENGTH | COUNTED | 8;
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

// 1 where the stream is whole, plain, has at most most_objects containers and texts, numbers of the memo below
// most_memo in LONG_BINPUT, and integers of at most longest_long bytes in LONG1; else 0.
extern "C" __attribute__((visibility("default"))) int holdfast_is_plain(
    const uint8_t* data, size_t size, uint64_t most_objects, uint64_t most_memo, uint64_t longest_long) {
  size_t at = 0;
  uint64_t objects = 0;
  while (at < size) {
    const uint8_t opcode = data[at++];
    if (opcode == '.') return at == size;
    const uint8_t look = TABLE.look[opcode];
    const size_t argument = look & ARGUMENT;
    if ((look & REFUSED) || argument > size - at) return 0;
    at += argument;
    if (look < COUNTED) continue;
    if ((look & COUNTED) && ++objects > most_objects) return 0;
    if (!(look & (LENGTH | MEMO))) continue;
    const uint64_t value = little_endian(data + at - argument, argument);
    if (look & MEMO) {
      if (value >= most_memo) return 0;
      continue;
    }
    if (value > size - at || (opcode == LONG1 && value > longest_long)) return 0;
    at += value;
  }
  return 0;
}
