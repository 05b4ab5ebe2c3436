// Who is held to which CPU, and for how long.
#include <optional>

#include "check.hpp"
#include "cpu_share.hpp"
#include "endpoint.hpp"
#include "endpoint_requests.hpp"

using namespace moonpool;

namespace {

constexpr std::int64_t kUs = 1000;

// `n` questions, each waited for at once; whether the last one was flagged.
bool ask(WaitStreak& streak, int n, std::int64_t& now) {
  bool flagged = false;
  for (int i = 0; i < n; i++) {
    flagged = streak.sent(true, now += 100 * kUs);
    streak.waited(true, now += 10 * kUs);
  }
  return flagged;
}

}  // namespace

TEST(a_run_of_waits_is_flagged) {
  WaitStreak streak;
  std::int64_t now = 0;
  CHECK(!ask(streak, WaitStreak::kSteady, now));
  CHECK(ask(streak, 1, now));
  CHECK(ask(streak, 100, now));
}

TEST(what_ends_a_run_of_waits) {
  std::int64_t now = 0;
  WaitStreak beside, unwaited, late, together, twice;
  for (WaitStreak* one : {&beside, &unwaited, &late, &together}) {
    CHECK(ask(*one, WaitStreak::kSteady + 1, now));
  }
  CHECK(!beside.sent(false, now));  // something is under way
  CHECK(!ask(beside, WaitStreak::kSteady - 1, now));

  CHECK(unwaited.sent(true, now));
  CHECK(!unwaited.sent(true, now));  // nobody waited for the one before
  CHECK(!ask(unwaited, WaitStreak::kSteady - 1, now));

  CHECK(late.sent(true, now));
  late.waited(true, now += WaitStreak::kAtOnceNs + 1);
  CHECK(!ask(late, WaitStreak::kSteady, now));

  CHECK(together.sent(true, now));
  together.waited(false, now);  // something was sent after it
  CHECK(!ask(together, WaitStreak::kSteady, now));

  // Waited for again after its time was up: one question counts once.
  for (int i = 0; i < WaitStreak::kSteady; i++) twice.waited(true, now);
  CHECK(!ask(twice, WaitStreak::kSteady - 1, now));
}

TEST(one_asker_is_followed) {
  AskerStreak streak;
  for (int i = 1; i < AskerStreak::kSteady; i++) CHECK(!streak.asked(7, true));
  CHECK(streak.asked(7, true));
  CHECK(!streak.asked(7, false));  // a question that nobody waits for
  for (int i = 1; i < AskerStreak::kSteady; i++) CHECK(!streak.asked(7, true));
  CHECK(streak.asked(7, true));
  CHECK(!streak.asked(8, true));  // somebody else
  CHECK(!streak.asked(7, true));
  for (int i = 2; i < AskerStreak::kSteady; i++) CHECK(!streak.asked(7, true));
  CHECK(!streak.gone(8));
  CHECK(streak.asked(7, true));
  CHECK(streak.gone(7));
  CHECK(!streak.asked(7, true));
}

namespace {

cpu_set_t affinity() {
  cpu_set_t set;
  CHECK_EQ(::sched_getaffinity(0, sizeof(set), &set), 0);
  return set;
}

bool same(const cpu_set_t& a, const cpu_set_t& b) { return CPU_EQUAL(&a, &b); }

}  // namespace

TEST(a_hold_is_given_back) {
  cpu_set_t before = affinity();
  {
    CpuStay stay;
    CHECK(same(affinity(), before));
    stay.begin();
    cpu_set_t held = affinity();
    CHECK_EQ(CPU_COUNT(&held), 1);
    CHECK(CPU_ISSET(static_cast<std::size_t>(::sched_getcpu()), &held));
  }
  CHECK(same(affinity(), before));

  CpuHold hold;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    bool may = CPU_ISSET(static_cast<std::size_t>(cpu), &before);
    CHECK_EQ(hold.take(cpu), may);
    CHECK_EQ(hold.cpu(), may ? cpu : -1);
    cpu_set_t now = affinity();
    CHECK_EQ(CPU_COUNT(&now), may ? 1 : CPU_COUNT(&before));
  }
  CHECK(!hold.take(-1));
  CHECK(!hold.take(CPU_SETSIZE));
  hold.let_go();
  CHECK(same(affinity(), before));
}

