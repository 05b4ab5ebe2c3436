// The prefix tree against a map of prefixes: what is found, held, evicted, told.
#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "block_hash.hpp"
#include "check.hpp"
#include "radix.hpp"

using namespace moonpool;

namespace {

using Tokens = std::vector<std::uint32_t>;
using Pages = std::vector<std::int32_t>;

constexpr std::size_t kPage = 4;

std::mt19937_64 seeded(const char* test) {
  const std::uint64_t seed = std::random_device{}();
  std::printf("  %s: seed %llu\n", test, static_cast<unsigned long long>(seed));
  return std::mt19937_64(seed);
}

// Whole pages of tokens by name.
Tokens prompt(const std::vector<int>& names) {
  Tokens out;
  for (const int name : names) {
    for (std::size_t i = 0; i < kPage; i++)
      out.push_back(static_cast<std::uint32_t>(name) * 10 + i);
  }
  return out;
}

void verify(const RadixTree& tree) {
  Pages pages;
  const std::string wrong = tree.check(pages);
  if (!wrong.empty()) check::fail(__FILE__, __LINE__, wrong);
  CHECK_EQ(pages.size(), tree.cached_pages());
  std::sort(pages.begin(), pages.end());
  CHECK(std::adjacent_find(pages.begin(), pages.end()) == pages.end());
}

std::size_t put(RadixTree& tree, const std::vector<int>& names, const Pages& pages) {
  const auto [node, known] = tree.insert("", 0, prompt(names), pages, RadixTree::kNone);
  verify(tree);
  tree.release(node);
  verify(tree);
  return known;
}

Pages get(RadixTree& tree, const std::vector<int>& names) {
  const auto [node, pages] = tree.match("", 0, prompt(names), true);
  verify(tree);
  Pages out(pages);
  std::vector<std::uint64_t> hashes(pages), chain(pages);
  tree.path(node, out, hashes);
  const Tokens tokens = prompt(names);
  block_chain_u64(0, std::span(tokens).first(pages * kPage), kPage, chain);
  CHECK(hashes == chain);
  tree.release(node);
  return out;
}

}  // namespace

TEST(finds_whole_pages_of_the_longest_prefix) {
  RadixTree tree(kPage, RadixOrder::kUsed, 0);
  CHECK_EQ(put(tree, {1, 2, 3}, {1, 2, 3}), 0);
  CHECK((get(tree, {1, 2, 3, 4}) == Pages{1, 2, 3}));
  CHECK((get(tree, {1, 2, 9}) == Pages{1, 2}));
  CHECK(get(tree, {9}).empty());
  CHECK(get(tree, {}).empty());
  CHECK_EQ(put(tree, {1, 2, 8}, {5, 6, 7}), 2);
  CHECK((get(tree, {1, 2, 8}) == Pages{1, 2, 7}));
}

TEST(long_edges_are_compared_to_the_token) {
  RadixTree tree(16, RadixOrder::kUsed, 0);
  Tokens tokens(16 * 300);
  for (std::size_t i = 0; i < tokens.size(); i++) tokens[i] = static_cast<std::uint32_t>(i * 7);
  Pages pages(300);
  for (int i = 0; i < 300; i++) pages[i] = i;
  tree.release(tree.insert("", 0, tokens, pages, RadixTree::kNone).node);
  for (const std::size_t differs : {15u, 16u, 511u, 512u, 513u, 1024u, 2000u, 4784u, 4799u}) {
    Tokens other = tokens;
    other[differs]++;
    CHECK_EQ(tree.lookup("", other), differs / 16);
  }
  CHECK_EQ(tree.lookup("", tokens), 300);
  CHECK_EQ(tree.lookup("", std::span(tokens).first(100)), 6);
}

