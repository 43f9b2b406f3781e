#include "scheduler/store/store.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/random.h"
#include "base/real_file_system.h"
#include "base/strings.h"

namespace godwit {
namespace {

constexpr int kSchemaVersion = 1;

constexpr char kSchema[] = R"(
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE jobs (
  id TEXT PRIMARY KEY, number INTEGER NOT NULL UNIQUE, idempotency_key TEXT NOT NULL,
  spec BLOB NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, attempt INTEGER NOT NULL,
  restarts INTEGER NOT NULL, losses INTEGER NOT NULL, preemptions INTEGER NOT NULL,
  created_unix_ms INTEGER NOT NULL, enqueued_unix_ms INTEGER NOT NULL,
  started_unix_ms INTEGER NOT NULL, ended_unix_ms INTEGER NOT NULL, expected_step INTEGER,
  master BLOB NOT NULL, stop_requested INTEGER NOT NULL, explanation TEXT NOT NULL,
  certificate_json TEXT NOT NULL) WITHOUT ROWID;
CREATE UNIQUE INDEX jobs_by_key ON jobs (idempotency_key) WHERE idempotency_key != '';
CREATE TABLE attempts (
  job_id TEXT NOT NULL, attempt INTEGER NOT NULL, workers TEXT NOT NULL, running INTEGER NOT NULL,
  ended INTEGER NOT NULL, leave_reason TEXT NOT NULL, preemptor TEXT NOT NULL,
  notice_id TEXT NOT NULL, deadline_ns INTEGER NOT NULL, deadline_boot_id TEXT NOT NULL,
  leave_unix_ms INTEGER NOT NULL, master_address TEXT NOT NULL, master_pid INTEGER NOT NULL,
  master_sequence INTEGER NOT NULL, outcome BLOB, started_unix_ms INTEGER NOT NULL,
  ended_unix_ms INTEGER NOT NULL, PRIMARY KEY (job_id, attempt)) WITHOUT ROWID;
CREATE TABLE processes (
  job_id TEXT NOT NULL, attempt INTEGER NOT NULL, role TEXT NOT NULL, node TEXT NOT NULL,
  pid INTEGER NOT NULL, start_time INTEGER NOT NULL, boot_id TEXT NOT NULL,
  starts INTEGER NOT NULL, PRIMARY KEY (job_id, attempt, role, node)) WITHOUT ROWID;
CREATE TABLE directives (
  number INTEGER PRIMARY KEY, job_id TEXT NOT NULL, attempt INTEGER NOT NULL, body BLOB NOT NULL,
  deadline_ns INTEGER NOT NULL, deadline_boot_id TEXT NOT NULL, acknowledged INTEGER NOT NULL);
CREATE TABLE events (
  number INTEGER PRIMARY KEY, unix_ms INTEGER NOT NULL, job_id TEXT NOT NULL, kind TEXT NOT NULL,
  message TEXT NOT NULL, data_json TEXT NOT NULL);
CREATE INDEX events_by_job ON events (job_id, number);
CREATE TABLE notices (
  job_id TEXT NOT NULL, id TEXT NOT NULL, record BLOB NOT NULL, sequence INTEGER NOT NULL,
  PRIMARY KEY (job_id, id)) WITHOUT ROWID;
CREATE TABLE failures (
  job_id TEXT NOT NULL, attempt INTEGER NOT NULL, sequence INTEGER NOT NULL, record BLOB NOT NULL,
  PRIMARY KEY (job_id, attempt, sequence)) WITHOUT ROWID;
)";

// Takes the store for this process, until the descriptor is closed.
Result<UniqueFd> Lock(const std::string& directory) {
  const std::string path = JoinPath(directory, "lock");
  UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return ErrnoError(errno, "open(" + path + ")");
  char buffer[32] = {};
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoError(errno, "flock(" + path + ")");
    const ssize_t n = pread(fd.get(), buffer, sizeof(buffer) - 1, 0);
    const std::string pid(Trim(std::string_view(buffer, n > 0 ? static_cast<size_t>(n) : 0)));
    return FailedPreconditionError(fmt::format(
        "store {} is in use by the scheduler with pid {}; allowed: one scheduler per store "
        "(another --state-dir)",
        directory, pid.empty() ? "unknown" : pid));
  }
  const std::string pid = fmt::format("{}\n", getpid());
  if (ftruncate(fd.get(), 0) != 0 ||
      pwrite(fd.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return ErrnoError(errno, "write(" + path + ")");
  }
  return fd;
}

std::string WorkersJson(const std::vector<AttemptRecord::Worker>& workers) {
  nlohmann::json list = nlohmann::json::array();
  for (const AttemptRecord::Worker& worker : workers) {
    list.push_back({{"node", worker.node}, {"claim", worker.guaranteed ? "G" : "I"}});
  }
  return list.dump();
}

bool ParseWorkers(const std::string& text, std::vector<AttemptRecord::Worker>* workers) {
  const nlohmann::json list = nlohmann::json::parse(text, nullptr, false);
  if (!list.is_array()) return false;
  for (const nlohmann::json& worker : list) {
    if (!worker.is_object() || !worker.contains("node") || !worker["node"].is_string() ||
        !worker.contains("claim")) {
      return false;
    }
    workers->push_back({worker["node"].get<std::string>(), worker["claim"] == "G"});
  }
  return true;
}

}  // namespace

