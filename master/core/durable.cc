#include "master/core/durable.h"

#include <fmt/core.h>

#include <algorithm>

namespace godwit::master {
namespace {

// One list of fields serves both directions, so that they can't differ.
class Writer {
 public:
  void Field(bool& v) { out_.U8(v ? 1 : 0); }
  void Field(uint32_t& v) { out_.U32(v); }
  void Field(int32_t& v) { out_.U32(static_cast<uint32_t>(v)); }
  void Field(uint64_t& v) { out_.U64(v); }
  void Field(Duration& v) { out_.I64(v.count()); }
  void Field(MonotonicTime& v) { out_.I64(ToNanos(v)); }
  void Field(std::string& v) { out_.String(std::string_view(v).substr(0, kMaxText)); }
  template <typename E>
  void Enum(E& v, uint32_t) {
    out_.U32(static_cast<uint32_t>(v));
  }
  template <typename T, typename F>
  void Optional(std::optional<T>& v, F&& each) {
    out_.U8(v ? 1 : 0);
    if (v) each(*v);
  }
  template <typename T, typename F>
  void List(std::vector<T>& v, size_t, F&& each) {
    out_.U32(static_cast<uint32_t>(v.size()));
    for (T& item : v) each(item);
  }
  std::string Take() { return out_.Take(); }

 private:
  ByteWriter out_;
};

class Reader {
 public:
  explicit Reader(ByteSpan bytes) : in_(bytes, "journal record") {}
  void Field(bool& v) { v = in_.ReadU8() != 0; }
  void Field(uint32_t& v) { v = in_.ReadU32(); }
  void Field(int32_t& v) { v = static_cast<int32_t>(in_.ReadU32()); }
  void Field(uint64_t& v) { v = in_.ReadU64(); }
  void Field(Duration& v) { v = Duration(in_.ReadI64()); }
  void Field(MonotonicTime& v) { v = MonotonicFromNanos(in_.ReadI64()); }
  void Field(std::string& v) { v = in_.ReadString(kMaxText); }
  template <typename E>
  void Enum(E& v, uint32_t largest) {
    const uint32_t n = in_.ReadU32();
    if (n > largest) in_.Fail(fmt::format("enumerator {} is above {}", n, largest));
    v = static_cast<E>(std::min(n, largest));
  }
  template <typename T, typename F>
  void Optional(std::optional<T>& v, F&& each) {
    v.reset();
    if (in_.ReadU8() != 0 && in_.ok()) each(v.emplace());
  }
  template <typename T, typename F>
  void List(std::vector<T>& v, size_t limit, F&& each) {
    const uint32_t n = in_.ReadU32();
    if (n > limit) in_.Fail(fmt::format("a list of {} is longer than {}", n, limit));
    v.clear();
    for (uint32_t i = 0; i < n && in_.ok(); ++i) each(v.emplace_back());
  }
  ByteReader& in() { return in_; }

