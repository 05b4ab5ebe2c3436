// Agent and client on one segment: the state machine of a slot, and who keeps its memory.
#include "segment_fixture.hpp"

using namespace moonpool;
using namespace moonpool::check;

TEST(put_and_read) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 5000, 7);
  CHECK(holds(*client, at, 5000, 7));
  CHECK_EQ(client->size_of(at.slot, at.generation), 5000);
  CHECK_EQ(client->read(at.slot, at.generation + 1, nullptr, 0, true), failure(Status::kMoved));
  CHECK_EQ(client->read(9999, 1, nullptr, 0, true), failure(Status::kNotFound));
}

TEST(nothing_is_read_before_the_seal) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = claim(*agent, 100);
  CHECK_EQ(write(*agent, at, 1), Status::kOk);
  CHECK_EQ(client->size_of(at.slot, at.generation), failure(Status::kMoved));
  CHECK_EQ(agent->open_read(at.slot, at.generation, 0, kWholeObject).status, Status::kMoved);
  CHECK_EQ(seal(*agent, at), Status::kOk);
  CHECK_EQ(seal(*agent, at), Status::kOk);  // a repeated request
  CHECK(holds(*client, at, 100, 1));
}

TEST(empty_objects_have_no_extent) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 0, 0);
  CHECK(holds(*client, at, 0, 0));
  CHECK_EQ(agent->usage().free_bytes, 64 << 10);
  const Pinned pinned = client->pin(at.slot, at.generation, true);
  CHECK_EQ(pinned.status, Status::kOk);
  client->unpin(pinned.pin);
}

TEST(a_buffer_too_small_stays_untouched) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 100, 9);
  std::vector<std::byte> bytes(99, std::byte{1});
  CHECK_EQ(client->read(at.slot, at.generation, bytes.data(), 99, true), failure(Status::kBounds));
  CHECK(bytes == std::vector<std::byte>(99, std::byte{1}));
}

TEST(wrong_bytes_are_corrupt) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = claim(*agent, 100);
  CHECK_EQ(write(*agent, at, 1), Status::kOk);
  CHECK_EQ(seal(*agent, at, 0, 12345), Status::kOk);
  std::vector<std::byte> bytes(100);
  CHECK_EQ(client->read(at.slot, at.generation, bytes.data(), 100, true),
           failure(Status::kCorrupt));
  CHECK_EQ(client->read(at.slot, at.generation, bytes.data(), 100, false), 100);
  CHECK_EQ(client->pin(at.slot, at.generation, true).status, Status::kCorrupt);
}

TEST(ranges_are_checked_against_the_object) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 100, 3);
  std::byte bytes[64];
  CHECK_EQ(client->read_range(at.slot, at.generation, 36, bytes, 64), Status::kOk);
  CHECK_EQ(client->read_range(at.slot, at.generation, 37, bytes, 64), Status::kBounds);
  CHECK_EQ(client->read_range(at.slot, at.generation, ~0ull, bytes, 64), Status::kBounds);
  CHECK_EQ(agent->open_read(at.slot, at.generation, 50, 51).status, Status::kBounds);
  CHECK_EQ(agent->open_read(at.slot, at.generation, 50, ~0ull - 1).status, Status::kBounds);
}

TEST(full_is_a_status) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec(64 << 10, 3));
  CHECK_EQ(claim(*agent, (64 << 10) + 1).status, Status::kTooBig);
  const Claimed all = put(*agent, 64 << 10, 1);
  CHECK_EQ(claim(*agent, 1).status, Status::kNoSpace);
  CHECK_EQ(retire(*agent, all), Status::kOk);
  CHECK_EQ(claim(*agent, 1).status, Status::kOk);  // a claim drains before it gives up
  CHECK_EQ(claim(*agent, 1).status, Status::kOk);
  CHECK_EQ(claim(*agent, 1).status, Status::kOk);
  CHECK_EQ(claim(*agent, 1).status, Status::kNoSlot);
}

TEST(older_terms_are_refused) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const std::array<std::uint8_t, 16> first{1}, second{2};
  CHECK(agent->raise_term(5, first));
  CHECK(agent->raise_term(5, first));
  CHECK(!agent->raise_term(5, second));
  CHECK(!agent->raise_term(4, first));
  const Claimed at = put(*agent, 10, 1);
  Status status = Status::kOk;
  Claimed claimed;
  ClaimRecord record{};
  record.key_len = 1;
  agent->claim({&record, 1}, "k", 4, kNoRow, 0, {&claimed, 1});
  CHECK_EQ(claimed.status, Status::kStaleTerm);
  agent->retire({&at.slot, 1}, {&at.generation, 1}, 4, 0, {&status, 1});
  CHECK_EQ(status, Status::kStaleTerm);
  CHECK_EQ(agent->term(), 5);
}

