#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "master/core/action.h"
#include "master/core/event.h"
#include "master/core/state.h"
#include "proto/master.pb.h"
#include "proto/scheduler.pb.h"

// Between the wire and the plain structs of master/core. What comes in is clipped to sane sizes
// here, and judged by the decisions.
namespace godwit::master {

// A report of the node's agent as an event. Nothing for reports that are no event of the decisions
// (key-value requests) and for those without content.
std::optional<Event> ToEvent(uint32_t node, const proto::AgentReport& report);

// `config` fills what the decisions don't know of: the workers' command and environment.
proto::MasterOrder ToProto(const Order& order, const Config& config);

proto::NoticeReply ToProto(const ReplyNotice& reply);
proto::NoticeRecord ToProto(const NoticeRecord& record);
proto::FailureRecord ToProto(const FailureRecord& record);
proto::JobOutcome ToProto(const Outcome& outcome);
proto::MasterStatus StatusOf(const State& state);

NoticeReceived ToEvent(const proto::NoticeRequest& request, uint64_t directive);

// The text with what is no UTF-8 (a cut or binary log) replaced: the wire refuses other strings.
std::string Utf8(std::string_view text);

// A duration of the wire; beyond 100 years it is 100 years.
Duration FromWire(uint64_t nanos);
// A negative one is 0.
uint64_t ToWire(Duration d);

}  // namespace godwit::master
