#include "base/status.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace godwit {

namespace internal {
void CheckFailed(const char* file, int line, std::string_view what) {
  std::fprintf(stderr, "CHECK failed: %s:%d: %.*s\n", file, line, static_cast<int>(what.size()),
               what.data());
  std::abort();
}
}  // namespace internal

std::string StatusCodeName(StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const int n = static_cast<int>(code);
  if (n < 0 || n > 16) return "UNKNOWN(" + std::to_string(n) + ")";
  return kNames[n];
}

std::string Status::ToString() const {
  return ok() ? "OK" : StatusCodeName(code_) + ": " + message_;
}

Status Status::Annotate(std::string_view context) const {
  if (ok()) return *this;
  return Status(code_, std::string(context) + ": " + message_);
}

std::ostream& operator<<(std::ostream& out, const Status& status) {
  return out << status.ToString();
}

namespace {
StatusCode CodeOfErrno(int error) {
  switch (error) {
    case ENOENT:
    case ESRCH:
      return StatusCode::kNotFound;
    case EEXIST:
    case EADDRINUSE:
      return StatusCode::kAlreadyExists;
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case EFBIG:
    case ETOOMANYREFS:
      return StatusCode::kResourceExhausted;
    case EACCES:
    case EPERM:
    case EROFS:
      return StatusCode::kPermissionDenied;
    case EAGAIN:
    case EINTR:
    case ECONNREFUSED:
      return StatusCode::kUnavailable;
    case EINVAL:
    case ENAMETOOLONG:
      return StatusCode::kInvalidArgument;
    case ENOTEMPTY:
    case ENOTDIR:
    case EISDIR:
    case EBUSY:
      return StatusCode::kFailedPrecondition;
    case EPIPE:
    case ECONNRESET:
      return StatusCode::kAborted;
    case ETIMEDOUT:
      return StatusCode::kDeadlineExceeded;
    default:
      return StatusCode::kUnknown;
  }
}
}  // namespace

Status ErrnoError(int error, std::string_view what) {
  return Status(CodeOfErrno(error), std::string(what) + ": " + std::strerror(error));
}

}  // namespace godwit
