// The wire format byte by byte, and frames through a socket pair in awkward pieces.
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "check.hpp"
#include "frame_reader.hpp"
#include "frame_writer.hpp"

using namespace moonpool;

namespace {

std::string hex(const void* data, std::size_t size) {
  std::string text;
  for (std::size_t i = 0; i < size; i++) {
    char two[3];
    std::snprintf(two, sizeof(two), "%02x", static_cast<const std::uint8_t*>(data)[i]);
    text += two;
  }
  return text;
}

// Collects the payload of frames of `count` equal blocks.
struct Collector : FrameSink {
  std::vector<std::uint8_t> memory;
  std::vector<std::uint8_t> trailer;
  int frames = 0;
  bool on_header(const wire::Header&, std::size_t* trailer_bytes) override {
    *trailer_bytes = 4;
    return true;
  }
  bool on_meta(const wire::Header& header, std::span<const std::uint8_t>,
               std::vector<Piece>* pieces, bool* checksum) override {
    memory.assign(header.payload_bytes, 0);
    for (std::uint32_t i = 0; i < header.count; i++) {
      std::uint64_t size = header.payload_bytes / header.count;
      pieces->push_back({memory.data() + i * size, size, i});
    }
    *checksum = true;
    return true;
  }
  bool on_frame(const wire::Header&, std::span<const std::uint8_t> end) override {
    trailer.assign(end.begin(), end.end());
    frames++;
    return true;
  }
};

// Says that a frame like those of frame_of comes next, whichever comes.
struct Foreseer : Collector {
  Foreseer(std::size_t payload, std::uint32_t count) : room(payload), count(count) {}
  bool expects(Expected* expected) override {
    *expected = {id, count, 4, room.size()};
    return true;
  }
  bool on_meta(const wire::Header& header, std::span<const std::uint8_t> meta,
               std::vector<Piece>* pieces, bool* checksum) override {
    texts.emplace_back(meta.begin(), meta.end());
    if (header.payload_bytes != room.size() || header.count != count) {
      return Collector::on_meta(header, meta, pieces, checksum);
    }
    *checksum = true;
    std::uint64_t size = room.size() / count;
    for (std::uint32_t i = 0; i < count; i++) pieces->push_back({room.data() + i * size, size, i});
    return true;
  }
  std::vector<std::uint8_t> room;
  std::uint32_t count;
  std::uint64_t id = 0;
  std::vector<std::string> texts;
};

struct Pair {
  int fds[2];
  Pair() { CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0); }
  ~Pair() {
    ::close(fds[0]);
    ::close(fds[1]);
  }
};

OutFrame frame_of(std::vector<std::uint8_t>& payload, std::uint32_t count) {
  OutFrame frame;
  frame.checksum = true;
  frame.crcs.assign(count, 0);
  std::uint64_t size = payload.size() / count;
  for (std::uint32_t i = 0; i < count; i++) frame.pieces.push_back({&payload[i * size], size, i});
  frame.finish = [](OutFrame& out) { out.trailer.assign(4, 7); };
  wire::Header header;
  header.count = count;
  header.payload_bytes = payload.size();
  set_head(frame, header, "meta", 4);
  return frame;
}

}  // namespace

TEST(golden_header) {
  wire::Header header;
  header.type = static_cast<std::uint8_t>(wire::Type::kReadRaw);
  header.flags = wire::kFlagChecksum;
  header.request_id = 0x0102030405060708;
  header.count = 2;
  header.deadline_left_ms = 5000;
  header.payload_bytes = 0x1122334455;
  header.target = wire::region_target(9, 0xa1a2a3a4a5a6a7a8);
  header.term = 3;
  wire::sign(header, "meta", 4);
  CHECK_EQ(hex(&header, sizeof(header)),
           "4d504f4c"
           "01"
           "11"
           "0100"
           "0807060504030201"
           "02000000"
           "88130000"
           "5544332211000000"
           "0900000000000000"
           "a8a7a6a5a4a3a2a1"
           "0300000000000000"
           "04000000"
           "9510071b"
           "00000000"
           "13ec78b0");
  CHECK(wire::signature_ok(header));
  header.count = 3;
  CHECK(!wire::signature_ok(header));
}

