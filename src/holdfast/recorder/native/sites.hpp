// Call sites: the first Python frame outside torch, holdfast and site-packages.
#pragma once

#include <Python.h>

#include <unordered_map>
#include <vector>

#include "trace.hpp"

namespace holdfast {

inline std::vector<std::string> foreign;  // prefixes of files that are not the user's; the first two are torch and holdfast
inline std::unordered_map<PyCodeObject*, int> owners;  // 0 the user's, 1 a library's, 2 torch's or ours
struct SiteKey {
  PyCodeObject* code;
  int instruction;  // cheaper to get than the line
  bool operator==(const SiteKey& o) const { return code == o.code && instruction == o.instruction; }
};
struct SiteHash {
  size_t operator()(const SiteKey& k) const { return std::hash<void*>()(k.code) * 31 + size_t(k.instruction); }
};
inline std::unordered_map<SiteKey, u32, SiteHash> sites;

inline const char* text_of(PyObject* text) {
  const char* chars = PyUnicode_AsUTF8(text);
  if (!chars) PyErr_Clear();
  return chars ? chars : "?";
}

inline int owner_of(PyCodeObject* code) {
  auto known = owners.find(code);
  if (known != owners.end()) return known->second;
  const char* file = text_of(code->co_filename);
  int owner = file[0] == '<' ? 1 : 0;
  for (size_t i = 0; i < foreign.size(); ++i)
    if (std::strncmp(file, foreign[i].c_str(), foreign[i].size()) == 0) {
      owner = i < 2 ? 2 : 1;
      break;
    }
  Py_INCREF(code);  // never released: its address is a key
  owners.emplace(code, owner);
  return owner;
}

inline u32 site_of(PyFrameObject* frame, PyCodeObject* code) {
  SiteKey key{code, PyFrame_GetLasti(frame)};
  auto known = sites.find(key);
  if (known != sites.end()) return known->second;
  u32 number = u32(sites.size()) + 1;
  sites.emplace(key, number);
  note("S\t" + std::to_string(number) + "\t" + std::to_string(PyFrame_GetLineNumber(frame)) + "\t" +
       clean(text_of(code->co_name)) + "\t" + clean(text_of(code->co_filename)) + "\n");
  return number;
}

// Needs the GIL. Sets the site, the innermost user frame (else library frame) within 64 frames,
// and the caller, the next user frame within the 15 above it.
inline void walk_frames(PyThreadState* state, Record& record) {
  PyFrameObject* frame = PyThreadState_GetFrame(state);
  bool found = false;  // a user frame
  for (int depth = 0, most = 64; frame && depth < most; ++depth) {
    PyCodeObject* code = PyFrame_GetCode(frame);
    bool over = false;
    {
      std::lock_guard<std::mutex> hold(tables);
      int owner = owner_of(code);
      if (owner == 0 && !found) {
        record.site = site_of(frame, code);
        found = true;
        most = depth + 16;
      } else if (owner == 0) {
        record.caller = site_of(frame, code);
        over = true;
      } else if (owner == 1 && !record.site) {
        record.site = site_of(frame, code);
      }
    }
    Py_DECREF(code);
    PyFrameObject* back = over ? nullptr : PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
}

inline void find_call_site(Record& record) {
  PyThreadState* state = PyGILState_GetThisThreadState();
  if (!state) {  // e.g. a thread of the GPU autograd engine: no Python frames
    record.flags |= kNoPython;
    return;
  }
  if (PyGILState_Check()) return walk_frames(state, record);
  PyGILState_STATE held = PyGILState_Ensure();
  walk_frames(state, record);
  PyGILState_Release(held);
}

}  // namespace holdfast
