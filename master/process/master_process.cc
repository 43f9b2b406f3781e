#include "master/process/master_process.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <grpcpp/grpcpp.h>
#include <malloc.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <memory>
#include <utility>

#include "base/event_loop.h"
#include "base/log.h"
#include "base/process.h"
#include "base/thread.h"
#include "base/unique_fd.h"
#include "master/ops/convert.h"
#include "master/ops/master_service.h"
#include "master/process/engine.h"
#include "master/process/journal.h"
#include "master/process/scheduler_client.h"

namespace godwit::master {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kMaxSocketPath = 107;  // sun_path without its NUL
constexpr uint64_t kMaxSpecBytes = 16 << 20;
constexpr uint32_t kDefaultRestarts = 3;

Status CheckOptions(const MasterOptions& o) {
  if (o.job_id.empty()) return InvalidArgumentError("master: the job has no id");
  if (o.run_dir.empty()) return InvalidArgumentError("master: the run directory is empty");
  if (!o.standalone) {
    if (o.scheduler.empty()) {
      return InvalidArgumentError("master: needs the scheduler's address, or must be standalone");
    }
    return OkStatus();
  }
  if (o.argv.empty()) return InvalidArgumentError("master: no command for the workers");
  if (o.nodes == 0 || o.workers == 0) {
    return InvalidArgumentError(fmt::format(
        "master: {} nodes and {} workers: there must be at least one of each", o.nodes, o.workers));
  }
  return OkStatus();
}

// One master per run directory. The lock goes with the process.
Result<UniqueFd> LockRunDir(const std::string& run_dir) {
  const std::string path = JoinPath(run_dir, "lock");
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) return ErrnoError(errno, fmt::format("open({})", path));
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return FailedPreconditionError(
          fmt::format("another master runs in {} (it holds {})", run_dir, path));
    }
    return ErrnoError(errno, fmt::format("flock({})", path));
  }
  return fd;
}

// What the scheduler said of the job, kept so that a restarted master needs no scheduler to go on.
std::string SpecPath(const std::string& run_dir) { return JoinPath(run_dir, "spec"); }

void KeepSpec(FileSystem& fs, const std::string& run_dir, const proto::RegisterMasterReply& reply) {
  const std::string path = SpecPath(run_dir);
  const std::string temp = path + ".new";
  if (Status s = fs.Unlink(temp); !s.ok() && s.code() != StatusCode::kNotFound) {
    LogWarning("{}", s.message());
  }
  Status s = WriteFileAtomic(fs, temp, path, AsBytes(reply.SerializeAsString()));
  // Without it a restarted master has to wait for the scheduler: a pity, no harm.
  if (!s.ok() && s.code() != StatusCode::kAlreadyExists) LogWarning("{}", s.message());
}

std::optional<proto::RegisterMasterReply> ReadSpec(FileSystem& fs, const std::string& run_dir) {
  auto bytes = fs.ReadFile(SpecPath(run_dir), kMaxSpecBytes);
  proto::RegisterMasterReply reply;
  if (!bytes.ok() || !reply.ParseFromString(*bytes)) return std::nullopt;
  return reply;
}

struct Server {
  std::unique_ptr<grpc::Server> grpc;
  std::string address;  // for agents
};

Result<Server> Listen(const MasterOptions& options, MasterService& service) {
  std::string listen = options.listen;
  if (listen.empty()) {
    listen = options.standalone ? "unix:" + StandaloneSocketPath(options.run_dir) : "127.0.0.1:0";
  }
  const bool is_unix = listen.starts_with("unix:");
  if (is_unix && listen.size() - 5 > kMaxSocketPath) {
    return InvalidArgumentError(fmt::format(
        "master: the socket path '{}' has {} bytes, at most {} are possible; choose a shorter run "
        "directory",
        listen.substr(5), listen.size() - 5, kMaxSocketPath));
  }
  int port = 0;
  grpc::ServerBuilder builder;
  grpc::ResourceQuota quota("master");
  quota.Resize(64 << 20);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(16 << 20);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddListeningPort(listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  Server server;
  server.grpc = builder.BuildAndStart();
  if (server.grpc == nullptr || (!is_unix && port <= 0)) {
    return UnavailableError(fmt::format("master: cannot listen at {}", listen));
  }
  if (is_unix) {
    if (chmod(listen.c_str() + 5, 0600) != 0) {
      return ErrnoError(errno, fmt::format("chmod({})", listen.substr(5)));
    }
    server.address = listen;
  } else {
    const size_t colon = listen.rfind(':');
    server.address = fmt::format("{}:{}", listen.substr(0, colon), port);
  }
  return server;
}

int Complain(const Status& status, int exit_code) {
  LogError("{}", status.message());
  return exit_code;
}

}  // namespace

