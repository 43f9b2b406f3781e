#pragma once

#include <functional>
#include <stop_token>
#include <string>
#include <thread>

namespace godwit {

using StopToken = std::stop_token;

// A named thread, which is told to stop and joined when it's destroyed. The function must come back
// soon once its token says so (std::stop_callback wakes what it waits on).
class Thread {
 public:
  Thread() = default;
  // `name` is what ps and gdb show; the kernel keeps its first 15 bytes. All signals are blocked in
  // the thread: they belong to the main thread.
  Thread(const std::string& name, std::function<void(StopToken)> run);
  Thread(Thread&&) noexcept = default;
  Thread& operator=(Thread&& other) noexcept;  // stops and joins the thread it held
  ~Thread();

  void RequestStop() { stop_.request_stop(); }
  bool joinable() const { return thread_.joinable(); }
  // Blocks until the function has returned. Does not ask it to stop.
  void Join();

 private:
  std::stop_source stop_{std::nostopstate};
  std::thread thread_;
};

// Gives the calling thread a name.
void SetCurrentThreadName(const std::string& name);

}  // namespace godwit
