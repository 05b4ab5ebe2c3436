// What a dead owner leaves is taken over whole, and what is damaged harms nobody else.
#include <fcntl.h>

#include <functional>

#include "segment_fixture.hpp"
#include "segment_slot.hpp"

using namespace moonpool;
using namespace moonpool::check;

namespace {

template <class Error>
bool throws(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error&) {
    return true;
  }
  return false;
}

// The bytes of a closed segment, to be damaged.
class RawFile {
 public:
  explicit RawFile(const std::string& path)
      : fd_([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); }),
        geometry_(read_geometry(fd_.get(), path)),
        map_(fd_.get(), 0, geometry_.file_bytes, true) {}
  Slot& slot(std::uint32_t index) {
    return reinterpret_cast<Slot*>(map_.data() + geometry_.slots_offset)[index];
  }
  std::byte* data() { return map_.data() + geometry_.data_offset; }
  std::byte* begin() { return map_.data(); }
  const Geometry& geometry() const { return geometry_; }

 private:
  OwnedFd fd_;
  Geometry geometry_;
  Mapping map_;
};

// All of the area can be claimed again once everything is retired.
void check_all_returns(SegmentAgent& agent) {
  for (const Inventory found = agent.inventory(0, ~0ull); const std::uint32_t i : found.slot) {
    for (std::size_t at = 0; at < found.slot.size(); ++at) {
      if (found.slot[at] == i) {
        CHECK_EQ(retire(agent, {Status::kOk, i, found.generation[at]}), Status::kOk);
      }
    }
  }
  agent.drain();
  const SegmentUsage usage = agent.usage();
  CHECK_EQ(usage.free_slots, agent.geometry().slots);
  CHECK_EQ(usage.free_bytes, agent.geometry().data_bytes);
  CHECK_EQ(usage.largest_free, agent.geometry().data_bytes);
}

}  // namespace

TEST(sealed_objects_survive_their_agent) {
  const Folder folder;
  auto agent = SegmentAgent::create(folder.path(), small_spec());
  const auto incarnation = agent->geometry().incarnation[0];
  const std::array<std::uint8_t, 16> instance{1};
  agent->raise_term(9, instance);
  agent->tombstone_add(instance, 1, 2);
  const Claimed kept = put(*agent, 5000, 7, {.key = "kept", .parent = "root", .term = 9, .seq = 3});
  const Claimed gone = put(*agent, 100, 1);
  retire(*agent, gone);
  claim(*agent, 1000);
  const std::uint64_t sequence = agent->sequence();
  agent.reset();
  agent = SegmentAgent::adopt(folder.path());
  const auto client = SegmentClient::open(folder.path());
  CHECK_EQ(agent->geometry().incarnation[0], incarnation);
  CHECK_EQ(agent->term(), 9);
  CHECK_EQ(agent->tombstones().size(), 1);
  CHECK_EQ(agent->adopted().sealed, 1);
  CHECK_EQ(agent->adopted().freed, 1);
  CHECK_EQ(agent->adopted().retired, 1);
  CHECK(!agent->changes(sequence, 1).has_value());  // whoever followed begins again
  CHECK(holds(*client, kept, 5000, 7));
  const Inventory found = agent->inventory(0, 100);
  CHECK_EQ(found.keys, "kept");
  CHECK_EQ(found.parents, "root");
  CHECK_EQ(found.seq.at(0), 3);
  check_all_returns(*agent);
}

