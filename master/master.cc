#include "master/master.h"

#include <malloc.h>
#include <pthread.h>

#include <csignal>

#include "base/file_system.h"
#include "base/log.h"
#include "base/real_file_system.h"
#include "master/process/master_process.h"
#include "master/process/storage.h"

namespace godwit {

std::string StandaloneSocketPath(const std::string& run_dir) {
  return JoinPath(run_dir, "master.sock");
}

int RunMaster(const MasterOptions& options) {
  SetLogComponent("master");
  // Few threads, each mostly idle: an arena per thread would be most of the process's memory.
  mallopt(M_ARENA_MAX, 2);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  // Read from a descriptor; all threads inherit this.
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  master::CheckpointStorage storage(RealFileSystem());
  master::ProcessEnvironment environment;
  environment.fs = &RealFileSystem();
  environment.storage = &storage;
  environment.clock = &RealClock();
  return master::RunMasterIn(environment, options);
}

}  // namespace godwit
