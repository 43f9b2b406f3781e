#include "base/metrics.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/check.h"

namespace godwit {

Histogram::Histogram(std::span<const double> bounds)
    : bounds_(bounds.begin(), bounds.end()),
      counts_(std::make_unique<std::atomic<uint64_t>[]>(bounds.size() + 1)) {
  GODWIT_CHECK(std::is_sorted(bounds.begin(), bounds.end()));
}

void Histogram::Observe(double v) {
  if (std::isnan(v)) return;
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), v) - bounds_.begin();
  counts_[bucket].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(v, std::memory_order_relaxed);
}

uint64_t Histogram::total() const {
  uint64_t n = 0;
  for (size_t i = 0; i <= bounds_.size(); ++i) n += count(i);
  return n;
}

std::span<const double> DefaultLatencyBounds() {
  static constexpr double kBounds[] = {0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1,
                                       0.3,    1,      3,     10,    30,   100};
  return kBounds;
}

namespace {

std::string Escaped(std::string_view text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\\') {
      out += "\\\\";
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '"' && quotes) {
      out += "\\\"";
    } else {
      out += c;
    }
  }
  return out;
}

// `a="1",b="2"`, sorted, so that the order in which labels are given doesn't matter.
std::string RenderLabels(MetricLabels labels) {
  std::sort(labels.begin(), labels.end());
  std::string out;
  for (const auto& [name, value] : labels) {
    if (!out.empty()) out += ',';
    out += fmt::format("{}=\"{}\"", name, Escaped(value, true));
  }
  return out;
}

std::string Number(double v) {
  if (std::isinf(v)) return v > 0 ? "+Inf" : "-Inf";
  if (std::isnan(v)) return "NaN";
  return fmt::format("{}", v);
}

// One sample line. `extra` is a label more, or empty.
void AppendSample(std::string& out, std::string_view name, std::string_view labels,
                  std::string_view extra, std::string_view value) {
  out += name;
  if (!labels.empty() || !extra.empty()) {
    out += fmt::format("{{{}{}{}}}", labels, labels.empty() || extra.empty() ? "" : ",", extra);
  }
  out += fmt::format(" {}\n", value);
}

using Metric =
    std::variant<std::unique_ptr<Counter>, std::unique_ptr<Gauge>, std::unique_ptr<Histogram>>;
constexpr const char* kTypeNames[] = {"counter", "gauge", "histogram"};

struct Family {
  std::string help;
  size_t type = 0;  // an index of Metric
  std::map<std::string, Metric> metrics;
};

void Render(std::string& out, const std::string& name, const std::string& labels,
            const Histogram& histogram) {
  uint64_t cumulative = 0;
  for (size_t i = 0; i <= histogram.bounds().size(); ++i) {
    cumulative += histogram.count(i);
    const std::string bound =
        i < histogram.bounds().size() ? Number(histogram.bounds()[i]) : std::string("+Inf");
    AppendSample(out, name + "_bucket", labels, fmt::format("le=\"{}\"", bound),
                 std::to_string(cumulative));
  }
  AppendSample(out, name + "_sum", labels, "", Number(histogram.sum()));
  AppendSample(out, name + "_count", labels, "", std::to_string(cumulative));
}

}  // namespace

struct MetricRegistry::Impl {
  mutable Mutex mutex;
  std::map<std::string, Family, std::less<>> families GUARDED_BY(mutex);

  template <typename T, typename Make>
  T& Get(std::string_view name, std::string_view help, MetricLabels labels, Make make) {
    MutexLock lock(mutex);
    auto family = families.find(name);
    if (family == families.end()) {
      family = families.emplace(std::string(name), Family{.help = std::string(help)}).first;
      family->second.type = Metric(std::unique_ptr<T>()).index();
    }
    GODWIT_CHECK(family->second.type == Metric(std::unique_ptr<T>()).index());
    const auto [metric, is_new] =
        family->second.metrics.try_emplace(RenderLabels(std::move(labels)));
    if (is_new) metric->second = make();
    return *std::get<std::unique_ptr<T>>(metric->second);
  }
};

MetricRegistry::MetricRegistry() : impl_(std::make_unique<Impl>()) {}
MetricRegistry::~MetricRegistry() = default;

Counter& MetricRegistry::GetCounter(std::string_view name, std::string_view help,
                                    MetricLabels labels) {
  return impl_->Get<Counter>(name, help, std::move(labels),
                             [] { return std::make_unique<Counter>(); });
}

Gauge& MetricRegistry::GetGauge(std::string_view name, std::string_view help, MetricLabels labels) {
  return impl_->Get<Gauge>(name, help, std::move(labels), [] { return std::make_unique<Gauge>(); });
}

Histogram& MetricRegistry::GetHistogram(std::string_view name, std::string_view help,
                                        std::span<const double> bounds, MetricLabels labels) {
  Histogram& histogram = impl_->Get<Histogram>(name, help, std::move(labels),
                                               [&] { return std::make_unique<Histogram>(bounds); });
  GODWIT_CHECK(std::equal(bounds.begin(), bounds.end(), histogram.bounds().begin(),
                          histogram.bounds().end()));
  return histogram;
}

std::string MetricRegistry::RenderPrometheus() const {
  MutexLock lock(impl_->mutex);
  std::string out;
  for (const auto& [name, family] : impl_->families) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, Escaped(family.help, false), name,
                       kTypeNames[family.type]);
    for (const auto& [labels, metric] : family.metrics) {
      if (const auto* counter = std::get_if<std::unique_ptr<Counter>>(&metric)) {
        AppendSample(out, name, labels, "", std::to_string((*counter)->value()));
      } else if (const auto* gauge = std::get_if<std::unique_ptr<Gauge>>(&metric)) {
        AppendSample(out, name, labels, "", Number((*gauge)->value()));
      } else {
        Render(out, name, labels, *std::get<std::unique_ptr<Histogram>>(metric));
      }
    }
  }
  return out;
}

MetricRegistry& Metrics() {
  static MetricRegistry registry;
  return registry;
}

}  // namespace godwit