Config ConfigOf(const MasterOptions& options) {
  Config config;
  config.job_id = options.job_id;
  config.nodes = options.nodes;
  config.workers = options.workers;
  config.max_restarts = options.max_restarts;
  config.standalone = true;
  config.argv = options.argv;
  config.env = options.env;
  if (!options.directory.empty()) config.env.push_back("GODWIT_DIR=" + options.directory);
  return config;
}

Config ConfigOf(const MasterOptions& options, const proto::RegisterMasterReply& reply) {
  const proto::JobSpec& spec = reply.spec();
  Config config;
  config.job_id = options.job_id;
  config.nodes = std::max(reply.nodes(), 1u);
  config.workers = std::max(reply.workers(), 1u) * std::max(spec.slots_per_worker(), 1u);
  config.max_restarts = spec.has_max_restarts() ? spec.max_restarts() : kDefaultRestarts;
  if (reply.has_expected_step()) config.expected_step = reply.expected_step();
  config.expected_step_wait = FromWire(reply.expected_step_wait_ns());
  config.argv.assign(spec.argv().begin(), spec.argv().end());
  config.env.assign(spec.env().begin(), spec.env().end());
  if (!spec.directory().empty()) config.env.push_back("GODWIT_DIR=" + spec.directory());
  return config;
}