TEST(an_eviction_is_exact_and_spares_what_is_held) {
  RadixTree tree(kPage, RadixOrder::kUsed, 0);
  put(tree, {1, 2, 3}, {1, 2, 3});
  put(tree, {1, 4}, {1, 4});
  const auto held = tree.match("", 0, prompt({1, 2}), true);
  verify(tree);
  CHECK_EQ(tree.protected_pages(), 2);
  CHECK((tree.evict(1) == Pages{3}));
  verify(tree);
  CHECK((tree.evict(9) == Pages{4}));
  tree.release(held.node);
  verify(tree);
  CHECK((tree.evict(9) == Pages{2, 1}));
  verify(tree);
  CHECK_EQ(tree.nodes(), 0);
}

TEST(an_external_order_takes_any_tail_and_hears_of_each_access) {
  RadixTree tree(kPage, RadixOrder::kExternal, 0);
  put(tree, {1, 2}, {1, 2});
  put(tree, {3}, {3});
  RadixJournal journal = std::exchange(tree.journal(), {});
  CHECK_EQ(journal.hashes.size(), 3);
  const std::uint64_t first = journal.hashes[1], second = journal.hashes[0];
  CHECK(tree.is_tail(second));
  CHECK(!tree.is_tail(first));
  CHECK_EQ(tree.evict_tail(first), -1);
  CHECK_EQ(tree.evict_tail(second), 2);
  verify(tree);
  CHECK(tree.is_tail(first));
  get(tree, {1});
  journal = std::exchange(tree.journal(), {});
  CHECK((journal.hashes == std::vector<std::uint64_t>{first}));
  CHECK((journal.kinds == std::vector<std::uint8_t>{RadixJournal::kTouched}));
  put(tree, {1, 5, 6}, {1, 5, 6});
  tree.journal() = {};
  CHECK((tree.evict(2) == Pages{3, 6}));  // what nobody chose goes by recency, and is told
  verify(tree);
  journal = std::exchange(tree.journal(), {});
  CHECK((journal.depths == std::vector<std::uint32_t>{0, 2}));
  CHECK((journal.kinds == std::vector<std::uint8_t>(2, RadixJournal::kRemoved)));
  CHECK_EQ(tree.clear().size(), 2);
  CHECK_EQ(tree.journal().kinds.size(), 2);
  verify(tree);
}

// A tree of some order and, beside it, every cached page by the tokens up to its end.
struct World {
  std::mt19937_64 random;
  RadixOrder order;
  RadixTree tree{kPage, order, 64};
  std::map<std::pair<std::string, Tokens>, std::int32_t> model;
  std::set<std::int32_t> free;
  std::vector<std::pair<std::uint32_t, std::pair<std::string, Tokens>>> held;
  std::set<std::uint64_t> told;

  World(std::mt19937_64 seeded, RadixOrder by) : random(seeded), order(by) {}
  std::uint64_t below(std::uint64_t n) { return random() % n; }

  std::pair<std::string, Tokens> chain() {
    std::vector<int> names;
    for (std::size_t i = 1 + below(7); i > 0; i--) names.push_back(static_cast<int>(below(3)));
    return {below(4) == 0 ? "other" : "", prompt(names)};
  }
  static std::uint64_t seed_of(const std::string& space) { return space.size(); }

  std::size_t cached(const std::string& space, const Tokens& tokens) {
    std::size_t pages = 0;
    Tokens part;
    for (; (pages + 1) * kPage <= tokens.size(); pages++) {
      part.insert(part.end(), tokens.begin() + pages * kPage, tokens.begin() + (pages + 1) * kPage);
      if (!model.contains({space, part})) break;
    }
    return pages;
  }

  void insert() {
    const auto [space, tokens] = chain();
    const std::size_t pages = tokens.size() / kPage, known = cached(space, tokens);
    if (free.size() < pages) return;
    Pages own(free.begin(), std::next(free.begin(), static_cast<std::ptrdiff_t>(pages)));
    const std::uint32_t owner = held.empty() ? RadixTree::kNone : held.back().first;
    const auto done = tree.insert(space, seed_of(space), tokens, own, owner);
    CHECK_EQ(done.known, known);
    for (std::size_t i = known; i < pages; i++) {
      free.erase(own[i]);
      model[{space, Tokens(tokens.begin(), tokens.begin() + (i + 1) * kPage)}] = own[i];
    }
    if (done.node == owner) {  // it grew: what the owner held is the start of what it holds now
      tree.release(owner);
      held.pop_back();
    }
    held.push_back({done.node, {space, tokens}});
  }

