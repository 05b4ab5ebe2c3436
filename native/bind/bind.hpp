// The bindings' own vocabulary: each room of the core binds itself in one file, module.cpp calls
// them all.
#pragma once
#include <nanobind/nanobind.h>

namespace moonpool {
// One function per room, each in bind/<room>.cpp.
void bind_crc(nanobind::module_& m);           // crc32c, copies with checksum
void bind_frames(nanobind::module_& m);        // frames of the control plane
void bind_hash(nanobind::module_& m);          // SHA-256, HMAC, block hash chains
void bind_keys(nanobind::module_& m);          // batches of keys
void bind_put_batch(nanobind::module_& m);     // batches of objects to be put
void bind_segment(nanobind::module_& m);       // segment agent and shared-memory client
void bind_endpoint(nanobind::module_& m);      // the data plane's socket endpoint
void bind_table(nanobind::module_& m);         // the catalog's row table
void bind_transfer(nanobind::module_& m);      // block copies between mapped memory
void bind_packed(nanobind::module_& m);        // an engine's cache against packed objects
void bind_file(nanobind::module_& m);          // reads and writes of files
void bind_radix(nanobind::module_& m);         // the prefix tree of an engine's own KV cache
void bind_prefix_index(nanobind::module_& m);  // the router's index of prefixes
void bind_sparse(nanobind::module_& m);        // rows of sparse attention, hot buffers
}  // namespace moonpool