// A prepared statement; the first failure sticks.
class Store::Statement {
 public:
  Statement(const Store& store, const char* sql) : store_(store) {
    rc_ = sqlite3_prepare_v2(store.db_, sql, -1, &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Int(uint64_t value) {
    if (rc_ == SQLITE_OK) {
      rc_ = sqlite3_bind_int64(statement_, ++parameter_, static_cast<sqlite3_int64>(value));
    }
    return *this;
  }
  Statement& Text(const std::string& value) {
    if (rc_ == SQLITE_OK) {
      rc_ = sqlite3_bind_text64(statement_, ++parameter_, value.data(), value.size(),
                                SQLITE_TRANSIENT, SQLITE_UTF8);
    }
    return *this;
  }
  Statement& Blob(const google::protobuf::MessageLite& message) {
    const std::string value = message.SerializeAsString();
    if (rc_ == SQLITE_OK) {
      // An empty message is an empty blob, not NULL.
      rc_ = sqlite3_bind_blob64(statement_, ++parameter_, value.empty() ? "" : value.data(),
                                value.size(), SQLITE_TRANSIENT);
    }
    return *this;
  }
  Statement& Null() {
    if (rc_ == SQLITE_OK) rc_ = sqlite3_bind_null(statement_, ++parameter_);
    return *this;
  }
  // Runs a statement without rows, and makes it ready for other values.
  Status Run() {
    if (rc_ == SQLITE_OK) rc_ = sqlite3_step(statement_);
    if (rc_ != SQLITE_DONE) return store_.Error("write");
    parameter_ = 0;
    rc_ = sqlite3_reset(statement_);
    return rc_ == SQLITE_OK ? OkStatus() : store_.Error("write");
  }
  // The next row; false at the end, and when something failed (see status()).
  bool Next() {
    if (rc_ != SQLITE_OK && rc_ != SQLITE_ROW) return false;
    rc_ = sqlite3_step(statement_);
    column_ = 0;
    return rc_ == SQLITE_ROW;
  }
  Status status() const {
    if (damaged_) return DataLossError(store_.path_ + ": a record can't be read");
    return rc_ == SQLITE_DONE || rc_ == SQLITE_OK ? OkStatus() : store_.Error("read");
  }

  uint64_t GetInt() { return static_cast<uint64_t>(sqlite3_column_int64(statement_, column_++)); }
  uint32_t GetUint32() { return static_cast<uint32_t>(GetInt()); }
  bool GetBool() { return GetInt() != 0; }
  bool NextIsNull() { return sqlite3_column_type(statement_, column_) == SQLITE_NULL; }
  void Skip() { ++column_; }
  std::string GetText() {
    const auto* text = reinterpret_cast<const char*>(sqlite3_column_text(statement_, column_));
    const int bytes = sqlite3_column_bytes(statement_, column_++);
    return text == nullptr ? "" : std::string(text, static_cast<size_t>(bytes));
  }
  void GetBlob(google::protobuf::MessageLite* message) {
    const void* data = sqlite3_column_blob(statement_, column_);
    const int bytes = sqlite3_column_bytes(statement_, column_++);
    if (!message->ParseFromArray(data, bytes)) damaged_ = true;
  }
  void Damaged() { damaged_ = true; }

 private:
  const Store& store_;
  sqlite3_stmt* statement_ = nullptr;
  int rc_;
  int parameter_ = 0;
  int column_ = 0;
  bool damaged_ = false;
};

Result<std::unique_ptr<Store>> Store::Open(const std::string& directory) {
  FileSystem& fs = RealFileSystem();
  GODWIT_RETURN_IF_ERROR(fs.CreateDirs(directory));
  if (chmod(directory.c_str(), 0700) != 0) return ErrnoError(errno, "chmod(" + directory + ")");
  GODWIT_ASSIGN_OR_RETURN(UniqueFd lock, Lock(directory));
  const std::string path = JoinPath(directory, "scheduler.db");
  sqlite3* db = nullptr;
  const int rc =
      sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  // The handle reports why it could not be opened, so it's owned by then.
  std::unique_ptr<Store> store(new Store(path, std::move(lock), db));
  if (rc != SQLITE_OK) return store->Error("open");
  GODWIT_RETURN_IF_ERROR(store->Prepare());
  return store;
}

Store::~Store() { sqlite3_close(db_); }

Status Store::Error(const std::string& what) const {
  const int code = db_ == nullptr ? SQLITE_NOMEM : sqlite3_extended_errcode(db_);
  const std::string message = fmt::format("store {}: {}: {}", path_, what,
                                          db_ == nullptr ? "no memory" : sqlite3_errmsg(db_));
  switch (code & 0xff) {
    case SQLITE_FULL:
    case SQLITE_NOMEM:
      return ResourceExhaustedError(message);
    case SQLITE_IOERR:
      // A write-ahead log that can't grow is reported as a failed write.
      if (code == SQLITE_IOERR_WRITE || code == SQLITE_IOERR_SHMSIZE ||
          code == SQLITE_IOERR_FSYNC) {
        return ResourceExhaustedError(message);
      }
      return UnknownError(message);
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return DataLossError(message);
    case SQLITE_PERM:
    case SQLITE_READONLY:
    case SQLITE_CANTOPEN:
      return PermissionDeniedError(message);
    default:
      return UnknownError(message);
  }
}

Status Store::Exec(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return Error("write");
  return OkStatus();
}

Status Store::LimitPagesForTest(uint32_t pages) {
  return Exec(fmt::format("PRAGMA max_page_count={}", pages).c_str());
}

Status Store::Prepare() {
  sqlite3_extended_result_codes(db_, 1);
  GODWIT_RETURN_IF_ERROR(Exec("PRAGMA journal_mode=WAL"));
  GODWIT_RETURN_IF_ERROR(Exec("PRAGMA synchronous=FULL"));
  int version = 0;
  {
    Statement statement(*this, "PRAGMA user_version");
    if (statement.Next()) version = static_cast<int>(statement.GetInt());
    GODWIT_RETURN_IF_ERROR(statement.Next() ? OkStatus() : statement.status());
  }
  if (version == 0) {
    GODWIT_RETURN_IF_ERROR(Exec("BEGIN IMMEDIATE"));
    Status status = Exec(kSchema);
    if (status.ok()) {
      status = Statement(*this, "INSERT INTO settings VALUES ('store_id', ?)")
                   .Text(fmt::format("{:016x}", SystemRandom64()))
                   .Run();
    }
    if (status.ok()) status = Exec(fmt::format("PRAGMA user_version={}", kSchemaVersion).c_str());
    if (status.ok()) status = Exec("COMMIT");
    if (!status.ok()) {
      sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
      return status;
    }
  } else if (version != kSchemaVersion) {
    return FailedPreconditionError(
        fmt::format("store {}: schema version {}, allowed: {}", path_, version, kSchemaVersion));
  }
  GODWIT_ASSIGN_OR_RETURN(id_, Setting("store_id"));
  if (id_.empty()) return DataLossError("store " + path_ + ": it has no id");
  return OkStatus();
}

Result<std::string> Store::Setting(const std::string& name) {
  Statement statement(*this, "SELECT value FROM settings WHERE name = ?");
  statement.Text(name);
  std::string value;
  if (statement.Next()) return statement.GetText();
  GODWIT_RETURN_IF_ERROR(statement.status());
  return value;
}

Status Store::Commit(const Batch& batch) {
  if (batch.empty()) return OkStatus();
  GODWIT_RETURN_IF_ERROR(Exec("BEGIN IMMEDIATE"));
  Status status = WriteAll(batch);
  if (status.ok()) status = Exec("COMMIT");
  if (!status.ok()) sqlite3_exec(db_, "ROLLBACK", nullptr, nullptr, nullptr);
  return status;
}

Status Store::WriteAll(const Batch& batch) {
  for (const JobRecord& job : batch.jobs) {
    Statement statement(*this,
                        "INSERT OR REPLACE INTO jobs VALUES "
                        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    statement.Text(job.id).Int(job.number).Text(job.idempotency_key).Blob(job.spec);
    statement.Text(JobStateName(job.state)).Text(job.reason).Int(job.attempt).Int(job.restarts);
    statement.Int(job.losses).Int(job.preemptions).Int(job.created_unix_ms);
    statement.Int(job.enqueued_unix_ms).Int(job.started_unix_ms).Int(job.ended_unix_ms);
    if (job.expected_step) {
      statement.Int(*job.expected_step);
    } else {
      statement.Null();
    }
    statement.Blob(job.master).Int(job.stop_requested).Text(job.explanation);
    statement.Text(job.certificate_json);
    GODWIT_RETURN_IF_ERROR(statement.Run());
  }
  for (const AttemptRecord& attempt : batch.attempts) {
    Statement statement(*this,
                        "INSERT OR REPLACE INTO attempts VALUES "
                        "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)");
    statement.Text(attempt.job_id).Int(attempt.attempt).Text(WorkersJson(attempt.workers));
    statement.Int(attempt.running).Int(attempt.ended).Text(attempt.leave_reason);
    statement.Text(attempt.preemptor).Text(attempt.notice_id).Int(attempt.deadline_ns);
    statement.Text(attempt.deadline_boot_id).Int(attempt.leave_unix_ms);
    statement.Text(attempt.master_address).Int(static_cast<uint32_t>(attempt.master_pid));
    statement.Int(attempt.master_sequence);
    if (attempt.outcome) {
      statement.Blob(*attempt.outcome);
    } else {
      statement.Null();
    }
    statement.Int(attempt.started_unix_ms).Int(attempt.ended_unix_ms);
    GODWIT_RETURN_IF_ERROR(statement.Run());
  }
  for (const ProcessRecord& process : batch.processes) {
    Statement statement(*this, "INSERT OR REPLACE INTO processes VALUES (?, ?, ?, ?, ?, ?, ?, ?)");
    statement.Text(process.job_id).Int(process.attempt).Text(process.role).Text(process.node);
    statement.Int(static_cast<uint32_t>(process.pid)).Int(process.start_time);
    statement.Text(process.boot_id).Int(process.starts);
    GODWIT_RETURN_IF_ERROR(statement.Run());
  }
  for (const DirectiveRecord& directive : batch.directives) {
    Statement statement(*this, "INSERT OR REPLACE INTO directives VALUES (?, ?, ?, ?, ?, ?, ?)");
    statement.Int(directive.body.number()).Text(directive.job_id).Int(directive.attempt);
    statement.Blob(directive.body).Int(directive.deadline_ns);
    statement.Text(directive.deadline_boot_id).Int(directive.acknowledged);
    GODWIT_RETURN_IF_ERROR(statement.Run());
  }
  for (const proto::Event& event : batch.events) {
    Statement statement(*this, "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)");
    statement.Int(event.number()).Int(event.unix_ms()).Text(event.job_id()).Text(event.kind());
    statement.Text(event.message()).Text(event.data_json());
    GODWIT_RETURN_IF_ERROR(statement.Run());
  }
  for (const auto& [job_id, record] : batch.notices) {
    Statement statement(*this,
                        "INSERT INTO notices VALUES (?1, ?2, ?3, (SELECT 1 + "
                        "IFNULL(MAX(sequence), 0) FROM notices)) ON CONFLICT (job_id, id) DO "
                        "UPDATE SET record = excluded.record");
    statement.Text(job_id).Text(record.id()).Blob(record);
    GODWIT_RETURN_IF_ERROR(statement.Run());
  }
  for (const Batch::Failure& failure : batch.failures) {
    Statement statement(*this, "INSERT OR REPLACE INTO failures VALUES (?, ?, ?, ?)");
    statement.Text(failure.job_id).Int(failure.attempt).Int(failure.record.sequence());
    statement.Blob(failure.record);
    GODWIT_RETURN_IF_ERROR(statement.Run());
  }
  for (const auto& [name, value] : batch.settings) {
    Statement statement(*this, "INSERT OR REPLACE INTO settings VALUES (?, ?)");
    GODWIT_RETURN_IF_ERROR(statement.Text(name).Text(value).Run());
  }
  return OkStatus();
}

Result<Store::Contents> Store::Load() {
  Contents contents;
  {
    Statement statement(*this, "SELECT * FROM jobs ORDER BY number");
    while (statement.Next()) {
      JobRecord job;
      job.id = statement.GetText();
      job.number = statement.GetInt();
      job.idempotency_key = statement.GetText();
      statement.GetBlob(&job.spec);
      const std::optional<JobState> state = ParseJobState(statement.GetText());
      if (!state) statement.Damaged();
      job.state = state.value_or(JobState::kFailed);
      job.reason = statement.GetText();
      job.attempt = statement.GetUint32();
      job.restarts = statement.GetUint32();
      job.losses = statement.GetUint32();
      job.preemptions = statement.GetUint32();
      job.created_unix_ms = statement.GetInt();
      job.enqueued_unix_ms = statement.GetInt();
      job.started_unix_ms = statement.GetInt();
      job.ended_unix_ms = statement.GetInt();
      if (statement.NextIsNull()) {
        statement.Skip();
      } else {
        job.expected_step = statement.GetInt();
      }
      statement.GetBlob(&job.master);
      job.stop_requested = statement.GetBool();
      job.explanation = statement.GetText();
      job.certificate_json = statement.GetText();
      contents.jobs.push_back(std::move(job));
    }
    GODWIT_RETURN_IF_ERROR(statement.status());
  }
  {
    Statement statement(*this,
                        "SELECT a.* FROM attempts a JOIN jobs j ON a.job_id = j.id AND "
                        "a.attempt = j.attempt ORDER BY j.number");
    while (statement.Next()) {
      AttemptRecord attempt;
      attempt.job_id = statement.GetText();
      attempt.attempt = statement.GetUint32();
      if (!ParseWorkers(statement.GetText(), &attempt.workers)) statement.Damaged();
      attempt.running = statement.GetBool();
      attempt.ended = statement.GetBool();
      attempt.leave_reason = statement.GetText();
      attempt.preemptor = statement.GetText();
      attempt.notice_id = statement.GetText();
      attempt.deadline_ns = statement.GetInt();
      attempt.deadline_boot_id = statement.GetText();
      attempt.leave_unix_ms = statement.GetInt();
      attempt.master_address = statement.GetText();
      attempt.master_pid = static_cast<int32_t>(statement.GetInt());
      attempt.master_sequence = statement.GetInt();
      if (statement.NextIsNull()) {
        statement.Skip();
      } else {
        statement.GetBlob(&attempt.outcome.emplace());
      }
      attempt.started_unix_ms = statement.GetInt();
      attempt.ended_unix_ms = statement.GetInt();
      contents.attempts.push_back(std::move(attempt));
    }
    GODWIT_RETURN_IF_ERROR(statement.status());
  }
  {
    Statement statement(*this,
                        "SELECT p.* FROM processes p JOIN attempts a ON a.job_id = p.job_id AND "
                        "a.attempt = p.attempt WHERE a.ended = 0");
    while (statement.Next()) {
      ProcessRecord process;
      process.job_id = statement.GetText();
      process.attempt = statement.GetUint32();
      process.role = statement.GetText();
      process.node = statement.GetText();
      process.pid = static_cast<int32_t>(statement.GetInt());
      process.start_time = statement.GetInt();
      process.boot_id = statement.GetText();
      process.starts = statement.GetUint32();
      contents.processes.push_back(std::move(process));
    }
    GODWIT_RETURN_IF_ERROR(statement.status());
  }
  {
    Statement statement(*this,
                        "SELECT d.job_id, d.attempt, d.body, d.deadline_ns, d.deadline_boot_id "
                        "FROM directives d JOIN attempts a ON a.job_id = d.job_id AND a.attempt = "
                        "d.attempt WHERE a.ended = 0 AND d.acknowledged = 0 ORDER BY d.number");
    while (statement.Next()) {
      DirectiveRecord directive;
      directive.job_id = statement.GetText();
      directive.attempt = statement.GetUint32();
      statement.GetBlob(&directive.body);
      directive.deadline_ns = statement.GetInt();
      directive.deadline_boot_id = statement.GetText();
      contents.directives.push_back(std::move(directive));
    }
    GODWIT_RETURN_IF_ERROR(statement.status());
  }
  for (const auto& [sql, value] :
       {std::pair{"SELECT MAX(number) FROM directives", &contents.last_directive},
        std::pair{"SELECT MAX(number) FROM events", &contents.last_event}}) {
    Statement statement(*this, sql);
    if (statement.Next()) *value = statement.GetInt();
    if (statement.Next()) statement.Damaged();
    GODWIT_RETURN_IF_ERROR(statement.status());
  }
  return contents;
}

Result<std::vector<proto::Event>> Store::Events(const std::string& job_id, uint64_t after,
                                                uint32_t limit) {
  Statement statement(*this, job_id.empty()
                                 ? "SELECT * FROM events WHERE number > ?1 ORDER BY number LIMIT ?2"
                                 : "SELECT * FROM events WHERE number > ?1 AND job_id = ?3 ORDER "
                                   "BY number LIMIT ?2");
  statement.Int(after).Int(limit);
  if (!job_id.empty()) statement.Text(job_id);
  std::vector<proto::Event> events;
  while (statement.Next()) {
    proto::Event& event = events.emplace_back();
    event.set_number(statement.GetInt());
    event.set_unix_ms(statement.GetInt());
    event.set_job_id(statement.GetText());
    event.set_kind(statement.GetText());
    event.set_message(statement.GetText());
    event.set_data_json(statement.GetText());
  }
  GODWIT_RETURN_IF_ERROR(statement.status());
  return events;
}

Result<std::vector<proto::NoticeRecord>> Store::Notices(const std::string& job_id) {
  Statement statement(*this, "SELECT record FROM notices WHERE job_id = ? ORDER BY sequence");
  statement.Text(job_id);
  std::vector<proto::NoticeRecord> records;
  while (statement.Next()) statement.GetBlob(&records.emplace_back());
  GODWIT_RETURN_IF_ERROR(statement.status());
  return records;
}

Result<std::vector<proto::FailureRecord>> Store::Failures(const std::string& job_id) {
  Statement statement(*this,
                      "SELECT record FROM failures WHERE job_id = ? ORDER BY attempt, sequence");
  statement.Text(job_id);
  std::vector<proto::FailureRecord> records;
  while (statement.Next()) statement.GetBlob(&records.emplace_back());
  GODWIT_RETURN_IF_ERROR(statement.status());
  return records;
}

}  // namespace godwit