  void match() {
    const auto [space, tokens] = chain();
    const std::size_t pages = cached(space, tokens);
    CHECK_EQ(tree.lookup(space, tokens), pages);
    const auto found = tree.match(space, seed_of(space), tokens, below(4) > 0);
    CHECK_EQ(found.pages, pages);
    held.push_back({found.node, {space, Tokens(tokens.begin(), tokens.begin() + pages * kPage)}});
  }

  void release() {
    if (held.empty()) return;
    std::swap(held[below(held.size())], held.back());
    tree.release(held.back().first);
    held.pop_back();
  }

  void evict() {
    const std::size_t count = below(5), before = tree.evictable_pages();
    Pages gone;
    if (order == RadixOrder::kExternal) {
      if (below(3) == 0) gone = tree.evict(count);
      const RadixJournal journal = std::exchange(tree.journal(), {});
      for (const std::uint64_t hash : journal.hashes) {
        const bool tail = tree.is_tail(hash);
        const std::int32_t page = tree.evict_tail(hash);
        CHECK_EQ(tail, page >= 0);
        if (page >= 0) gone.push_back(page);
      }
    } else {
      gone = below(50) == 0 ? tree.clear() : tree.evict(count);
      CHECK(gone.size() == std::min(count, before) || gone.size() == before);
    }
    forget(gone);
  }

  void forget(const Pages& gone) {
    for (const std::int32_t page : gone) {
      CHECK(free.insert(page).second);
      CHECK_EQ(std::erase_if(model, [&](const auto& one) { return one.second == page; }), 1);
    }
  }

  // What a follower believes after the events is what is cached.
  void listen() {
    auto records = tree.events().lost() ? tree.report() : std::vector<RadixEvents::Record>{};
    const bool lost = tree.events().lost();
    if (lost) told.clear();
    for (auto& one : tree.events().take()) {
      if (!lost) records.push_back(std::move(one));
    }
    for (const auto& record : records) {
      if (record.kind == RadixEvent::kCleared) told.clear();
      for (const std::uint64_t hash : record.hashes) {
        CHECK(record.kind == RadixEvent::kStored ? told.insert(hash).second
                                                 : told.erase(hash) == 1);
      }
    }
    CHECK_EQ(told.size(), tree.cached_pages());
  }

  void step() {
    switch (below(6)) {
      case 0:
      case 1:
        insert();
        break;
      case 2:
        match();
        break;
      case 3:
        evict();
        break;
      default:
        release();
    }
    if (below(10) == 0) listen();
  }

  void check_all() {
    verify(tree);
    CHECK_EQ(model.size(), tree.cached_pages());
    for (const auto& [node, what] : held) {
      const auto& [space, tokens] = what;
      CHECK_EQ(tree.path_pages(node), tokens.size() / kPage);
      CHECK_EQ(cached(space, tokens), tokens.size() / kPage);
      Pages pages(tree.path_pages(node));
      std::vector<std::uint64_t> hashes(pages.size());
      tree.path(node, pages, hashes);
      for (std::size_t i = 0; i < pages.size(); i++) {
        const Tokens part(tokens.begin(), tokens.begin() + (i + 1) * kPage);
        CHECK_EQ(model.at({space, part}), pages[i]);
      }
    }
  }
};

TEST(random_schedules_in_every_order) {
  for (const RadixOrder order :
       {RadixOrder::kUsed, RadixOrder::kCreated, RadixOrder::kUses, RadixOrder::kExternal}) {
    World world(seeded("schedule"), order);
    for (std::int32_t page = 0; page < 40; page++) world.free.insert(page);
    for (int step = 0; step < 4000; step++) {
      world.step();
      world.check_all();
    }
    while (!world.held.empty()) world.release();
    world.forget(world.tree.clear());
    world.check_all();
    CHECK_EQ(world.tree.nodes(), 0);
    CHECK_EQ(world.free.size(), 40);
  }
}

TEST_MAIN()
