#include "runtime/collective/gloo/gloo_collective.h"

#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <exception>
#include <utility>

namespace godwit {
namespace {

using std::chrono::milliseconds;

milliseconds ToMillis(Duration d) { return std::chrono::ceil<milliseconds>(d); }

// Gloo says everything by exceptions, a timeout too; here they become statuses.
template <typename F>
Status Guard(const char* what, F&& f) {
  try {
    std::forward<F>(f)();
    return OkStatus();
  } catch (const std::exception& e) {
    return UnavailableError(std::string("gloo ") + what + ": " + e.what());
  }
}

// Carries a status through Gloo's stack frames.
struct StatusException : std::exception {
  explicit StatusException(Status s) : status(std::move(s)) {}
  const char* what() const noexcept override { return status.message().c_str(); }
  Status status;
};

class ExchangeStore : public gloo::rendezvous::Store {
 public:
  ExchangeStore(const KeyExchange& exchange, Duration timeout)
      : exchange_(exchange), deadline_(SaturatingAdd(MonotonicClock::now(), timeout)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    Check(exchange_.set("gloo/" + key, std::string_view(data.data(), data.size())));
  }
  std::vector<char> get(const std::string& key) override {
    auto value = exchange_.get("gloo/" + key, deadline_ - MonotonicClock::now());
    Check(value.status());
    return std::vector<char>(value->begin(), value->end());
  }
  // get waits.
  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const milliseconds&) override {}

 private:
  static void Check(const Status& status) {
    if (!status.ok()) throw StatusException(status);
  }
  const KeyExchange& exchange_;
  const MonotonicTime deadline_;
};

class GlooCollective : public Collective {
 public:
  GlooCollective(std::shared_ptr<gloo::rendezvous::Context> context, Duration timeout)
      : context_(std::move(context)), timeout_(ToMillis(timeout)) {}

  Status AllReduceSum(std::span<float> values) override {
    if (values.empty()) return OkStatus();
    return Guard("all-reduce", [&] {
      gloo::AllreduceOptions options(context_);
      options.setOutput(values.data(), values.size());
      options.setReduceFunction(
          static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
      options.setTimeout(timeout_);
      gloo::allreduce(options);
    });
  }

  Status Broadcast(std::span<std::byte> bytes, uint32_t root) override {
    if (bytes.empty()) return OkStatus();
    return Guard("broadcast", [&] {
      gloo::BroadcastOptions options(context_);
      options.setOutput(reinterpret_cast<uint8_t*>(bytes.data()), bytes.size());
      options.setRoot(static_cast<int>(root));
      options.setTimeout(timeout_);
      gloo::broadcast(options);
    });
  }

  Status Barrier() override {
    return Guard("barrier", [&] {
      gloo::BarrierOptions options(context_);
      options.setTimeout(timeout_);
      gloo::barrier(options);
    });
  }

 private:
  std::shared_ptr<gloo::rendezvous::Context> context_;
  const milliseconds timeout_;
};

}  // namespace

Result<std::unique_ptr<Collective>> OpenGlooCollective(const GlooOptions& options,
                                                       const KeyExchange& exchange) {
  std::shared_ptr<gloo::rendezvous::Context> context;
  Status failed;
  Status status = Guard("connect", [&] {
    gloo::transport::tcp::attr attr;
    attr.hostname = options.host;
    auto device = gloo::transport::tcp::CreateDevice(attr);
    context = std::make_shared<gloo::rendezvous::Context>(static_cast<int>(options.rank),
                                                          static_cast<int>(options.world_size));
    context->setTimeout(ToMillis(options.connect_timeout));
    ExchangeStore store(exchange, options.connect_timeout);
    try {
      context->connectFullMesh(store, device);
    } catch (const StatusException& e) {
      failed = e.status;
    }
  });
  if (!failed.ok()) status = failed;
  if (!status.ok()) {
    return status.Annotate("rank " + std::to_string(options.rank) + " of " +
                           std::to_string(options.world_size) + " at " + options.host);
  }
  return std::unique_ptr<Collective>(
      std::make_unique<GlooCollective>(std::move(context), options.timeout));
}

}  // namespace godwit
