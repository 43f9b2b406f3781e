#include "base/metrics.h"

#include <cmath>

#include "base/testing/matchers.h"
#include "base/thread.h"

namespace godwit {
namespace {

TEST(MetricsTest, RendersThePrometheusTextFormat) {
  MetricRegistry registry;
  registry.GetCounter("godwit_saves_total", "Saves.", {{"kind", "periodic"}}).Add(3);
  registry.GetCounter("godwit_saves_total", "Saves.", {{"kind", "a\"b\\c\n"}}).Add();
  registry.GetGauge("godwit_eta_seconds", "ETA\nof now.").Set(1.5);
  const double bounds[] = {0.1, 1};
  Histogram& h = registry.GetHistogram("godwit_stall_seconds", "Stall.", bounds);
  for (const double v : {0.05, 0.1, 0.5, 7.0}) h.Observe(v);
  EXPECT_EQ(registry.RenderPrometheus(),
            "# HELP godwit_eta_seconds ETA\\nof now.\n"
            "# TYPE godwit_eta_seconds gauge\n"
            "godwit_eta_seconds 1.5\n"
            "# HELP godwit_saves_total Saves.\n"
            "# TYPE godwit_saves_total counter\n"
            "godwit_saves_total{kind=\"a\\\"b\\\\c\\n\"} 1\n"
            "godwit_saves_total{kind=\"periodic\"} 3\n"
            "# HELP godwit_stall_seconds Stall.\n"
            "# TYPE godwit_stall_seconds histogram\n"
            "godwit_stall_seconds_bucket{le=\"0.1\"} 2\n"
            "godwit_stall_seconds_bucket{le=\"1\"} 3\n"
            "godwit_stall_seconds_bucket{le=\"+Inf\"} 4\n"
            "godwit_stall_seconds_sum 7.65\n"
            "godwit_stall_seconds_count 4\n");
}

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameMetric) {
  MetricRegistry registry;
  Counter& a = registry.GetCounter("x", "", {{"a", "1"}, {"b", "2"}});
  Counter& b = registry.GetCounter("x", "", {{"b", "2"}, {"a", "1"}});
  EXPECT_EQ(&a, &b);
  EXPECT_NE(&a, &registry.GetCounter("x", "", {{"a", "1"}}));
  EXPECT_DEATH(registry.GetGauge("x", ""), "CHECK failed");
}

TEST(MetricsTest, NoUpdateOfSeveralThreadsIsLost) {
  MetricRegistry registry;
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("metrics", [&](StopToken) {
        for (int i = 0; i < 1000; ++i) {
          registry.GetCounter("c", "").Add();
          registry.GetGauge("g", "").Add(1);
          registry.GetHistogram("h", "").Observe(std::chrono::seconds(1));
        }
      });
    }
    for (Thread& t : threads) t.Join();
  }
  EXPECT_EQ(registry.GetCounter("c", "").value(), 4000u);
  EXPECT_EQ(registry.GetGauge("g", "").value(), 4000);
  EXPECT_EQ(registry.GetHistogram("h", "").total(), 4000u);
  EXPECT_EQ(registry.GetHistogram("h", "").sum(), 4000);
}

TEST(HistogramTest, NanIsIgnored) {
  Histogram h(DefaultLatencyBounds());
  h.Observe(std::nan(""));
  EXPECT_EQ(h.total(), 0u);
  EXPECT_EQ(h.sum(), 0);
}

}  // namespace
}  // namespace godwit