 private:
  ByteReader in_;
};

template <typename A>
void Fields(A& a, SaveId& v) {
  a.Field(v.term);
  a.Field(v.step);
  a.Field(v.attempt);
}

template <typename A>
void Fields(A& a, NoticePart& v) {
  a.Field(v.id);
  a.Field(v.reason);
  a.Field(v.preemptor);
  a.Field(v.time_left);
  a.Field(v.received);
  a.Field(v.deadline);
  a.Field(v.predicted);
  a.Field(v.predicted_gpu);
  a.Field(v.stop);
}

template <typename A>
void Fields(A& a, Notice& v) {
  const auto time = [&](MonotonicTime& t) { a.Field(t); };
  a.List(v.parts, kMaxRecords, [&](NoticePart& p) { Fields(a, p); });
  a.Optional(v.agreed, [&](uint64_t& s) { a.Field(s); });
  a.Field(v.parking);
  a.Field(v.abandoned);
  a.Field(v.message);
  a.Optional(v.parked_at, time);
  a.Optional(v.released_gpu_at, time);
  a.Optional(v.committed_at, time);
}

template <typename A>
void Fields(A& a, NoticeRecord& v) {
  a.Field(v.id);
  a.Field(v.reason);
  a.Field(v.preemptor);
  a.Field(v.time_left);
  a.Field(v.predicted);
  a.Field(v.agreed_step);
  a.Field(v.safe_step);
  a.Field(v.steps_lost);
  a.Field(v.parked);
  a.Field(v.released_gpu);
  a.Field(v.committed);
  a.Field(v.released_node);
  a.Field(v.in_time);
  a.Field(v.message);
  a.Field(v.longest_step);
}

template <typename A>
void Fields(A& a, FailureRecord& v) {
  a.Field(v.sequence);
  a.Field(v.unix_ms);
  a.Field(v.epoch);
  a.Field(v.rank);
  a.Field(v.node_id);
  a.Field(v.exit_code);
  a.Field(v.signal);
  a.Field(v.message);
  a.Field(v.log_tail);
  a.Field(v.step);
  a.Field(v.action);
  a.Field(v.steps_redone);
}

template <typename A>
void Fields(A& a, Durable& v) {
  a.Field(v.term);
  a.Field(v.epoch);
  a.Field(v.gates_opened);
  a.Field(v.restarting);
  a.Optional(v.resume, [&](ResumeDecision& r) {
    a.Enum(r.kind, static_cast<uint32_t>(ResumeKind::kRefused));
    Fields(a, r.save);
    a.Field(r.snapshot_epoch);
    a.Field(r.reason);
  });
  a.Field(v.restarts_used);
  a.Field(v.save_attempt);
  a.Field(v.has_directory);
  a.Field(v.directory);
  a.Field(v.total_steps);
  a.Field(v.persist_every);
  a.Optional(v.committed, [&](SaveId& s) { Fields(a, s); });
  a.List(v.distrusted, kMaxRecords, [&](SaveId& s) { Fields(a, s); });
  a.Field(v.last_persist_step);
  a.Field(v.failure_pending);
  a.Field(v.entered_at_failure);
  a.Optional(v.notice, [&](Notice& n) { Fields(a, n); });
  a.List(v.notice_ids, kMaxRecords, [&](std::string& s) { a.Field(s); });
  a.List(v.notices, kMaxRecords, [&](NoticeRecord& r) { Fields(a, r); });
  a.List(v.failures, kMaxRecords, [&](FailureRecord& r) { Fields(a, r); });
  a.Field(v.failure_sequence);
  a.Field(v.acknowledged_directive);
  a.List(v.exited_ok, size_t{1} << 20, [&](uint32_t& r) { a.Field(r); });
  a.Field(v.resumed_known);
  a.Field(v.resumed_step);
  a.Field(v.resumed_from);
  a.Optional(v.outcome, [&](Outcome& o) {
    a.Enum(o.state, static_cast<uint32_t>(OutcomeState::kStopped));
    a.Field(o.reason);
    a.Field(o.retryable);
    a.Field(o.exit_code);
  });
}

}  // namespace

std::string EncodeDurable(const Durable& durable) {
  Writer writer;
  uint32_t version = kDurableVersion;
  writer.Field(version);
  Durable copy = durable;
  Fields(writer, copy);
  return writer.Take();
}

Result<Durable> DecodeDurable(ByteSpan bytes) {
  Reader reader(bytes);
  uint32_t version = 0;
  reader.Field(version);
  GODWIT_RETURN_IF_ERROR(reader.in().status());
  if (version != kDurableVersion) {
    return FailedPreconditionError(fmt::format(
        "journal record: version {}, this build reads version {}", version, kDurableVersion));
  }
  Durable durable;
  Fields(reader, durable);
  GODWIT_RETURN_IF_ERROR(reader.in().Finish());
  return durable;
}

}  // namespace godwit::master
