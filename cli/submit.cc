#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/file_system.h"
#include "base/real_file_system.h"
#include "cli/follow.h"
#include "cli/job_spec.h"
#include "cli/scheduler_client.h"
#include "cli/verb.h"

namespace godwit::cli {
namespace {

constexpr uint64_t kMaxJobFileBytes = 4 << 20;

struct Options {
  std::string scheduler;
  std::string file, name, quota, job_class, idle, workers, grace, dir;
  std::vector<std::string> env;
  uint32_t priority = 0, slots_per_worker = 0, max_restarts = 0, max_job_restarts = 0;
  CLI::Option* max_restarts_option = nullptr;
  CLI::Option* max_job_restarts_option = nullptr;
  CLI::Option* priority_option = nullptr;
  bool no_auto_restart = false, wait = false, follow = false, json = false;
};

std::string Absolute(const std::string& path, const std::string& cwd) {
  return path.empty() || path.front() == '/' ? path : JoinPath(cwd, path);
}

std::string UserName() {
  const passwd* entry = getpwuid(geteuid());
  return entry != nullptr ? entry->pw_name : fmt::format("uid {}", geteuid());
}

// A setter's error begins with the field's name, which is that of its option.
Status OfOption(const Status& status) {
  return status.ok() ? status : Status(status.code(), "submit: --" + status.message());
}

Result<proto::JobSpec> MakeSpec(const Options& options, const Command& command) {
  char* here = getcwd(nullptr, 0);
  if (here == nullptr) return ErrnoError(errno, "submit: the working directory");
  const std::string cwd = here;
  free(here);

  proto::JobSpec spec;
  spec.set_cwd(cwd);
  if (!options.file.empty()) {
    GODWIT_ASSIGN_OR_RETURN(const std::string text,
                            RealFileSystem().ReadFile(options.file, kMaxJobFileBytes));
    GODWIT_RETURN_IF_ERROR(ReadJobJson(text, options.file, &spec));
    spec.set_cwd(Absolute(spec.cwd(), cwd));
  }
  if (!options.name.empty()) spec.set_name(options.name);
  if (!options.quota.empty()) spec.set_quota(options.quota);
  if (!options.job_class.empty())
    GODWIT_RETURN_IF_ERROR(OfOption(SetJobClass(options.job_class, &spec)));
  if (options.priority_option->count() > 0) {
    GODWIT_RETURN_IF_ERROR(OfOption(SetPriority(options.priority, &spec)));
  }
  if (!options.idle.empty()) GODWIT_RETURN_IF_ERROR(OfOption(SetIdle(options.idle, &spec)));
  if (!options.workers.empty())
    GODWIT_RETURN_IF_ERROR(OfOption(SetWorkers(options.workers, &spec)));
  if (options.slots_per_worker > 0) spec.set_slots_per_worker(options.slots_per_worker);
  if (options.max_restarts_option->count() > 0) spec.set_max_restarts(options.max_restarts);
  if (options.max_job_restarts_option->count() > 0) {
    spec.set_max_job_restarts(options.max_job_restarts);
  }
  if (!options.grace.empty()) GODWIT_RETURN_IF_ERROR(OfOption(SetGrace(options.grace, &spec)));
  if (options.no_auto_restart) spec.set_auto_restart(false);
  for (const std::string& entry : options.env)
    GODWIT_RETURN_IF_ERROR(OfOption(SetEnv(entry, &spec)));
  if (!options.dir.empty()) spec.set_directory(options.dir);
  spec.set_directory(Absolute(spec.directory(), spec.cwd()));
  if (!command.empty()) {
    spec.clear_argv();
    for (const std::string& word : command) spec.add_argv(word);
  }

  if (spec.argv().empty()) {
    return InvalidArgumentError(
        "submit: no command; give it after '--' ('godwit submit --workers 2 -- ./train') or as "
        "'command' in the file of -f");
  }
  if (spec.min_workers() == 0) GODWIT_RETURN_IF_ERROR(SetWorkers("1", &spec));
  if (spec.slots_per_worker() == 0) spec.set_slots_per_worker(1);
  if (spec.name().empty()) spec.set_name(BaseName(spec.argv(0)));
  // What the job's program looks for by name is looked for in the submitter's PATH.
  const char* path = std::getenv("PATH");
  bool has_path = false;
  for (const std::string& entry : spec.env()) has_path = has_path || entry.starts_with("PATH=");
  if (!has_path && path != nullptr) {
    GODWIT_RETURN_IF_ERROR(SetEnv(std::string("PATH=") + path, &spec));
  }
  spec.set_user(UserName());
  return spec;
}

int Submit(const Options& options, const Command& command) {
  Result<proto::JobSpec> spec = MakeSpec(options, command);
  if (!spec.ok()) return Fail(spec.status());
  Result<SchedulerClient> client = SchedulerClient::Open(options.scheduler);
  if (!client.ok()) return Fail(client.status());
  proto::SubmitRequest request;
  *request.mutable_spec() = *spec;
  Result<proto::SubmitReply> reply = client->Submit(request);
  if (!reply.ok()) return Fail(reply.status());
  if (options.json) {
    fmt::print("{}\n", nlohmann::ordered_json{{"job_id", reply->job_id()}}.dump());
  } else {
    fmt::print("{}\n", reply->job_id());
  }
  std::fflush(stdout);
  if (!options.wait && !options.follow) return kExitOk;
  return FollowJob(*client, reply->job_id(), {.output = options.follow, .prefix = true});
}

}  // namespace

void AddSubmit(CLI::App& root, Verbs& verbs) {
  auto options = std::make_shared<Options>();
  CLI::App* app =
      AddVerb(root, "submit", "Queue a job and print its id",
              "submit --name gpt --quota team-a --idle accept --workers 1:3 --dir runs/gpt -- "
              "./train --steps 1000");
  AddSchedulerAddress(app, &options->scheduler);
  app->add_option("-f,--file", options->file, "Read the job from JSON; options override it")
      ->type_name("JOB.json");
  app->add_option("--name", options->name, "Name for people (default: the program's)");
  app->add_option("--quota", options->quota, "Quota that pays (default: the only one)");
  app->add_option("--class", options->job_class, "high, medium (default) or low");
  options->priority_option =
      app->add_option("--priority", options->priority, "1 (lowest) to 9, instead of a class");
  app->add_option("--idle", options->idle,
                  "Use of idle capacity of other quotas: forbid (default), accept or only");
  app->add_option("--workers", options->workers, "N, or MIN:MAX for an elastic job (default: 1)");
  app->add_option("--slots-per-worker", options->slots_per_worker,
                  "Slots of a worker (default: 1)");
  options->max_restarts_option = app->add_option("--max-restarts", options->max_restarts,
                                                 "Restarts in place after failures (default: 3)");
  options->max_job_restarts_option =
      app->add_option("--max-job-restarts", options->max_job_restarts,
                      "Restarts through the queue after failures (default: 0)");
  app->add_option("--grace", options->grace, "Time that a notice leaves the job, as in 30s")
      ->type_name("DURATION");
  app->add_flag("--no-auto-restart", options->no_auto_restart,
                "End as Failed when reclaimed, instead of queueing again");
  app->add_option("--env", options->env, "NAME=value for the workers; may be repeated")
      ->allow_extra_args(false);
  app->add_option("--dir", options->dir, "Directory of checkpoints (GODWIT_DIR of the workers)");
  app->add_flag("--wait", options->wait, "Return when the job has ended, with its outcome's code");
  app->add_flag("--follow", options->follow, "--wait, and print what the workers print");
  AddJson(app, &options->json);
  verbs.push_back({app, true, [options](const Command& c) { return Submit(*options, c); }});
}

}  // namespace godwit::cli