// Whoever sets a thread's CPUs while it is held has the last word.
TEST(a_hold_does_not_undo_what_others_set) {
  cpu_set_t before = affinity();
  if (CPU_COUNT(&before) < 2) return;
  int first = 0;
  while (!CPU_ISSET(static_cast<std::size_t>(first), &before)) first++;
  int second = first + 1;
  while (!CPU_ISSET(static_cast<std::size_t>(second), &before)) second++;
  CpuHold hold;
  CHECK(hold.take(first));
  cpu_set_t theirs;
  CPU_ZERO(&theirs);
  CPU_SET(static_cast<std::size_t>(second), &theirs);
  CHECK_EQ(::sched_setaffinity(0, sizeof(theirs), &theirs), 0);
  hold.let_go();
  CHECK(same(affinity(), theirs));

  CHECK_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
  CHECK(hold.take(first));
  CHECK_EQ(::sched_setaffinity(0, sizeof(theirs), &theirs), 0);
  CHECK(hold.take(second));  // from one CPU to the next
  hold.let_go();
  CHECK(same(affinity(), theirs));
  CHECK_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
}

namespace {

struct World {
  explicit World(bool share) : memory(1 << 20, 9) {
    EndpointOptions options;
    options.share_cpu = share;
    server.emplace(0, "token", options);
    client.emplace(0, "token", options);
    region = server->register_region("memory", memory.data(), memory.size(), true);
    address = "127.0.0.1:" + std::to_string(server->listen_tcp("127.0.0.1", 0));
    peer = client->connect(address, 5000);
  }

  std::shared_ptr<Op> post(ClientConnection& by, std::vector<std::uint8_t>& to) {
    using Numbers = std::vector<std::uint64_t>;
    Submission submission = read_raw(*client, by, region, Numbers{0}, Numbers{to.size()},
                                     {to.data(), to.size()}, Numbers{0}, -1, true);
    auto op = submission.op;
    by.submit(std::move(submission), false);
    return op;
  }

  void ask(ClientConnection& by, int n, std::size_t size = 4096) {
    for (int i = 0; i < n; i++) {
      std::vector<std::uint8_t> to(size);
      auto op = post(by, to);
      CHECK(op->wait(-1) && op->state() == OpState::kDone);
      CHECK_EQ(to.front(), 9);
    }
  }

  std::uint64_t moves() const { return server->counters().cpu_moves; }
  std::uint64_t waits() const { return client->counters().waits_on_shared_cpu; }

  std::vector<std::uint8_t> memory;
  std::optional<Endpoint> server, client;
  std::uint64_t region = 0;
  std::string address;
  std::shared_ptr<ClientConnection> peer;
};

constexpr int kBoth = WaitStreak::kSteady + AskerStreak::kSteady + 1;

}  // namespace

TEST(a_server_comes_to_its_only_asker) {
  World world(true);
  cpu_set_t before = affinity();
  if (CPU_COUNT(&before) < 2) return;
  // On a busy machine a wait may begin too late to count, and both start over.
  for (int i = 0; i < 1000 && world.moves() == 0; i++) world.ask(*world.peer, kBoth);
  CHECK(same(affinity(), before));
  CHECK(world.moves() >= 1);
}

TEST(what_is_large_or_shared_is_left_alone) {
  World large(true);
  large.ask(*large.peer, 3 * kBoth, kSameHostSendBytes);
  CHECK_EQ(large.moves() + large.waits(), 0u);

  World off(false);
  off.ask(*off.peer, 3 * kBoth);
  CHECK_EQ(off.moves() + off.waits(), 0u);

  World two(true);
  auto other = two.client->connect(two.address, 5000);
  for (int i = 0; i < 3 * kBoth; i++) {
    two.ask(*two.peer, 1);
    two.ask(*other, 1);
  }
  CHECK_EQ(two.moves(), 0u);

  World ahead(true);
  std::vector<std::uint8_t> rooms[2] = {std::vector<std::uint8_t>(4096),
                                        std::vector<std::uint8_t>(4096)};
  std::shared_ptr<Op> before;
  for (int i = 0; i < 3 * kBoth; i++) {
    auto next = ahead.post(*ahead.peer, rooms[i % 2]);
    if (before) CHECK(before->wait(-1));
    before = next;
  }
  CHECK(before->wait(-1));
  CHECK_EQ(ahead.moves() + ahead.waits(), 0u);
}

// Whether it ends with its answer, its time or its connection, the thread is free again.
TEST(a_wait_lets_go) {
  World world(true);
  cpu_set_t before = affinity();
  world.ask(*world.peer, 2 * kBoth);
  std::vector<std::uint8_t> to(4096);
  auto op = world.post(*world.peer, to);
  op->wait(1);
  CHECK(same(affinity(), before));
  CHECK(op->wait(-1));
  world.client->close_connection(world.peer);
  CHECK(same(affinity(), before));
}

TEST_MAIN()
