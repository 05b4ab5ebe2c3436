// The one Python module of the core. Rooms register here; nothing else happens in this file.
#include "bind.hpp"

NB_MODULE(_core, m) {
  // A process may end with pools open: their memory goes with it, and that is no news to its user.
  nanobind::set_leak_warnings(false);
  m.doc() = "Moonpool's native core: bytes and tokens only, no policy.";
  moonpool::bind_crc(m);
  moonpool::bind_frames(m);
  moonpool::bind_hash(m);
  moonpool::bind_keys(m);
  moonpool::bind_put_batch(m);
  moonpool::bind_segment(m);
  moonpool::bind_endpoint(m);
  moonpool::bind_table(m);
  moonpool::bind_transfer(m);
  moonpool::bind_packed(m);
  moonpool::bind_file(m);
  moonpool::bind_radix(m);
  moonpool::bind_prefix_index(m);
  moonpool::bind_sparse(m);
}
