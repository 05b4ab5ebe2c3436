// Memory of one column: reserved whole, used page by page, never moved, so that views stay valid.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

namespace moonpool {

// `count` values of T, zero at first. Only pages that were written take memory.
template <class T>
class Column {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit Column(std::size_t count) : count_(count) {
    if (count == 0) return;
    void* at = mmap(nullptr, count * sizeof(T), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw std::bad_alloc();
    values_ = static_cast<T*>(at);
    memory_ = {at, [bytes = count * sizeof(T)](void* p) { munmap(p, bytes); }};
  }
  Column(Column&& other) noexcept
      : values_(std::exchange(other.values_, nullptr)),
        count_(std::exchange(other.count_, 0)),
        memory_(std::move(other.memory_)) {}
  Column& operator=(Column&& other) noexcept {
    std::swap(values_, other.values_);
    std::swap(count_, other.count_);
    std::swap(memory_, other.memory_);
    return *this;
  }

  T& operator[](std::size_t i) { return values_[i]; }
  const T& operator[](std::size_t i) const { return values_[i]; }
  T* data() { return values_; }
  std::size_t size() const { return count_; }
  // Keeps the memory for views that outlive the column.
  std::shared_ptr<void> memory() const { return memory_; }

 private:
  T* values_ = nullptr;
  std::size_t count_;
  std::shared_ptr<void> memory_;
};

// Which rows this call has met already; beginning anew costs nothing.
class Marks {
 public:
  explicit Marks(std::size_t count, std::uint32_t calls = 0) : marks_(count), epoch_(calls) {}

  void begin() {
    if (++epoch_ != 0) return;
    // After 2^32 calls old marks would look new.
    for (std::size_t i = 0; i < marks_.size(); i++) {
      if (marks_[i] != 0) marks_[i] = 0;
    }
    epoch_ = 1;
  }
  bool seen(std::int32_t row) const { return marks_[row] == epoch_; }
  // True when the row was not marked yet.
  bool mark(std::int32_t row) { return std::exchange(marks_[row], epoch_) != epoch_; }

 private:
  Column<std::uint32_t> marks_;
  std::uint32_t epoch_;
};

// Row numbers: those freed last come first, then ever higher ones.
class RowNumbers {
 public:
  explicit RowNumbers(std::size_t max) : max_(max) {}

  std::int32_t take() {
    if (free_.empty()) return high_++;
    const std::int32_t row = free_.back();
    free_.pop_back();
    return row;
  }
  void give(std::int32_t row) { free_.push_back(row); }
  // The latest taken was never used: as if it had not been taken.
  void undo(std::int32_t row, bool was_new) {
    if (was_new) {
      high_--;
    } else {
      free_.push_back(row);
    }
  }

  std::size_t taken() const { return static_cast<std::size_t>(high_) - free_.size(); }
  std::size_t left() const { return max_ - taken(); }
  std::int32_t high() const { return high_; }
  std::size_t memory_bytes() const { return free_.capacity() * sizeof(std::int32_t); }

 private:
  std::size_t max_;
  std::int32_t high_ = 0;
  std::vector<std::int32_t> free_;
};

}  // namespace moonpool
