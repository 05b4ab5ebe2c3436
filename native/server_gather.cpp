// Rows out of sealed objects, packed here and sent in one go: the answer to scattered reads from
// another host. A piece of rows is copied together while it fits a cache, then sent, then the next
// one: the rows of a frame never lie in memory all at once.
#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "crc.hpp"
#include "object_request.hpp"
#include "row_table.hpp"

namespace moonpool {
namespace {

constexpr std::uint32_t kRowBytesMax = 1 << 20;
// Rows that follow each other are sent from where they lie, as a piece of their own from here on:
// below, a piece more costs what their copy does.
constexpr std::size_t kInPlaceBytes = 32 << 10;

class GatherRows : public ObjectRequest {
 public:
  using ObjectRequest::ObjectRequest;
  ~GatherRows() override {
    close_windows();
    if (packed_.size() > context_.spare.size()) context_.spare.swap(packed_);
  }

  bool begin(std::span<const std::uint8_t> meta, std::vector<Piece>*) override {
    if (meta.size() < sizeof(head_)) return false;
    head_ = wire::load<wire::GatherHead>(meta.data());
    if (head_.row_bytes == 0 || head_.row_bytes > kRowBytesMax || head_.unit_tokens == 0 ||
        head_.units > context_.options.frame_blocks_max) {
      return false;
    }
    const std::size_t units = std::size_t{head_.units} * sizeof(wire::GatherUnit);
    const std::size_t layers = std::size_t{header.count} * sizeof(wire::GatherLayer);
    const std::size_t positions = std::size_t{head_.positions} * sizeof(std::uint32_t);
    if (meta.size() != sizeof(head_) + units + layers + positions) return false;
    meta = meta.subspan(sizeof(head_));
    if (!load_blocks(meta.first(units), head_.units, &units_) ||
        !load_blocks(meta.subspan(units, layers), header.count, &layers_) ||
        !load_blocks(meta.last(positions), head_.positions, &positions_)) {
      return false;
    }
    std::uint64_t total = 0;
    for (const auto& layer : layers_) total += layer.count;
    return total == positions_.size() &&
           total * head_.row_bytes <= context_.options.frame_payload_bytes_max;
  }

  void answer(OutFrame& reply) override {
    windows_.assign(units_.size(), {});
    const bool served = with_agent([&] {
      for (std::size_t i = 0; i < units_.size(); i++) {
        windows_[i] = agent_->open_read(units_[i].slot, units_[i].generation, 0, kWholeObject);
        if (foreign(windows_[i])) {
          agent_->close_read(units_[i].slot, units_[i].generation);
          windows_[i] = {Status::kRefused, 0, 0, {}};
        }
      }
    });
    std::vector<std::uint64_t> lengths(header.count, 0);
    crcs_.assign(header.count, 0);
    std::size_t first = 0;
    for (std::uint32_t i = 0; i < header.count; i++) {
      if (served) lengths[i] = lay_out(i, first, reply);
      first += layers_[i].count;
    }
    if (served) {
      make_table();
      packed_.swap(context_.spare);
      packed_.resize(rows_a_piece() * head_.row_bytes);
      reply.pack = [this](OutFrame& frame, std::size_t piece) {
        return pack(frame.pieces[piece], piece);
      };
    }
    reply_meta.resize(lengths.size() * 8);
    if (!lengths.empty()) std::memcpy(reply_meta.data(), lengths.data(), reply_meta.size());
  }

  void recheck(const OutFrame&) override {
    if (released_) return;
    Status status = Status::kOk;
    for (std::size_t i = 0; i < units_.size(); i++) {
      const bool open = i < windows_.size() && windows_[i].status == Status::kOk;
      if (open && !agent_->still(units_[i].slot, units_[i].generation, SlotState::kSealed)) {
        status = Status::kMoved;
      }
    }
    for (std::uint32_t i = 0; i < header.count; i++) {
      if (records[i].status != code(Status::kOk)) continue;
      records[i].status = code(status);
      records[i].crc = crcs_[i];
    }
  }

  void release(Status why) override {
    close_windows();
    ObjectRequest::release(why);
  }

 private:
  // Rows of one piece: of layer block `block`, from `first` of all positions on.
  struct Chunk {
    std::uint32_t block;
    std::size_t first;
    std::size_t count;
  };

  std::size_t rows_a_piece() const {
    return std::max<std::size_t>(1, context_.options.piece_bytes / head_.row_bytes);
  }

  // Checks every row of block `i` against its object; the block's bytes, 0 when one does not fit.
  std::uint64_t lay_out(std::uint32_t i, std::size_t first, OutFrame& reply) {
    const wire::GatherLayer& layer = layers_[i];
    // Worth a table only where there are as many positions to look up.
    std::vector<std::uint32_t> table;
    if (layer.count >= units_.size()) {
      for (std::size_t unit = 0; unit < units_.size(); unit++) {
        table.push_back(rows_of(layer.layer, unit));
      }
    }
    const bool power = std::has_single_bit(head_.unit_tokens);
    const int shift = std::countr_zero(head_.unit_tokens);
    for (std::size_t at = first; at < first + layer.count; at++) {
      const std::uint32_t position = positions_[at];
      const std::uint32_t number = power ? position >> shift : position / head_.unit_tokens;
      if (number < units_.size()) {
        const std::uint32_t rows = table.empty() ? rows_of(layer.layer, number) : table[number];
        if (position - number * head_.unit_tokens < rows) continue;
      }
      records[i].status = code(fault(position));
      return 0;
    }
    records[i].size = std::uint64_t{layer.count} * head_.row_bytes;
    for (std::size_t done = 0; done < layer.count;) {
      std::size_t count = std::min(rows_a_piece(), layer.count - done);
      const std::size_t together = run_of(first + done, count);
      if (together * head_.row_bytes >= kInPlaceBytes) count = together;
      chunks_.push_back({i, first + done, count});
      reply.pieces.push_back({nullptr, count * head_.row_bytes, i});
      done += count;
    }
    return records[i].size;
  }