int RunMasterIn(const ProcessEnvironment& environment, const MasterOptions& options) {
  if (Status s = CheckOptions(options); !s.ok()) return Complain(s, 2);
  if (Status s = environment.fs->CreateDirs(options.run_dir); !s.ok()) return Complain(s, 1);
  auto lock = LockRunDir(options.run_dir);
  if (!lock.ok()) return Complain(lock.status(), 1);
  auto boot = BootId();
  if (!boot.ok()) return Complain(boot.status(), 1);
  auto journal = Journal::Open(*environment.fs, options.run_dir, *boot);
  if (!journal.ok()) return Complain(journal.status(), 1);
  auto loop = EventLoop::Open();
  if (!loop.ok()) return Complain(loop.status(), 1);

  Timeouts timeouts = environment.timeouts;
  if (options.standalone) {
    // The agent is the run: without it there is nothing to wait for.
    timeouts.agent_lost = std::min<Duration>(timeouts.agent_lost, seconds(1));
    // A run that is stopped at the terminal (Ctrl-Z) is silent for as long as that takes.
    timeouts.agent_silent = std::chrono::hours(24 * 365);
    timeouts.attach = std::min<Duration>(timeouts.attach, seconds(30));
    timeouts.leave = std::min<Duration>(timeouts.leave, seconds(2));
  }

  std::unique_ptr<SchedulerClient> client;
  // The engine needs the link before the client can exist (which needs the address).
  class Link : public SchedulerLink {
   public:
    std::unique_ptr<SchedulerClient>* client = nullptr;
    void Ack(const proto::NoticeReply& r) override { (*client)->Ack(r); }
    void Released(const std::string& id, bool node) override { (*client)->Released(id, node); }
    void Notice(const proto::NoticeRecord& r) override { (*client)->Notice(r); }
    void Happened(const proto::Event& e) override { (*client)->Happened(e); }
    void Acknowledged(uint64_t n) override { (*client)->Acknowledged(n); }
    void StatusChanged() override { (*client)->StatusChanged(); }
    void Finish(const proto::JobOutcome& o) override { (*client)->Finish(o); }
  } link;
  link.client = &client;

  Engine::Options engine_options;
  engine_options.loop = loop->get();
  engine_options.clock = environment.clock;
  engine_options.journal = journal->get();
  engine_options.storage = environment.storage;
  engine_options.scheduler = options.standalone ? nullptr : &link;
  Engine engine(engine_options);
  MasterService service(engine);
  auto server = Listen(options, service);
  if (!server.ok()) return Complain(server.status(), 1);
  LogInfo("job {}, attempt {}: listening at {}", options.job_id, options.attempt, server->address);

  UniqueFd signals;
  if (environment.handle_signals) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signals.Reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!signals) return Complain(ErrnoError(errno, "signalfd"), 1);
    Status added = (*loop)->AddFd(signals.get(), EPOLLIN, [&](uint32_t) {
      signalfd_siginfo info;
      while (read(signals.get(), &info, sizeof(info)) == sizeof(info)) {
        // A terminal sends Ctrl-C to all of its processes; in a plain run the agent is who decides.
        const bool attached = engine.started() &&
                              std::any_of(engine.state().nodes.begin(), engine.state().nodes.end(),
                                          [](const NodeInfo& n) { return n.attached; });
        if (options.standalone && (info.ssi_signo == SIGINT || attached)) continue;
        LogInfo("ended by signal {}", info.ssi_signo);
        engine.Quit(76);
      }
    });
    if (!added.ok()) return Complain(added, 1);
  }

  const auto start = [&](Config config) {
    config.timeouts = timeouts;
    engine.Start(std::move(config));
  };
  std::optional<proto::RegisterMasterReply> kept;
  if (!options.standalone) {
    kept = ReadSpec(*environment.fs, options.run_dir);
    SchedulerClient::Options client_options;
    client_options.scheduler = options.scheduler;
    client_options.job_id = options.job_id;
    client_options.attempt = options.attempt;
    client_options.address = server->address;
    client_options.loop = loop->get();
    client_options.on_registered = [&](const proto::RegisterMasterReply& reply) {
      if (engine.started()) return;
      KeepSpec(*environment.fs, options.run_dir, reply);
      start(ConfigOf(options, reply));
    };
    client_options.on_directive = [&](const proto::Directive& directive) {
      switch (directive.directive_case()) {
        case proto::Directive::kNotice:
          (void)engine.PostNotice(directive.notice(), directive.number(), nullptr);
          return;
        case proto::Directive::kRescind:
          (void)engine.PostRescind(directive.rescind().id(), directive.number(), nullptr);
          return;
        case proto::Directive::kStop:
          (void)engine.PostStop(fmt::format("stop-{}", directive.number()),
                                directive.stop().reason(), FromWire(directive.stop().grace_ns()),
                                directive.number());
          return;
        case proto::Directive::DIRECTIVE_NOT_SET:
          return;
      }
    };
    client_options.on_disowned = [&](const std::string& why) {
      LogError("the scheduler disowns this master: {}", why);
      if (!engine.started()) return engine.Quit(1);
      // Somebody else may be about to write to the same directory: be gone soon.
      (void)engine.PostStop("disowned", why, seconds(5), 0);
    };
    client_options.on_outcome_delivered = [&] { engine.OnOutcomeDelivered(); };
    client_options.get_status = [&](std::function<void(proto::MasterStatus)> done) {
      return engine.PostStatus(std::move(done));
    };
    client = std::make_unique<SchedulerClient>(std::move(client_options));
  }
  if (options.standalone) {
    start(ConfigOf(options));
  } else if (kept) {
    start(ConfigOf(options, *kept));
  }

  Status ran = OkStatus();
  while (ran.ok() && !engine.exit_code()) ran = (*loop)->Run();
  if (!ran.ok()) LogError("{}", ran.message());

  client.reset();
  // Calls that are under way are answered by the loop, so it runs until the server has ended.
  std::atomic<bool> down{false};
  Thread shutdown("gw-shutdown", [&](StopToken) {
    server->grpc->Shutdown(std::chrono::system_clock::now() + milliseconds(500));
    server->grpc->Wait();
    down = true;
    (*loop)->Stop();
  });
  while (!down) {
    if (!(*loop)->RunOnce(MonotonicClock::now() + milliseconds(100)).ok()) break;
  }
  shutdown.Join();
  if (server->address.starts_with("unix:")) unlink(server->address.c_str() + 5);
  return ran.ok() ? engine.exit_code().value_or(1) : 1;
}

}  // namespace godwit::master
