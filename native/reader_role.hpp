// Who takes the answers off a connection's socket: the I/O thread, or one of the threads that wait
// for an op, so that a blocking call costs no hand-over between threads.
//
//   state   who reads           what the I/O thread's epoll set watches
//   IDLE    nobody has to       the peer's end (EPOLLRDHUP, one shot), or still EPOLLIN
//   SERVED  the I/O thread      EPOLLIN
//   LED     a waiting thread    the peer's end, one shot
//   GONE    nobody              nothing
//
//   IDLE -> SERVED         watch(), after a request was queued
//   IDLE, SERVED -> LED    enter(), of the first thread that waits; others sleep on their ops
//   LED -> SERVED or IDLE  leave(): its op has ended, its time is up, or the stream has ended
//   any -> GONE            retire(), which waits for LED to be left
//
// The role only says who sleeps on the socket. Taking bytes off it, and ending ops, is done under
// the connection's receive lock; the role's own lock is the innermost of all. No wake-up is lost:
//   - A leader looks at its op under the receive lock after it has entered: a turn of the I/O
//     thread that began before is over by then, one that begins later sees that it is led.
//   - Whoever ends an op that a leader may wait for kicks it, after that; the leader looks at its
//     op after each sleep.
//   - What arrives while nobody sleeps is still in the socket: leave() watches by level.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>

#include "loop.hpp"
#include "socket_io.hpp"

namespace moonpool {

class ReaderRole {
 public:
  static constexpr std::uint32_t kFirstEvents = EPOLLIN;  // what the source is to be added with

  ReaderRole(Loop& loop, const Source& source) : loop_(loop), source_(source) {}

  // A waiting thread: false when somebody else reads for it.
  bool enter();
  // Sleeps until the socket is readable (true), the leader is kicked, or `until_ns`.
  bool sleep(std::int64_t until_ns);
  void leave();

  // I/O thread. `on_event` before it handles an event, `watch` after it.
  void on_event(std::uint32_t events);
  bool led() const;
  void kick();
  void retire();

  // The leader, after each sleep: the connection is about to be removed, and waits for it to leave.
  bool gone() const;

  // Any thread. One more answer will come; `watch` makes sure that somebody reads it.
  void expect();
  void answered();
  void watch();
  void want_write(bool wanted);

 private:
  void watch_locked();

  Loop& loop_;
  const Source& source_;
  mutable std::mutex mutex_;
  std::condition_variable left_;
  bool led_ = false;
  bool gone_ = false;
  bool end_seen_ = false;  // the one shot hit while led: it would hit again at once
  bool wants_write_ = false;
  std::uint64_t unanswered_ = 0;
  std::uint32_t armed_ = kFirstEvents;  // 0 after a one shot
  Descriptor kick_;                     // made for the first leader
};

}  // namespace moonpool
