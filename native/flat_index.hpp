// An open-addressing multimap from 64-bit hashes to 32-bit numbers, 16 bytes a place, no allocation
// but its growth. Several numbers may stand under one hash; the caller compares what they stand
// for.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace moonpool {

class FlatIndex {
 public:
  FlatIndex() : places_(kPlacesMin) {}

  void insert(std::uint64_t hash, std::uint32_t value) {
    if ((size_ + 1) * 4 > places_.size() * 3) grow();
    put(hash, value);
    ++size_;
  }

  // Calls visit(value) for each value under the hash until it returns true; whether one did.
  template <class Visit>
  bool find(std::uint64_t hash, Visit visit) const {
    for (std::size_t at = home(hash); places_[at].used; at = next(at)) {
      if (places_[at].hash == hash && visit(places_[at].value)) return true;
    }
    return false;
  }

  bool erase(std::uint64_t hash, std::uint32_t value) {
    std::size_t at = home(hash);
    while (places_[at].used && !(places_[at].hash == hash && places_[at].value == value))
      at = next(at);
    if (!places_[at].used) return false;
    close_hole(at);
    --size_;
    return true;
  }

  void clear() {
    places_.assign(kPlacesMin, Place{});
    size_ = 0;
  }
  std::size_t size() const { return size_; }

 private:
  struct Place {
    std::uint64_t hash = 0;
    std::uint32_t value = 0;
    std::uint32_t used = 0;
  };
  static constexpr std::size_t kPlacesMin = 16;

  std::size_t home(std::uint64_t hash) const { return hash & (places_.size() - 1); }
  std::size_t next(std::size_t at) const { return (at + 1) & (places_.size() - 1); }

  void put(std::uint64_t hash, std::uint32_t value) {
    std::size_t at = home(hash);
    while (places_[at].used) at = next(at);
    places_[at] = {hash, value, 1};
  }

  void grow() {
    std::vector<Place> old(places_.size() * 2);
    old.swap(places_);
    for (const Place& place : old) {
      if (place.used) put(place.hash, place.value);
    }
  }

  // Moves later places of the run back, so that no search stops early at the hole.
  void close_hole(std::size_t hole) {
    for (std::size_t at = next(hole); places_[at].used; at = next(at)) {
      const std::size_t wanted = home(places_[at].hash);
      const bool reachable =
          hole <= at ? (wanted <= hole || wanted > at) : (wanted <= hole && wanted > at);
      if (!reachable) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = Place{};
  }

  std::vector<Place> places_;
  std::size_t size_ = 0;
};

}  // namespace moonpool
