#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace godwit {

// Background work in pieces, with rests while others want the processors. Priorities alone don't do
// it: a thread at idle priority that never sleeps still draws the kernel's load balancer to put two
// busy threads on one processor (measured on Linux 6.18 with two threads that meet at a barrier: a
// step of 5.1 ms takes 8 to 10 ms beside it, and 5.2 ms beside one that rests).

// How long to rest after `worked`, pure. `waited`: how long somebody waited for a processor since
// the last look, `elapsed` ago.
Duration RestAfter(Duration worked, Duration waited, Duration elapsed);

// Not thread-safe: of the thread that works.
class BackgroundPace {
 public:
  // Time during which at least one thread of the machine (of the container, where it has its own
  // count) waited for a processor; empty: not known.
  using WaitedFn = std::function<std::optional<Duration>()>;

  // By the kernel's pressure stall information (/proc/pressure/cpu), else by what this thread
  // itself has waited (schedstat).
  explicit BackgroundPace(Clock& clock);
  BackgroundPace(Clock& clock, WaitedFn waited);

  // A piece of work is done: how long to rest now. Some microseconds; pieces of 0.1 to 1 ms suit.
  Duration EndPiece();
  // Somebody waited during most of the last pieces: what costs processor time can be left out.
  bool contended() const { return contended_ > 0.5; }

 private:
  Clock& clock_;
  WaitedFn waited_;
  MonotonicTime last_;
  std::optional<Duration> last_waited_;
  double contended_ = 0;  // share of the last ten pieces or so
};

// Puts the calling thread behind all others, but not so far that it never runs beside busy ones
// (nice 19). A hint.
void LowerThreadPriority();

}  // namespace godwit