TEST(frames_in_pieces) {
  Pair pair;
  std::vector<std::uint8_t> payload(3 * 70'001);
  for (std::size_t i = 0; i < payload.size(); i++) payload[i] = static_cast<std::uint8_t>(i * 31);
  Collector sink;
  FrameReader reader(sink, 100, 4096);
  FrameWriter writer(5000);
  for (int round = 1; round <= 3; round++) {
    OutFrame frame = frame_of(payload, 3);
    bool sent = false;
    while (sink.frames < round) {
      std::size_t budget = 1000 * static_cast<std::size_t>(round);
      if (!sent) sent = writer.send(pair.fds[0], frame, &budget) == FrameWriter::Result::kDone;
      auto result = reader.pump(pair.fds[1], 1 << 20);
      CHECK(result == FrameReader::Result::kBlocked || result == FrameReader::Result::kTurn);
    }
    CHECK(sink.memory == payload);
    CHECK(reader.crcs() == frame.crcs);
    CHECK_EQ(frame.crcs[1], crc32c(&payload[70'001], 70'001));
  }
}

std::vector<std::uint8_t> counted(std::size_t size) {
  std::vector<std::uint8_t> bytes(size);
  for (std::size_t i = 0; i < size; i++) bytes[i] = static_cast<std::uint8_t>(i * 31 + i / 251);
  return bytes;
}

std::vector<std::uint8_t> bytes_of(OutFrame frame) {
  Pair pair;
  std::size_t budget = 1 << 20;
  CHECK(FrameWriter(1 << 20).send(pair.fds[0], frame, &budget) == FrameWriter::Result::kDone);
  std::vector<std::uint8_t> bytes(1 << 16);
  ssize_t got = ::read(pair.fds[1], bytes.data(), bytes.size());
  bytes.resize(static_cast<std::size_t>(got));
  return bytes;
}

TEST(foreseen_frames_in_pieces) {
  std::vector<std::uint8_t> payload = counted(3 * 70);
  std::vector<std::uint8_t> bytes = bytes_of(frame_of(payload, 3));
  std::vector<std::uint8_t> two = bytes;
  two.insert(two.end(), bytes.begin(), bytes.end());
  for (std::size_t cut = 0; cut < bytes.size(); cut++) {
    Pair pair;
    Foreseer sink(payload.size(), 3);
    FrameReader reader(sink, 100, 4096);
    CHECK_EQ(::write(pair.fds[0], two.data(), cut), static_cast<ssize_t>(cut));
    CHECK(reader.pump(pair.fds[1], 1 << 20) == FrameReader::Result::kBlocked);
    CHECK_EQ(sink.frames, 0);
    CHECK_EQ(::write(pair.fds[0], &two[cut], two.size() - cut),
             static_cast<ssize_t>(two.size() - cut));
    CHECK(reader.pump(pair.fds[1], 1 << 20) == FrameReader::Result::kBlocked);
    CHECK_EQ(sink.frames, 2);
    CHECK(sink.room == payload);
    CHECK(sink.trailer == std::vector<std::uint8_t>(4, 7));
    CHECK_EQ(reader.crcs()[2], crc32c(&payload[140], 70));
    CHECK(sink.texts == std::vector<std::string>(2, "meta"));
  }
}

TEST(another_frame_than_the_foreseen_one) {
  std::vector<std::uint8_t> payload = counted(3 * 70), other = counted(2 * 2000), few = counted(3);
  for (std::vector<std::uint8_t>* came : {&other, &few}) {
    std::vector<std::uint8_t> bytes = bytes_of(frame_of(*came, came == &other ? 2 : 3));
    std::vector<std::uint8_t> next = bytes_of(frame_of(payload, 3));
    const std::size_t first = bytes.size();
    bytes.insert(bytes.end(), next.begin(), next.end());
    for (std::size_t cut = 0; cut <= bytes.size(); cut += 7) {
      Pair pair;
      Foreseer sink(payload.size(), 3);
      FrameReader reader(sink, 100, 4096);
      CHECK_EQ(::write(pair.fds[0], bytes.data(), cut), static_cast<ssize_t>(cut));
      CHECK(reader.pump(pair.fds[1], 1 << 20) == FrameReader::Result::kBlocked);
      // What comes is not what was foreseen, so none of it is ever where that belongs.
      if (cut <= first) CHECK(sink.room == std::vector<std::uint8_t>(payload.size()));
      CHECK_EQ(::write(pair.fds[0], &bytes[cut], bytes.size() - cut),
               static_cast<ssize_t>(bytes.size() - cut));
      CHECK(reader.pump(pair.fds[1], 1 << 20) == FrameReader::Result::kBlocked);
      CHECK_EQ(sink.frames, 2);
      CHECK(sink.memory == *came);
      CHECK(sink.room == payload);
    }
  }
}

TEST(a_damaged_frame_where_one_is_foreseen) {
  std::vector<std::uint8_t> payload = counted(3 * 70);
  for (std::size_t at : {std::size_t{0}, std::size_t{20}, sizeof(wire::Header)}) {
    std::vector<std::uint8_t> bytes = bytes_of(frame_of(payload, 3));
    bytes[at] ^= 1;
    Pair pair;
    Foreseer sink(payload.size(), 3);
    FrameReader reader(sink, 100, 4096);
    CHECK_EQ(::write(pair.fds[0], bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    CHECK(reader.pump(pair.fds[1], 1 << 20) == FrameReader::Result::kBroken);
    CHECK_EQ(sink.frames, 0);
  }
}

TEST(forgotten_memory_becomes_zeros) {
  Pair pair;
  std::vector<std::uint8_t> payload(3 * 70'001, 9);
  Collector sink;
  FrameReader reader(sink, 100, 4096);
  FrameWriter writer(5000);
  OutFrame frame = frame_of(payload, 3);
  std::size_t budget = 80'000;
  writer.send(pair.fds[0], frame, &budget);
  frame.forget_memory([](const Piece& piece) { return piece.block == 2; });
  bool sent = false;
  while (sink.frames == 0) {
    budget = 1 << 20;
    if (!sent) sent = writer.send(pair.fds[0], frame, &budget) == FrameWriter::Result::kDone;
    reader.pump(pair.fds[1], 1 << 20);
  }
  CHECK_EQ(sink.memory[70'001], 9);
  CHECK_EQ(sink.memory[2 * 70'001], 0);
  CHECK_EQ(sink.memory.back(), 0);
}

TEST(a_trailer_made_too_early_is_made_anew) {
  Pair pair;
  std::vector<std::uint8_t> payload(3 << 20, 9);
  Collector sink;
  FrameReader reader(sink, 100, 4096);
  FrameWriter writer(4 << 20);
  OutFrame frame = frame_of(payload, 3);
  frame.finish = [](OutFrame& out) { out.trailer.assign(4, out.pieces[2].memory ? 1 : 0); };
  std::size_t budget = 8 << 20;
  CHECK(writer.send(pair.fds[0], frame, &budget) == FrameWriter::Result::kBlocked);
  CHECK_EQ(int{frame.trailer.at(0)}, 1);
  frame.forget_memory([](const Piece& piece) { return piece.block == 2; });
  bool sent = false;
  while (sink.frames == 0) {
    budget = 8 << 20;
    if (!sent) sent = writer.send(pair.fds[0], frame, &budget) == FrameWriter::Result::kDone;
    reader.pump(pair.fds[1], 1 << 20);
  }
  CHECK_EQ(sink.memory.back(), 0);
  CHECK_EQ(int{sink.trailer.at(0)}, 0);
}

TEST(a_payload_begins_at_a_cache_line) {
  for (std::size_t meta_bytes : {0, 4, 56, 57, 64}) {
    std::vector<std::uint8_t> meta(meta_bytes, 3);
    wire::Header header;
    OutFrame bare, laden;
    set_head(bare, header, meta.data(), meta.size());
    CHECK_EQ(bare.head.size(), sizeof(header) + meta_bytes);
    header.payload_bytes = 1;
    set_head(laden, header, meta.data(), meta.size());
    CHECK_EQ(laden.head.size() % wire::kAlignment, 0U);
    CHECK(laden.head.size() < bare.head.size() + wire::kAlignment);
  }
}

TEST(more_padding_than_a_cache_line_needs_is_refused) {
  Pair pair;
  Collector sink;
  FrameReader reader(sink, 100, 4096);
  wire::Header header;
  header.padding = wire::kAlignment;
  wire::sign(header, "", 0);
  CHECK_EQ(::send(pair.fds[0], &header, sizeof(header), 0), sizeof(header));
  CHECK(reader.pump(pair.fds[1], 1 << 20) == FrameReader::Result::kBroken);
  CHECK(reader.fault() == FrameReader::Fault::kDamaged);
}

TEST(a_head_larger_than_the_socket_takes_several_sends) {
  Pair pair;
  std::vector<std::uint8_t> meta(4 << 20, 3);
  OutFrame frame;
  set_head(frame, {}, meta.data(), meta.size());
  FrameWriter writer(4096);
  std::size_t budget = 8 << 20;
  CHECK(writer.send(pair.fds[0], frame, &budget) == FrameWriter::Result::kBlocked);
}

TEST(a_damaged_header_is_refused) {
  Pair pair;
  Collector sink;
  FrameReader reader(sink, 100, 4096);
  wire::Header header;
  wire::sign(header, "", 0);
  header.count = 5;
  CHECK_EQ(::send(pair.fds[0], &header, sizeof(header), 0), sizeof(header));
  CHECK(reader.pump(pair.fds[1], 1 << 20) == FrameReader::Result::kBroken);
  CHECK(reader.fault() == FrameReader::Fault::kDamaged);
}

TEST_MAIN()
