// The prefix index and its parts; tests/router compares it with a naive one over random histories.
#include "prefix_index.hpp"

#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "block_hash.hpp"
#include "check.hpp"
#include "engine_feed.hpp"
#include "kv_events.hpp"

namespace moonpool {
namespace {

using Chain = std::vector<std::uint64_t>;

Chain chain(std::uint32_t tag, std::size_t length, std::uint64_t before = 0) {
  const std::vector<std::uint32_t> tokens(length, tag);
  Chain hashes(length);
  block_chain_u64(before, tokens, 1, hashes);
  return hashes;
}

std::int64_t depth(PrefixIndex& index, const Chain& blocks, std::int64_t place) {
  std::int64_t device, host, disk, pool;
  index.find(blocks, {&place, 1}, &device, &host, &disk, &pool);
  return device;
}

std::span<const std::uint64_t> part(const Chain& of, std::size_t from, std::size_t count) {
  return std::span(of).subspan(from, count);
}

TEST(a_map_forgets_what_is_erased_and_nothing_else) {
  FlatMap<std::uint32_t> map;
  std::map<std::uint64_t, std::uint32_t> twin;
  std::uint64_t random = 1;
  for (int i = 0; i < 20000; i++) {
    random = mix64(random + 1);
    const std::uint64_t key = random % 300;
    if (random >> 63 != 0) {
      map.at(key) = static_cast<std::uint32_t>(i);
      twin[key] = static_cast<std::uint32_t>(i);
    } else {
      CHECK_EQ(map.erase(key), twin.erase(key) != 0);
    }
    CHECK_EQ(map.size(), twin.size());
  }
  for (const auto& [key, value] : twin) CHECK_EQ(*map.find(key), value);
}

TEST(an_index_finds_what_is_in_it_wherever_its_bucket_overflowed) {
  EntryIndex index;
  index.reset(64);  // four buckets, so that most of them are full at times
  std::map<std::uint32_t, std::uint64_t> twin;  // number -> hash
  const auto found = [&](std::uint64_t hash, std::size_t& cell) {
    const auto same = [&](std::uint32_t n) { return twin.contains(n) && twin[n] == hash; };
    CHECK_EQ(index.find(hash, same), index.find(hash, same, cell));
    return index.find(hash, same);
  };
  std::uint64_t random = 1;
  for (int i = 0; i < 20000; i++) {
    random = mix64(random + 1);
    const auto number = static_cast<std::uint32_t>(random % 90);
    const std::uint64_t hash = mix64(number % 7 == 0 ? number : number / 8);  // some are equal
    std::size_t cell = 0;
    if (twin.contains(number)) {
      index.erase(hash, number);
      twin.erase(number);
    } else {
      if (index.full()) {
        index.reset(index.cells());
        for (const auto& [n, h] : twin) index.insert(h, n);
      }
      if (index.full()) continue;
      if (found(hash, cell) == EntryIndex::kNone) {
        index.insert_at(cell, hash, number);
      } else {
        index.insert(hash, number);
      }
      twin[number] = hash;
    }
    for (const auto& [n, h] : twin) CHECK_EQ(twin[found(h, cell)], h);
  }
}

TEST(sets_are_kept_once_and_dropped_holders_leave_them) {
  HolderSets sets;
  const std::uint32_t one = sets.with(HolderSets::kEmpty, 1);
  sets.add_entry(one);
  const std::uint32_t both = sets.with(one, 200);
  sets.add_entry(both);
  CHECK_EQ(sets.without(both, 200), one);
  CHECK_EQ(sets.erase_holder(200), 0);
  CHECK_EQ(sets.resolve(both), one);
  CHECK_EQ(sets.erase_holder(1), 2);  // two entries, and nobody is left
  CHECK_EQ(sets.resolve(both), HolderSets::kEmpty);
  sets.drop_entry(both);
  sets.drop_entry(one);
  CHECK_EQ(sets.size(), 1);
}

TEST(many_children_are_counted_and_gaps_still_found) {
  PrefixIndex index(1 << 24);
  const Chain stem = chain(1, 4);
  index.store(1, 0, stem, 0);
  std::vector<Chain> tails;
  for (std::uint32_t tag = 0; tag < 200; tag++) {
    tails.push_back(chain(100 + tag, 2, stem.back()));
    index.store(1, 0, tails.back(), stem.back());
  }
  index.remove(1, 0, part(stem, 3, 1));
  Chain whole = stem;
  whole.insert(whole.end(), tails[7].begin(), tails[7].end());
  CHECK_EQ(depth(index, whole, 1), 3);
  CHECK_EQ(index.counts().torn, 1);
  for (const Chain& tail : tails) index.remove(1, 0, tail);
  CHECK_EQ(index.counts().torn, 0);
  CHECK_EQ(index.counts().entries, 3);
}

TEST(a_block_whose_parent_is_told_later_is_torn_for_who_lacks_the_parent) {
  PrefixIndex index(1 << 24);
  const Chain blocks = chain(1, 6);
  index.store(1, 0, part(blocks, 0, 2), 0);
  index.store(1, 0, part(blocks, 4, 2), 0);  // its publisher did not say what comes before
  index.store(2, 0, blocks, 0);
  CHECK_EQ(depth(index, blocks, 1), 2);
  CHECK_EQ(depth(index, blocks, 2), 6);
}

TEST(of_a_chain_that_has_no_room_the_head_stays) {
  PrefixIndex index(1 << 20);
  const Chain blocks = chain(1, 60000), other = chain(2, 64);
  index.store(1, 0, blocks, 0);
  CHECK(index.memory_bytes() <= 1 << 20);
  const std::int64_t kept = depth(index, blocks, 1);
  CHECK(kept > 10000 && kept < 60000);
  index.store(2, 0, other, 0);
  CHECK_EQ(depth(index, other, 2), 64);
}

// In a round of the eviction's hand each, these blocks would take minutes to go.
TEST(long_chains_make_room_for_one_another) {
  PrefixIndex index(4 << 20);
  for (std::uint32_t tag = 1; tag <= 4; tag++) {
    const Chain blocks = chain(tag, 120000);
    index.store(tag, 0, blocks, 0);
    const std::int64_t kept = depth(index, blocks, tag);
    CHECK(kept > 80000 && kept < 120000);
  }
}

TEST(blocks_told_in_a_circle_go_like_others) {
  PrefixIndex index(1 << 20);
  for (std::uint64_t i = 1; i < 40000; i++) {
    const std::uint64_t a = mix64(i), b = mix64(~i);
    index.store(1, 0, {{a, b, a}}, 0);
    index.store(1, 0, {{a}}, b);
  }
  CHECK(index.memory_bytes() <= 1 << 20);
  const Chain blocks = chain(1, 64);
  index.store(2, 0, blocks, 0);
  CHECK_EQ(depth(index, blocks, 2), 64);
}

TEST(a_parent_that_nobody_has_may_go_while_its_run_is_stored) {
  PrefixIndex index(1 << 20);
  const Chain known = chain(1, 3);
  index.store(1, 0, known, 0);
  for (std::uint32_t tag = 0; tag < 2; tag++) {
    Chain run = chain(10 + tag, 25000);
    run[0] = known[1];  // which comes after another one already
    index.store(1, 0, run, mix64(tag));
  }
  CHECK(index.memory_bytes() <= 1 << 20);
}

struct Engine {
  PrefixIndex index{1 << 24};
  EngineFeed feed{index};
  std::vector<std::uint64_t> contents, keys;
  Chain own;

