// The trace file of core/trace_file.py in C++: its layout, notes, and records.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <mutex>
#include <string>
#include <unordered_map>

namespace holdfast {

using u32 = uint32_t;
using u64 = uint64_t;

struct Record {
  u64 number, entered, completed, sequence, elements;
  u32 group, site;
  uint16_t operation, dtype;
  int32_t peer, tag;
  u32 flags, tensors, caller, shape[8];
  uint16_t reduction, ndim;
  u32 outcome;
  u64 thread, check;
};
static_assert(sizeof(Record) == 128, "one record is 128 bytes");

struct GroupSlot {
  u64 entered, completed, entered_ns, completed_ns, peer_entered, peer_completed, spare[2];
};
static_assert(sizeof(GroupSlot) == 64, "one group is 64 bytes");

constexpr size_t kRecordsHead = 512, kNotesHead = 576;
constexpr u32 kNoCompletion = 1, kNoPython = 2, kFailed = 1, kNoReduction = 9;

struct Trace {
  char* base = nullptr;
  GroupSlot* groups = nullptr;
  char* notes = nullptr;
  Record* ring = nullptr;
  u64 group_count = 0, notes_size = 0, capacity = 0;
  std::atomic<u64>* head(size_t at) { return reinterpret_cast<std::atomic<u64>*>(base + at); }
};
inline Trace trace;

inline u64 now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return u64(t.tv_sec) * 1000000000ull + u64(t.tv_nsec);
}

inline void note(const std::string& line) {
  u64 begin = trace.head(kNotesHead)->fetch_add(line.size());
  if (begin + line.size() > trace.notes_size) {
    trace.head(kNotesHead)->fetch_sub(line.size());
    return;
  }
  std::memcpy(trace.notes + begin, line.data(), line.size());
}

inline std::string clean(const char* text) {
  std::string out(text ? text : "?");
  for (char& c : out)
    if (c == '\t' || c == '\n' || c == '\r') c = ' ';
  return out;
}

inline void raise_to(std::atomic<u64>* cell, u64 value) {
  u64 current = cell->load(std::memory_order_relaxed);
  while (current < value && !cell->compare_exchange_weak(current, value)) {
  }
}

inline std::atomic<u64>* atom(u64* cell) { return reinterpret_cast<std::atomic<u64>*>(cell); }

inline u64 check_word(const Record& r) {
  u64 place = u64(r.group) << 32 | r.site;
  u64 kind = u64(r.operation) | u64(r.dtype) << 16 | u64(u32(r.peer)) << 32;
  return ~(r.number ^ r.entered * 3 ^ r.sequence * 5 ^ r.elements * 7 ^ place * 11 ^ kind * 13);
}

inline std::mutex tables;  // guards the maps of this process; held for tens of nanoseconds
inline std::unordered_map<u64, u64> peer_counts;

inline bool is_point_to_point(const Record& r) { return r.operation >= 14 && r.operation <= 16; }

// Sends and receives are counted per (group, peer, tag, direction): that is how they pair up.
inline u64 next_for_peer(const Record& r) {
  u64 key = u64(r.group) << 48 ^ u64(r.operation) << 42 ^ u64(u32(r.peer)) << 20 ^ u64(u32(r.tag));
  std::lock_guard<std::mutex> hold(tables);
  return ++peer_counts[key];
}

inline u64 begin_record(Record filled) {
  u64 number = trace.head(kRecordsHead)->fetch_add(1) + 1;
  Record& slot = trace.ring[(number - 1) % trace.capacity];
  atom(&slot.number)->store(0, std::memory_order_release);
  GroupSlot& group = trace.groups[filled.group];
  bool peer = is_point_to_point(filled);
  filled.sequence = peer ? next_for_peer(filled) : atom(&group.entered)->fetch_add(1) + 1;
  if (peer) atom(&group.peer_entered)->fetch_add(1);
  filled.number = number;
  filled.entered = now_ns();
  filled.check = check_word(filled);
  std::memcpy(reinterpret_cast<char*>(&slot) + 8, reinterpret_cast<char*>(&filled) + 8, sizeof(Record) - 8);
  if (!peer) atom(&group.entered_ns)->store(filled.entered, std::memory_order_relaxed);
  atom(&slot.number)->store(number, std::memory_order_release);
  return number;
}

inline void finish_record(u64 number, bool failed) {
  Record& slot = trace.ring[(number - 1) % trace.capacity];
  if (atom(&slot.number)->load(std::memory_order_acquire) != number) return;  // overwritten meanwhile
  u64 now = now_ns();
  if (failed) slot.outcome = kFailed;
  GroupSlot& group = trace.groups[slot.group % trace.group_count];
  if (is_point_to_point(slot))
    atom(&group.peer_completed)->fetch_add(1);
  else if (!failed)
    raise_to(atom(&group.completed), slot.sequence);
  atom(&group.completed_ns)->store(now, std::memory_order_relaxed);
  atom(&slot.completed)->store(now, std::memory_order_release);
}

}  // namespace holdfast