TEST(long_keys_and_many_extents_go_to_the_side) {
  const Folder folder;
  auto agent = SegmentAgent::create(folder.path(), small_spec(64 << 10, 600));
  std::vector<Claimed> small;
  while (true) {
    const Claimed at = put(*agent, 128, 1);
    if (at.status != Status::kOk) break;
    small.push_back(at);
  }
  for (std::size_t i = 0; i < small.size(); i += 2) retire(*agent, small[i]);
  agent->drain();
  const std::string key(kKeyBytesMax, 'k'), parent(kKeyBytesMax, 'p');
  const Claimed at = put(*agent, 20'000, 9, {.key = key, .parent = parent});
  CHECK_EQ(at.status, Status::kOk);
  for (const bool again : {false, true}) {
    if (again) {
      agent.reset();
      agent = SegmentAgent::adopt(folder.path());
      CHECK_EQ(agent->adopted().broken, 0);
    }
    const auto client = SegmentClient::open(folder.path());
    CHECK(holds(*client, at, 20'000, 9));
    CHECK_EQ(client->pin(at.slot, at.generation, false).status, Status::kBounds);
    const Inventory found = agent->inventory(at.slot, 1);
    CHECK_EQ(found.keys, key);
    CHECK_EQ(found.parents, parent);
  }
  check_all_returns(*agent);
}

TEST(slots_are_told_as_they_are_now) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const Claimed first = put(*agent, 100, 1, {.key = "first", .seq = 1});
  const Claimed gone = put(*agent, 100, 2, {.key = "gone", .seq = 2});
  const Claimed last = put(*agent, 100, 3, {.key = "last", .parent = "first", .seq = 3});
  retire(*agent, gone);
  const std::vector<std::uint32_t> asked{last.slot, gone.slot, 1u << 30, first.slot};
  const Inventory found = agent->inventory_of(asked);
  CHECK_EQ(found.slot.size(), 2);  // in the order asked, without what holds nothing
  CHECK_EQ(found.slot.at(0), last.slot);
  CHECK_EQ(found.generation.at(1), first.generation);
  CHECK_EQ(found.keys, "lastfirst");
  CHECK_EQ(found.parents, "first");
  CHECK_EQ(agent->inventory_of({}).slot.size(), 0);
}

TEST(keys_have_a_limit) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  CHECK_EQ(claim(*agent, 1, {.key = std::string(kKeyBytesMax + 1, 'k')}).status, Status::kTooBig);
  CHECK_EQ(claim(*agent, 1, {.key = ""}).status, Status::kTooBig);
}

TEST(a_living_owner_is_named) {
  const Folder folder;
  const auto agent = SegmentAgent::create(folder.path(), small_spec());
  CHECK(throws<SegmentLocked>([&] { SegmentAgent::adopt(folder.path()); }));
  const SegmentInfo info = inspect_segment(folder.path());
  CHECK(info.owner_alive);
  CHECK_EQ(info.owner_pid, ::getpid());
  CHECK(!remove_dead_segment(folder.path()));
  CHECK_EQ(agent->close(), Status::kOk);
  CHECK(!inspect_segment(folder.path()).owner_alive);
  CHECK(remove_dead_segment(folder.path()));
}

TEST(what_is_no_segment_is_refused) {
  const Folder folder;
  SegmentAgent::create(folder.path(), small_spec());
  const std::size_t version = offsetof(Superblock, geometry) + offsetof(Geometry, version);
  const int fd = ::open(folder.path().c_str(), O_RDWR | O_CLOEXEC);
  for (const std::size_t at : {std::size_t{0}, version, offsetof(Superblock, geometry_crc)}) {
    std::uint8_t byte = 0;
    CHECK_EQ(::pread(fd, &byte, 1, static_cast<off_t>(at)), 1);
    const std::uint8_t wrong = byte ^ 0x55;
    CHECK_EQ(::pwrite(fd, &wrong, 1, static_cast<off_t>(at)), 1);
    CHECK(throws<SegmentFormat>([&] { SegmentAgent::adopt(folder.path()); }));
    CHECK(!inspect_segment(folder.path()).problem.empty());
    CHECK_EQ(::pwrite(fd, &byte, 1, static_cast<off_t>(at)), 1);
  }
  CHECK_EQ(::ftruncate(fd, 8192), 0);
  CHECK(throws<SegmentFormat>([&] { SegmentAgent::adopt(folder.path()); }));
  CHECK(throws<SegmentFormat>([&] { SegmentClient::open(folder.path()); }));
  ::close(fd);
}

TEST(slots_that_name_the_same_bytes_are_freed) {
  const Folder folder;
  auto agent = SegmentAgent::create(folder.path(), small_spec());
  const Claimed one = put(*agent, 1000, 1), two = put(*agent, 1000, 2), far = put(*agent, 1000, 3);
  agent.reset();
  {
    RawFile raw(folder.path());
    raw.slot(two.slot).extents[0].offset = raw.slot(one.slot).extents[0].offset + kGranule;
  }
  agent = SegmentAgent::adopt(folder.path());
  CHECK_EQ(agent->adopted().broken, 2);
  const auto client = SegmentClient::open(folder.path());
  CHECK(holds(*client, far, 1000, 3));
  CHECK(!holds(*client, one, 1000, 1));
  check_all_returns(*agent);
}

TEST(random_damage_never_breaks_the_agent_or_a_client) {
  std::mt19937_64 random = seeded();
  for (int round = 0; round < 40; ++round) {
    const Folder folder;
    auto agent = SegmentAgent::create(folder.path(), small_spec(16 << 10, 24));
    std::vector<Claimed> objects;
    for (int i = 0; i < 30; ++i) {
      objects.push_back(
          put(*agent, random() % 2000, 1, {.key = std::string(random() % 300 + 1, 'k')}));
      if (i % 3 == 1) retire(*agent, objects[random() % objects.size()]);
    }
    agent.reset();
    {
      RawFile raw(folder.path());
      const std::uint64_t from = raw.geometry().slots_offset;
      const std::uint64_t bytes = sizeof(Slot) * raw.geometry().slots;
      for (int hit = 0; hit < 12; ++hit) {
        const std::uint64_t where = random() % 3 == 0 ? raw.geometry().data_offset : from;
        raw.begin()[where + random() % bytes] = static_cast<std::byte>(random());
      }
    }
    agent = SegmentAgent::adopt(folder.path());
    const auto client = SegmentClient::open(folder.path());
    std::vector<std::byte> buffer(16 << 10);
    for (std::uint32_t slot = 0; slot < 24; ++slot) {
      for (std::uint64_t generation = 0; generation < 8; ++generation) {
        client->read(slot, generation, buffer.data(), buffer.size(), true);
      }
    }
    check_all_returns(*agent);
  }
}

TEST(a_client_follows_no_damaged_table) {
  std::mt19937_64 random = seeded();
  const Folder folder;
  const auto agent = SegmentAgent::create(folder.path(), small_spec(16 << 10, 8));
  const auto client = SegmentClient::open(folder.path());
  const Claimed at = put(*agent, 1000, 1, {.key = std::string(200, 'k')});
  RawFile raw(folder.path());
  std::vector<std::byte> buffer(16 << 10);
  auto* bytes = reinterpret_cast<std::byte*>(&raw.slot(at.slot));
  const std::vector<std::byte> good(bytes, bytes + sizeof(Slot));
  for (int round = 0; round < 3000; ++round) {
    std::memcpy(bytes, good.data(), good.size());
    for (int hit = 0; hit < 3; ++hit) {
      bytes[8 + random() % 144] = static_cast<std::byte>(random());
    }
    client->read(at.slot, at.generation, buffer.data(), buffer.size(), true);
    client->read_range(at.slot, at.generation, random() % 2000, buffer.data(), random() % 2000);
    const Pinned pinned = client->pin(at.slot, at.generation, true);
    if (pinned.status == Status::kOk) client->unpin(pinned.pin);
  }
  std::memcpy(bytes, good.data(), good.size());
  CHECK(holds(*client, at, 1000, 1));
}

TEST_MAIN()
