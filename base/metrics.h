#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace godwit {

// All updates are wait-free or a short CAS loop, and thread-safe.
class Counter {
 public:
  void Add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

class Gauge {
 public:
  void Set(double v) { value_.store(v, std::memory_order_relaxed); }
  void Add(double v) { value_.fetch_add(v, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0};
};

class Histogram {
 public:
  // Upper bounds (inclusive), ascending; values above the last count in +Inf.
  explicit Histogram(std::span<const double> bounds);
  // NaN is ignored.
  void Observe(double v);
  void Observe(Duration d) { Observe(std::chrono::duration<double>(d).count()); }  // seconds

  std::span<const double> bounds() const { return bounds_; }
  // Of bucket i alone (not cumulative); i == bounds().size() is +Inf.
  uint64_t count(size_t i) const { return counts_[i].load(std::memory_order_relaxed); }
  uint64_t total() const;
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  const std::vector<double> bounds_;
  const std::unique_ptr<std::atomic<uint64_t>[]> counts_;
  std::atomic<double> sum_{0};
};

// 100 us to 100 s, for latencies in seconds.
std::span<const double> DefaultLatencyBounds();

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Named metrics. A name with the same labels gives the same object, which lives as long as the
// registry; the same name with another type (or another histogram's bounds) is a bug, and checked.
// Look a metric up once and keep the reference: the look-up takes a lock. Thread-safe.
class MetricRegistry {
 public:
  MetricRegistry();
  ~MetricRegistry();
  Counter& GetCounter(std::string_view name, std::string_view help, MetricLabels labels = {});
  Gauge& GetGauge(std::string_view name, std::string_view help, MetricLabels labels = {});
  Histogram& GetHistogram(std::string_view name, std::string_view help,
                          std::span<const double> bounds = DefaultLatencyBounds(),
                          MetricLabels labels = {});

  // The text exposition format, version 0.0.4
  // (https://prometheus.io/docs/instrumenting/exposition_formats/), sorted by name.
  std::string RenderPrometheus() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// The process's own registry.
MetricRegistry& Metrics();
inline std::string RenderPrometheus() { return Metrics().RenderPrometheus(); }

}  // namespace godwit
