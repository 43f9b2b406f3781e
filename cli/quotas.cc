#include <fmt/format.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/proto_json.h"
#include "cli/scheduler_client.h"
#include "cli/table.h"
#include "cli/verb.h"
#include "cli/watch.h"

namespace godwit::cli {
namespace {

struct Options {
  std::string scheduler;
  bool json = false, watch = false;
};

Result<std::string> Render(SchedulerClient& client, bool json) {
  GODWIT_ASSIGN_OR_RETURN(const proto::ListQuotasReply reply, client.ListQuotas());
  if (json) return ToJson(reply)["quotas"].dump(2) + "\n";
  Table table(
      {"QUOTA", "GUARANTEED", "USED", "MAX", "LENDABLE", "LENT", "BORROWED", "WAITING", "QUEUE"});
  for (const proto::QuotaInfo& quota : reply.quotas()) {
    table.Row({quota.name(), fmt::format("{}", quota.guaranteed()),
               fmt::format("{}", quota.used_guaranteed()),
               quota.max() == 0 ? "-" : fmt::format("{}", quota.max()),
               quota.lendable() ? "yes" : "no", fmt::format("{}", quota.lent()),
               fmt::format("{}", quota.used_idle()), fmt::format("{}", quota.waiting()),
               quota.queue()});
  }
  return table.Render();
}

int Quotas(const Options& options) {
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  return PrintOrWatch(options.watch, [&] { return Render(*client, options.json); });
}

}  // namespace

void AddQuotas(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      AddVerb(root, "quotas", "Show what each quota has, uses, lends and borrows", "quotas -w");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_flag("-w,--watch", options->watch, "Show it again every second");
  AddJson(app, &options->json);
  verbs.push_back({app, false, [options](const Command&) { return Quotas(*options); }});
}

}  // namespace godwit::cli