TEST(retire_succeeds_under_a_pin_and_the_bytes_stay) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 64 << 10, 5);
  const Pinned pinned = client->pin(at.slot, at.generation, true);
  CHECK_EQ(pinned.status, Status::kOk);
  CHECK_EQ(retire(*agent, at), Status::kOk);
  CHECK_EQ(retire(*agent, at), Status::kMoved);
  CHECK_EQ(agent->drain(), 0);
  CHECK_EQ(claim(*agent, 1).status, Status::kNoSpace);
  CHECK_EQ(client->pin(at.slot, at.generation, false).status, Status::kMoved);
  for (std::size_t i = 0; i < pinned.size; ++i) CHECK(pinned.data[i] == std::byte{5});
  CHECK_EQ(client->close(), Status::kBusy);
  client->unpin(pinned.pin);
  CHECK_EQ(agent->drain(), 1);
  CHECK_EQ(client->close(), Status::kOk);
}

TEST(pins_are_bounded) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 1, 5);
  std::vector<Pinned> pins;
  for (std::uint32_t i = 0; i < kPinsPerRow; ++i) {
    pins.push_back(client->pin(at.slot, at.generation, false));
    CHECK_EQ(pins.back().status, Status::kOk);
  }
  CHECK_EQ(client->pin(at.slot, at.generation, false).status, Status::kBusy);
  CHECK_EQ(agent->usage().pins, kPinsPerRow);
  for (const Pinned& pinned : pins) client->unpin(pinned.pin);
  CHECK_EQ(agent->usage().pins, 0);
}

TEST(windows_delay_the_return) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const Claimed at = put(*agent, 100, 5);
  CHECK_EQ(agent->open_read(at.slot, at.generation, 0, kWholeObject).status, Status::kOk);
  CHECK_EQ(agent->close(), Status::kBusy);
  CHECK_EQ(retire(*agent, at), Status::kOk);
  CHECK_EQ(agent->drain(), 0);
  CHECK(!agent->still(at.slot, at.generation, SlotState::kSealed));
  CHECK_EQ(agent->close_read(at.slot, at.generation), Status::kMoved);
  CHECK_EQ(agent->close_read(at.slot, at.generation), Status::kInternal);
  CHECK_EQ(agent->drain(), 1);
}

TEST(holds_end_at_their_time) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const Claimed at = put(*agent, 100, 5);
  CHECK_EQ(retire(*agent, at, 10, 1'000'000), Status::kOk);
  CHECK_EQ(agent->drain(10'999'999), 0);
  CHECK_EQ(agent->drain(11'000'000), 1);
}

TEST(a_writer_in_mid_frame_keeps_its_seal_and_its_memory_waiting) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const Claimed at = claim(*agent, 100);
  CHECK_EQ(agent->open_write(at.slot, at.generation, 0, 10).status, Status::kOk);
  CHECK_EQ(seal(*agent, at, 0), Status::kBusy);
  CHECK_EQ(abort(*agent, at), Status::kOk);
  CHECK_EQ(agent->drain(), 0);
  CHECK_EQ(agent->close_write(at.slot, at.generation), Status::kMoved);
  CHECK_EQ(agent->drain(), 1);
}

TEST(expiry_and_seal_exclude_each_other) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const std::uint64_t term = 3, seq = 11;
  const Claimed at = claim(*agent, 100, {.term = term, .seq = seq});
  CHECK_EQ(agent->expire({&term, 1}, {&seq, 1}), 1);
  CHECK_EQ(seal(*agent, at), Status::kMoved);
  const Claimed sealed = put(*agent, 100, 1, {.term = term, .seq = seq});
  CHECK_EQ(agent->expire({&term, 1}, {&seq, 1}), 1);
  CHECK_EQ(retire(*agent, sealed), Status::kMoved);
  CHECK_EQ(agent->expire({&term, 1}, {&seq, 1}), 0);
}

TEST(an_expired_write_keeps_its_memory_until_the_writer_says_so) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto writer = SegmentClient::open_fd(agent->fd());
  const std::uint64_t term = 0, seq = 4;
  const Claimed at = claim(*agent, 100, {.seq = seq, .writer = writer.get()});
  agent->expire({&term, 1}, {&seq, 1});
  CHECK_EQ(agent->drain(), 0);
  std::uint32_t crc = 0;
  const std::vector<std::byte> bytes(100);
  CHECK_EQ(writer->write(at.slot, at.generation, bytes.data(), 100, crc), Status::kMoved);
  CHECK_EQ(abort(*agent, at), Status::kOk);
  CHECK_EQ(agent->drain(), 1);
}

TEST(the_memory_of_a_gone_writer_returns) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  auto writer = SegmentClient::open_fd(agent->fd());
  const std::uint64_t term = 0, seq = 4;
  claim(*agent, 100, {.seq = seq, .writer = writer.get()});
  claim(*agent, 100, {.seq = 5, .writer = writer.get()});
  agent->expire({&term, 1}, {&seq, 1});
  CHECK_EQ(agent->drain(), 0);
  writer.reset();
  const auto other = SegmentClient::open_fd(agent->fd());  // the same row, another life
  CHECK_EQ(other->row(), 0);
  CHECK_EQ(agent->drain(), 2);
}