  explicit Engine(std::size_t blocks) {
    std::uint64_t hash = 77;
    for (std::size_t i = 0; i < blocks; i++) {
      contents.push_back(mix64(i + 1000));
      keys.push_back(mix64(i + 5));
      own.push_back(hash = chain_step(hash, contents.back()));
    }
  }
  std::size_t store(std::uint32_t place, std::size_t from, std::size_t count,
                    std::uint64_t key_of = 0) {
    std::vector<std::uint64_t> names(keys.begin(), keys.end());
    for (std::uint64_t& name : names) name ^= key_of;
    return feed.store(place, 0,
                      {part(names, from, count), part(contents, from, count),
                       from == 0 ? 0 : names[from - 1], 77});
  }
};

TEST(blocks_wait_for_their_parent_and_it_may_come_from_another_worker) {
  Engine engine(8);
  CHECK_EQ(engine.store(2, 6, 2), 2);
  CHECK_EQ(engine.store(2, 4, 2), 2);
  engine.feed.remove(2, 0, part(engine.keys, 7, 1));  // removed while it waits
  CHECK_EQ(engine.feed.orphan_blocks(), 4);
  engine.store(1, 0, 4);
  CHECK_EQ(engine.feed.orphan_blocks(), 0);
  CHECK_EQ(depth(engine.index, engine.own, 1), 4);
  CHECK_EQ(depth(engine.index, engine.own, 2), 0);
  engine.store(2, 0, 4);
  CHECK_EQ(depth(engine.index, engine.own, 2), 7);
}

TEST(orphans_are_bounded) {
  Engine engine(8);
  for (std::uint64_t i = 0; i < 40000; i++) {
    const std::uint64_t keys[2] = {mix64(i) | 1, mix64(i + 1) | 2};
    engine.feed.store(3, 0, {keys, keys, mix64(~i), 77});
  }
  CHECK(engine.feed.orphan_blocks() <= EngineFeed::kOrphanBlocks);
  CHECK_EQ(engine.feed.orphans_lost(), 80000 - engine.feed.orphan_blocks());
  engine.feed.forget(3);
  engine.store(1, 0, 8);
  CHECK_EQ(depth(engine.index, engine.own, 1), 8);
}

TEST(a_worker_whose_engine_hashes_otherwise_has_names_of_its_own) {
  Engine engine(8);
  engine.store(1, 0, 8);
  engine.store(2, 0, 8, 0xabcdef);
  CHECK_EQ(engine.feed.aliases(), 8);
  CHECK_EQ(depth(engine.index, engine.own, 2), 8);
  std::vector<std::uint64_t> names = engine.keys;
  for (std::uint64_t& name : names) name ^= 0xabcdef;
  CHECK_EQ(engine.feed.remove(2, 0, part(names, 4, 4)), 4);
  CHECK_EQ(depth(engine.index, engine.own, 2), 4);
  CHECK_EQ(depth(engine.index, engine.own, 1), 8);
  CHECK_EQ(engine.feed.aliases(), 4);
}

TEST(what_had_no_room_got_no_name) {
  PrefixIndex index(1 << 20);
  EngineFeed feed(index);
  const Chain keys = chain(5, 25000), contents = chain(6, 25000);
  feed.store(1, 0, {keys, contents, 0, 77});
  const std::uint64_t held = index.held(1, 0);
  CHECK(held > 1000 && held < 25000);
  CHECK_EQ(feed.remove(1, 0, keys), held);
  CHECK_EQ(index.counts().blocks, 0);
}

TEST(an_account_is_by_the_workers_own_names) {
  PrefixIndex index(1 << 24);
  EngineFeed feed(index);
  const std::uint64_t domain = 0x5a00000000000007;
  std::vector<std::uint64_t> keys, others, contents;
  for (std::uint64_t i = 0; i < 500; i++) {
    keys.push_back(mix64(i + 1) ^ domain);
    others.push_back(mix64(i + 900) ^ domain);
    contents.push_back(mix64(i + 7000));
  }
  feed.store(1, 0, {keys, contents, 0, 77});
  feed.store(2, 0, {others, contents, 0, 77});  // the same blocks under names of its own
  for (std::uint32_t place : {1, 2}) {
    RangeDigests told;
    for (const std::uint64_t key : place == 1 ? keys : others) add_name(told, key ^ domain);
    CHECK(feed.digest(place, 0, domain) == told);
    CHECK(feed.digest(place, 1, domain) == RangeDigests{});
  }
  RangeMarks some{};
  some[range_of(others[3] ^ domain)] = 1;
  std::vector<std::uint64_t> gone, kept;
  for (const std::uint64_t key : others) {
    (some[range_of(key ^ domain)] != 0 ? gone : kept).push_back(key);
  }
  CHECK_EQ(feed.remove_ranges(2, 0, domain, some), gone.size());
  RangeDigests left;
  for (const std::uint64_t key : kept) add_name(left, key ^ domain);
  CHECK(feed.digest(2, 0, domain) == left);
  CHECK_EQ(feed.remove(2, 0, gone), 0);
  CHECK_EQ(index.held(1, 0), keys.size());
  CHECK_EQ(feed.aliases(), kept.size());
}

TEST(garbage_is_no_message_and_harms_nothing) {
  PrefixIndex index(1 << 24);
  EngineFeed feed(index);
  EventReader reader(index, feed);
  const std::uint32_t places[1] = {1};
  std::vector<Account> accounts;
  std::uint64_t random = 5;
  int refused = 0;
  for (int i = 0; i < 20000; i++) {
    std::string message = "\x93\x01\x91\x95\xabxlockStored";
    message.resize(4 + i % 40);
    for (std::size_t k = 0; k < message.size(); k++) {
      random = mix64(random + 1);
      if (random % 3 == 0 || k > 14) message[k] = static_cast<char>(random >> 8);
    }
    try {
      reader.apply(message, {places, 9, 16}, accounts);
    } catch (const BadMessage&) {
      refused++;
    }
  }
  CHECK(refused > 10000);
  CHECK_EQ(index.counts().blocks, 0);
}

TEST(one_thread_stores_while_another_searches) {
  PrefixIndex index(1 << 22);
  const Chain blocks = chain(1, 64);
  std::thread writer([&] {
    for (std::uint32_t i = 0; i < 300; i++) {
      index.store(1 + i % 4, 0, blocks, 0);
      index.store(1, 0, chain(10 + i, 64, blocks[31]), blocks[31]);
      index.drop_place(1 + (i + 1) % 4);
    }
  });
  for (int i = 0; i < 300; i++) {
    const std::int64_t found = depth(index, blocks, 1 + i % 4);
    CHECK(found >= 0 && found <= 64);
  }
  writer.join();
}

}  // namespace
}  // namespace moonpool

TEST_MAIN()