  // How many rows, `most` at the most, follow each other in one object from position `at` on.
  std::size_t run_of(std::size_t at, std::size_t most) const {
    std::size_t rows = 1;
    while (rows < most && positions_[at + rows] == positions_[at + rows - 1] + 1 &&
           positions_[at + rows] % head_.unit_tokens != 0) {
      rows++;
    }
    return rows;
  }

  // How many rows of a layer an object has, of those that it may have.
  std::uint32_t rows_of(std::uint32_t layer, std::size_t number) const {
    const std::uint64_t size = windows_[number].size, stride = units_[number].layer_stride;
    // The last numbers there are: no table has as many layers or tokens as would hold them.
    if (layer == ~0u || windows_[number].status != Status::kOk) return 0;
    if (units_[number].offset > size || (layer > 0 && stride > size / layer)) return 0;
    const std::uint64_t left = size - units_[number].offset, begin = layer * stride;
    if (begin >= left) return 0;
    const std::uint64_t last = ~0u - std::min<std::uint64_t>(number * head_.unit_tokens, ~0u);
    return static_cast<std::uint32_t>(
        std::min<std::uint64_t>({(left - begin) / head_.row_bytes, head_.unit_tokens, last}));
  }

  // Why a row of that position is not there.
  Status fault(std::uint32_t position) const {
    const std::size_t number = position / head_.unit_tokens;
    const bool open = number >= windows_.size() || windows_[number].status == Status::kOk;
    return open ? Status::kBounds : windows_[number].status;
  }

  // The fast way, when every object that is read lies in one piece of memory.
  void make_table() {
    std::vector<RowUnit> units(units_.size());
    std::uint32_t layers = 1;
    for (const auto& layer : layers_) layers = std::max(layers, layer.layer + 1);
    for (std::size_t i = 0; i < units.size(); i++) {
      // One whose rows begin beyond its end has none: no position of it has passed.
      if (windows_[i].status != Status::kOk || units_[i].offset > windows_[i].size) continue;
      if (windows_[i].parts.size() != 1) return;
      units[i] = {memory_of(windows_[i].parts[0]) + units_[i].offset, units_[i].layer_stride};
    }
    const std::uint64_t tokens =
        std::min<std::uint64_t>(units.size() * std::uint64_t{head_.unit_tokens}, ~0u);
    table_.emplace(
        RowShape{head_.row_bytes, head_.unit_tokens, layers, static_cast<std::uint32_t>(tokens)},
        std::move(units));
  }

  // True for a piece that lies in place.
  bool pack(Piece& piece, std::size_t number) {
    if (released_) return true;  // zeros leave, and the records say why
    const Chunk& chunk = chunks_[number];
    const std::span<const std::uint32_t> wanted(positions_.data() + chunk.first, chunk.count);
    const std::uint32_t layer = layers_[chunk.block].layer;
    piece.memory = packed_.data();
    if (const std::uint8_t* run = table_ ? table_->run(layer, wanted) : nullptr) {
      piece.memory = const_cast<std::uint8_t*>(run);  // a sent piece is only read
    } else if (table_) {
      table_->gather(layer, wanted, packed_.data());
    } else {
      std::uint8_t* to = packed_.data();
      for (const std::uint32_t position : wanted) {
        copy_row(layer, position, to);
        to += head_.row_bytes;
      }
    }
    if (header.flags & wire::kFlagChecksum) {
      crcs_[chunk.block] = crc32c(piece.memory, piece.size, crcs_[chunk.block]);
    }
    return piece.memory != packed_.data();
  }

  // A row of an object in several parts; it may cross their border.
  void copy_row(std::uint32_t layer, std::uint32_t position, std::uint8_t* to) const {
    const std::size_t number = position / head_.unit_tokens;
    std::uint64_t at = units_[number].offset + layer * units_[number].layer_stride +
                       std::uint64_t{position % head_.unit_tokens} * head_.row_bytes;
    std::uint64_t left = head_.row_bytes;
    for (const Part& part : windows_[number].parts) {
      if (at >= part.bytes) {
        at -= part.bytes;
        continue;
      }
      const std::uint64_t here = std::min<std::uint64_t>(left, part.bytes - at);
      std::memcpy(to, memory_of(part) + at, here);
      to += here;
      left -= here;
      at = 0;
      if (left == 0) return;
    }
  }

  void close_windows() {
    for (std::size_t i = 0; i < windows_.size(); i++) {
      if (windows_[i].status != Status::kOk) continue;
      guarded([&] { agent_->close_read(units_[i].slot, units_[i].generation); });
    }
    windows_.clear();
    table_.reset();
  }

  wire::GatherHead head_;
  std::vector<wire::GatherUnit> units_;
  std::vector<wire::GatherLayer> layers_;
  std::vector<std::uint32_t> positions_;
  std::vector<Window> windows_;
  std::vector<Chunk> chunks_;
  std::optional<RowTable> table_;
  std::vector<std::uint8_t> packed_;
  std::vector<std::uint32_t> crcs_;
};

}  // namespace

std::unique_ptr<ServerRequest> make_gather_request(ServerContext& context,
                                                   const wire::Header& header,
                                                   std::int64_t deadline_ns) {
  return std::make_unique<GatherRows>(context, header, deadline_ns);
}

}  // namespace moonpool