TEST(only_the_claiming_row_may_write) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto writer = SegmentClient::open_fd(agent->fd());
  const auto other = SegmentClient::open_fd(agent->fd());
  const Claimed at = claim(*agent, 100, {.writer = writer.get()});
  const std::vector<std::byte> bytes(101, std::byte{8});
  std::uint32_t crc = 0;
  CHECK_EQ(other->write(at.slot, at.generation, bytes.data(), 100, crc), Status::kRefused);
  CHECK_EQ(writer->write(at.slot, at.generation, bytes.data(), 101, crc), Status::kBounds);
  CHECK_EQ(writer->write_range(at.slot, at.generation, 1, bytes.data(), 100), Status::kBounds);
  CHECK_EQ(writer->write(at.slot, at.generation, bytes.data(), 100, crc), Status::kOk);
  CHECK_EQ(crc, crc32c(bytes.data(), 100));
  CHECK_EQ(seal(*agent, at, 0, crc), Status::kOk);
  CHECK(holds(*other, at, 100, 8));
}

TEST(a_claim_names_a_living_row) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  ClaimRecord record{};
  record.key_len = 1;
  Claimed out;
  agent->claim({&record, 1}, "k", 0, 3, 1, {&out, 1});
  CHECK_EQ(out.status, Status::kRefused);
  agent->claim({&record, 1}, "k", 0, 99, 1, {&out, 1});
  CHECK_EQ(out.status, Status::kRefused);
}

TEST(an_expired_segment_is_not_read) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const auto client = SegmentClient::open_fd(agent->fd());
  const Claimed at = put(*agent, 10, 1);
  agent->set_valid_until(1);
  std::byte bytes[10];
  CHECK_EQ(client->read(at.slot, at.generation, bytes, 10, true), failure(Status::kExpired));
  CHECK_EQ(client->pin(at.slot, at.generation, false).status, Status::kExpired);
  CHECK_EQ(agent->open_read(at.slot, at.generation, 0, 10).status, Status::kExpired);
  agent->set_valid_until(0);
  CHECK(holds(*client, at, 10, 1));
}

TEST(rows_are_bounded_and_used_again) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  std::vector<std::shared_ptr<SegmentClient>> clients;
  for (int i = 0; i < 8; ++i) clients.push_back(SegmentClient::open_fd(agent->fd()));
  bool full = false;
  try {
    SegmentClient::open_fd(agent->fd());
  } catch (const SegmentFull&) {
    full = true;
  }
  CHECK(full);
  const std::uint64_t epoch = clients[5]->row_epoch();
  clients.erase(clients.begin() + 5);
  const auto again = SegmentClient::open_fd(agent->fd());
  CHECK_EQ(again->row(), 5);
  CHECK_EQ(again->row_epoch(), epoch + 1);
}

TEST(changes_are_numbered_and_end_at_a_gap) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const Claimed at = put(*agent, 10, 1, {.term = 1, .seq = 2});
  retire(*agent, at);
  agent->drain();
  const auto changes = agent->changes(0, 10);
  CHECK(changes && changes->size() == 3);
  CHECK_EQ((*changes)[0].kind, ChangeKind::kSealed);
  CHECK_EQ((*changes)[1].kind, ChangeKind::kRetired);
  CHECK_EQ((*changes)[1].generation, at.generation + 1);
  CHECK_EQ((*changes)[2].kind, ChangeKind::kFreed);
  CHECK_EQ((*changes)[2].sequence, agent->sequence());
  CHECK_EQ(agent->changes(2, 10)->size(), 1);
  CHECK(!agent->changes(4, 10).has_value());
  for (std::size_t i = 0; i < kChangesMax; ++i) abort(*agent, claim(*agent, 1));
  CHECK(!agent->changes(2, 10).has_value());
  CHECK_EQ(agent->changes(3, 10)->size(), 10);
}

TEST(tombstones_keep_the_higher_version) {
  const auto agent = SegmentAgent::create(std::nullopt, small_spec());
  const std::array<std::uint8_t, 16> hash{9}, other{8};
  CHECK_EQ(agent->tombstone_add(hash, 2, 5), Status::kOk);
  CHECK_EQ(agent->tombstone_add(hash, 2, 4), Status::kOk);
  CHECK_EQ(agent->tombstone_add(hash, 3, 1), Status::kOk);
  CHECK_EQ(agent->tombstones().size(), 1);
  CHECK_EQ(agent->tombstones()[0].term, 3);
  for (std::uint8_t i = 0; i < 3; ++i) {
    CHECK_EQ(agent->tombstone_add(std::array<std::uint8_t, 16>{i}, 1, 1), Status::kOk);
  }
  CHECK_EQ(agent->tombstone_add(other, 1, 1), Status::kBusy);
  CHECK(agent->tombstone_remove(hash));
  CHECK(!agent->tombstone_remove(hash));
  CHECK_EQ(agent->tombstone_add(other, 1, 1), Status::kOk);
}

TEST_MAIN()
