#pragma once

#include <cstdint>
#include <string>

#include "proto/scheduler.pb.h"

namespace godwit::cli {

std::string WorkersText(const proto::JobInfo& job);  // "2 of 1:3", "- of 2"
std::string StepText(const proto::JobInfo& job);     // "120/1000", "-"
// How long the job has been in what it is: running since its start, waiting since it was queued,
// ended ago.
std::string SinceText(const proto::JobInfo& job);
std::string NanosText(uint64_t nanos);     // "1.5 s"
std::string UnixMsText(uint64_t unix_ms);  // local time, "12:30:05.123"; "-" for 0
// "./train --steps 100", quoted for a shell where needed.
std::string CommandText(const proto::JobSpec& spec);
// One line about what a notice did: answered, predicted, real, lost.
std::string NoticeText(const proto::NoticeRecord& notice);
std::string FailureText(const proto::FailureRecord& failure);

}  // namespace godwit::cli
